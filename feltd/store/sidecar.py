"""The mark beside the database: what a former run knew, kept where a restored file cannot hide it.

`<data>.mark` is written whole or not at all: a new file, synced, renamed over the old one, the
folder synced. It is small and holds no secret. Callers keep it off the event loop: two fsyncs.
"""

import os
from pathlib import Path

import msgspec

from feltd.store.connect import sync_folder


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was true when it was written.

    `boot` is the machine's boot id; `commit_seq` and `audit_head` are the database's newest;
    `lease_ms` the lease time; no token above `ceiling` was issued; `clean` says the daemon had
    stopped in order; `database` is the database's instance id.
    """

    boot: str
    commit_seq: int
    audit_head: str
    lease_ms: int
    ceiling: int
    clean: bool
    database: str


def mark_path(path: Path) -> Path:
    """Where the mark of the database at `path` lies."""
    return path.with_name(path.name + ".mark")


def read(path: Path) -> Mark | None:
    """The mark beside the database at `path`; None when there is none or it cannot be understood.

    Both mean the same to a start: nothing is known of the former run.
    """
    try:
        return msgspec.json.decode(mark_path(path).read_bytes(), type=Mark)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def write(path: Path, mark: Mark) -> None:
    """Replace the mark beside the database at `path`; on disk when this returns.

    Mode 0600. Raises OSError, the old mark in place.
    """
    target = mark_path(path)
    draft = target.with_name(target.name + ".new")
    flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(draft, flags, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(mark) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(target)


def boot_id() -> str:
    """This boot of the machine, so that a person sees in which one a mark was written."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
