"""Stories of the command line."""
