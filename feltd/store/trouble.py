"""What an SQLite error means for the caller: which refusal, and whether the file may be trusted on.

An error of the storage is a refusal the caller can repeat; an error of feltd's own SQL is none and
stays what it is, so that it is answered and logged as the bug it is.
"""

import errno
import sqlite3

from feltd.errors import PastDeadline, Refused

#: What a statement can fail with: SQLITE_NOMEM comes as a MemoryError without a code.
FAILURES = (sqlite3.Error, MemoryError)

#: Errors after which SQLite may have rolled the transaction back, or says nothing it can stand for.
STORAGE = {
    sqlite3.SQLITE_FULL: ("STORAGE_FULL", "the disk under the database is full"),
    sqlite3.SQLITE_BUSY: ("STORAGE_BUSY", "another program holds the database's write lock"),
    sqlite3.SQLITE_LOCKED: ("STORAGE_BUSY", "another program holds the database's write lock"),
    sqlite3.SQLITE_IOERR: ("STORAGE_UNAVAILABLE", "the database could not be read or written"),
    sqlite3.SQLITE_NOMEM: ("STORAGE_UNAVAILABLE", "the database ran out of memory"),
    sqlite3.SQLITE_CANTOPEN: ("STORAGE_UNAVAILABLE", "the database cannot be opened"),
    sqlite3.SQLITE_READONLY: ("STORAGE_UNAVAILABLE", "the database is read-only"),
    sqlite3.SQLITE_PERM: ("STORAGE_UNAVAILABLE", "the database may not be used"),
    sqlite3.SQLITE_PROTOCOL: ("STORAGE_UNAVAILABLE", "the database's locks do not work"),
    sqlite3.SQLITE_CORRUPT: ("STORAGE_UNAVAILABLE", "the database is damaged"),
    sqlite3.SQLITE_NOTADB: ("STORAGE_UNAVAILABLE", "the database is damaged"),
    sqlite3.SQLITE_INTERRUPT: ("STORAGE_STALLED", "the read was ended at its time limit"),
}

#: A file that shows one of these is not written to any more.
DAMAGED = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))

#: Somebody else's lock: nothing is wrong with the storage itself.
BUSY = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))


PERHAPS = "the call may or may not have been committed; repeat it"


class FileReplaced(Exception):
    """The database or its -wal is no longer the file that was opened."""


def primary_code(error: BaseException) -> int:
    """SQLite's primary result code of an error, 0 where it is none of SQLite's."""
    if isinstance(error, MemoryError):
        return sqlite3.SQLITE_NOMEM
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def is_storage(error: BaseException) -> bool:
    """Whether the storage failed, not the statement."""
    return primary_code(error) in STORAGE


def is_over(error: BaseException | None, changes: int) -> bool:
    """Whether a good commit of so many rows shows that `error` has passed.

    A commit that wrote nothing shows that a lock is free, not that the disk takes rows again.
    """
    return changes > 0 or error is None or primary_code(error) in BUSY


def refusal(error: BaseException) -> Exception:
    """What each caller of a transaction that was rolled back for `error` is told."""
    known = STORAGE.get(primary_code(error))
    told: Exception
    if known is not None:
        told = Refused(known[0], known[1], committed=False)
    elif isinstance(error, OSError):
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        known = STORAGE[sqlite3.SQLITE_FULL if full else sqlite3.SQLITE_IOERR]
        told = Refused(known[0], known[1], committed=False)
    elif isinstance(error, FileReplaced):
        told = Refused("STORAGE_UNAVAILABLE", "the database file was replaced", committed=False)
    elif isinstance(error, Refused):
        told = Refused(error.code, error.detail, **error.facts)
    else:
        told = RuntimeError(f"the batch was rolled back: {error!r}")
    told.__cause__ = error
    return told


def unknown(error: BaseException) -> Refused:
    """Nobody can say whether the commit is on disk."""
    told = Refused("OUTCOME_UNKNOWN", PERHAPS, committed="unknown")
    told.__cause__ = error
    return told


def never_begun() -> PastDeadline:
    """Its deadline came before its turn."""
    told = "request exceeded the server deadline"
    return PastDeadline("SERVICE_OVERLOADED", told, committed=False)


def not_over() -> PastDeadline:
    """It had begun by its deadline and still runs."""
    return PastDeadline("OUTCOME_UNKNOWN", PERHAPS, committed="unknown")


def halted(error: BaseException) -> Refused:
    """The writer has stopped for `error`; nothing is committed any more."""
    told = Refused("STORAGE_UNAVAILABLE", "the daemon has stopped writing", committed=False)
    told.__cause__ = error
    return told
