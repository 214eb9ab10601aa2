"""The twenty questions, on a story whose answers are known."""
