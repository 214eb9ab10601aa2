"""The daemon's own worker: capability programs, run as any other worker runs its handlers.

It imports the SDK and the nouns alone; how it reaches the daemon and its records is handed in. No
transaction, lock or permit is held while a program runs.
"""
