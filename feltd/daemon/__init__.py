"""The daemon: the only room besides cli/ that knows every other. It starts, serves and ends."""
