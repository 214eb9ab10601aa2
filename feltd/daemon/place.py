"""Where a database lies, for the daemon and the commands that open it: its absence and its lock."""

from pathlib import Path

from feltd.store import lock
from feltd.store.connect import StoreProblem

#: Exit code: another process holds the database.
HELD = 75
#: Set to 1 by a command that serves a file for its own length: the keeper of that daemon starts no
#: work by itself. What changes and instants set off is started by who serves the file for good, or
#: by the command that asks for it.
ALONE = "FELTD_ALONE"


def no_database(path: Path) -> StoreProblem:
    """There is no file at `path`."""
    return StoreProblem(f"no database at {path}:", f"run 'feltd init --data {path}'")


def take_lock(path: Path) -> lock.DataLock:
    """The lock of the database. Raises LockHeld, or StoreProblem where none can be made."""
    try:
        return lock.take(path)
    except OSError as error:
        raise StoreProblem(
            f"{path}.lock cannot be made: {error.strerror}.",
            "Make the folder exist and writable for the user feltd runs as.",
        ) from error
