"""`feltd doctor`: one screen that says what is wrong, and the command that helps."""
