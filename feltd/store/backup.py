"""The folder of backups: whole copies of a database, each with a manifest, and how many are kept.

A copy has its final name only once it is whole, synced and verified; its manifest is there before
it. What a crash leaves behind ends in `.partial` and is cleared by the next backup. Nothing here
opens the database itself: a copy is a file like any other.
"""

import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from feltd.errors import Refused
from feltd.store.connect import sync_folder

PREFIX, SUFFIX, MANIFEST, PARTIAL = "feltd-", ".db", ".json", ".partial"
LOCK = ".feltd-backup.lock"
#: How the names begin that are given here: of others, also of feltd's, nothing is cleared away.
OURS = re.compile(r"feltd-\d{8}T\d{6}Z-\d+[-.]")
#: Free bytes that a copy leaves: below them the daemon calls the disk low.
RESERVE_BYTES = 64 * 1024 * 1024
#: Far above any manifest.
MANIFEST_BYTES_MAX = 256 * 1024
HASH_BYTES = 1024 * 1024
#: The year 2200: no clock says more, and tokens that grow with it stay in their range.
INSTANT_MS_MAX = 7_258_118_400_000
#: How often a folder that another backup has is tried again, seconds.
TRY_EVERY_S = 0.2


Count = Annotated[int, Meta(ge=0, le=2**53)]
Instant = Annotated[int, Meta(ge=0, le=INSTANT_MS_MAX)]


class Manifest(Struct, frozen=True, kw_only=True):
    """What lies in a backup, written beside it.

    `path` is the copy, absolute; `sequence` its newest commit, `audit_seq` and `audit_hash` its
    newest audit row; `created_at_ms` is wall time when it was asked for; `version` the feltd that
    made it and `schema` the database's; `database` the file it is of. `verified_at_ms` is wall
    time once its pages and every promise were found to hold, None where one is `broken`.
    """

    path: str
    bytes: Count
    sha256: str
    sequence: Count
    created_at_ms: Instant
    version: str
    schema: Count
    audit_seq: Count
    audit_hash: str
    instance_id: str
    database: str
    verified_at_ms: Instant | None
    broken: tuple[str, ...] = ()


def listing(folder: Path) -> tuple[Manifest, ...]:
    """Every backup in a folder, newest first; none where the folder is missing.

    Told from the manifests and the sizes of their files; no copy is opened. Raises OSError where
    the folder may not be read.
    """
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return ()
    found = []
    for name in names:
        if name.startswith(PREFIX) and name.endswith(SUFFIX):
            one = manifest_of(folder / name)
            if one is not None and _size(folder / name) == one.bytes:
                found.append(one)
    return tuple(sorted(found, key=lambda one: (one.created_at_ms, one.path), reverse=True))


def newest_verified(found: tuple[Manifest, ...], database: Path, now_ms: int) -> Manifest | None:
    """The newest of them that is of this database and was found whole, promises and all.

    The one nearest to `now_ms`: what was made while a clock was ahead is as old as it was ahead.
    """
    whole = [
        one for one in found if one.database == str(database) and one.verified_at_ms is not None
    ]
    return min(whole, key=lambda one: abs(now_ms - one.created_at_ms), default=None)


def age_ms(one: Manifest, now_ms: int) -> int:
    """How far the instant of a backup is from now, on either side: a clock may have been ahead."""
    return abs(now_ms - one.created_at_ms)


def manifest_of(copy: Path) -> Manifest | None:
    """The manifest beside a copy, its path being where the copy is now; None for none or no such.

    Raises OSError where it may not be read.
    """
    try:
        return read_manifest(copy)
    except ValueError:
        return None


def read_manifest(copy: Path) -> Manifest | None:
    """The same, where a file that is no manifest is not taken for none.

    Raises ValueError then: a pipe, a folder, something far too large, no JSON, nonsense in it.
    """
    file = copy.with_suffix(MANIFEST)
    try:
        # A pipe would be waited for.
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError(f"{file} is no plain file")
        content = b""
        while (left := MANIFEST_BYTES_MAX + 1 - len(content)) and (part := os.read(handle, left)):
            content += part
    finally:
        os.close(handle)
    try:
        if len(content) > MANIFEST_BYTES_MAX:
            raise ValueError("too long")
        found = msgspec.json.decode(content, type=Manifest)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is no manifest: {error}") from None
    return replace(found, path=str(copy.absolute()))


def prepare(folder: Path) -> None:
    """Make the folder, mode 0700, unless it is there.

    Refuses STORAGE_UNAVAILABLE where it cannot be made, or others could put files into it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise unusable(folder, error) from error
    if found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o022:
        mode = stat.S_IMODE(found.st_mode)
        raise Refused(
            "STORAGE_UNAVAILABLE",
            f"others could change what lies in {folder} (mode {mode:04o}): give it to the user "
            "that runs feltd and run chmod go-w on it, or name another --backup-dir",
            committed=False,
        )


@contextmanager
def held(folder: Path, patience_s: float = 0.0) -> Iterator[None]:
    """The folder for one backup alone, what crashes left in it cleared first.

    Refuses STORAGE_BUSY when another backup is being written there for longer than `patience_s`.
    """
    try:
        handle = os.open(
            folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
    except OSError as error:
        raise unusable(folder, error) from error
    try:
        _lock(handle, folder, time.monotonic() + patience_s)
        clear(folder)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path, until_s: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < until_s:
                time.sleep(TRY_EVERY_S)
                continue
            told = f"another backup is being written into {folder}"
            raise Refused("STORAGE_BUSY", told, committed=False) from None
        return


def clear(folder: Path) -> list[str]:
    """Remove unfinished copies and manifests without one; the names. For who has it `held`."""
    names = set(os.listdir(folder))
    gone = [
        name
        for name in sorted(names)
        if OURS.match(name)
        and (
            PARTIAL in name
            or (name.endswith(MANIFEST) and name.removesuffix(MANIFEST) + SUFFIX not in names)
        )
    ]
    for name in gone:
        # What is no file is none of ours.
        with suppress(IsADirectoryError):
            (folder / name).unlink(missing_ok=True)
    return gone


def draft_in(folder: Path, created_at_ms: int) -> Path:
    """A new empty file (mode 0600) for a copy that is begun at this instant."""
    draft = folder / f"{PREFIX}{_stamp(created_at_ms)}-{os.getpid()}{SUFFIX}{PARTIAL}"
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        made = os.open(draft, flags, 0o600)
        os.fchmod(made, 0o600)
        os.close(made)
    except OSError as error:
        raise unusable(folder, error) from error
    return draft


def drop(draft: Path) -> None:
    """Remove an unfinished copy, and what SQLite had beside it."""
    for end in ("", "-journal", "-wal", "-shm"):
        draft.with_name(draft.name + end).unlink(missing_ok=True)


def publish(draft: Path, manifest: Manifest) -> Manifest:
    """Give a verified copy its name and its manifest; both are on disk when this returns.

    The manifest comes first: a copy with its final name always has one. A name that is taken is
    counted up.
    """
    folder = draft.parent
    base = f"{PREFIX}{_stamp(manifest.created_at_ms)}-{manifest.sequence}"
    name, tries = base, 1
    while (folder / (name + SUFFIX)).exists():
        tries += 1
        name = f"{base}-{tries}"
    copy = folder / (name + SUFFIX)
    made = replace(manifest, path=str(copy.absolute()))
    note = copy.with_suffix(MANIFEST + PARTIAL)
    flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(note, flags, 0o600), "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(made), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    note.rename(copy.with_suffix(MANIFEST))
    draft.rename(copy)
    sync_folder(copy)
    return made


def rotate(folder: Path, keep: int, made: Manifest) -> list[str]:
    """After `made`: remove the oldest backups of its database beyond `keep`; their paths.

    Neither `made` nor the newest verified one is removed, however many unverified ones came after
    that. Those of other databases are not counted and not touched, nor are those of another one
    that lies at the same path: on another machine, or before this one was put back. Where the clock
    was ahead and is no more, what it dated into the future counts as the oldest.
    """
    mine = [
        one
        for one in listing(folder)
        if (one.database, one.instance_id) == (made.database, made.instance_id)
    ]
    mine.sort(key=lambda one: one.created_at_ms > made.created_at_ms)
    safe = newest_verified(tuple(mine), Path(made.database), made.created_at_ms)
    stays = {made.path, made.path if safe is None else safe.path}
    gone = [one.path for one in mine[keep:] if one.path not in stays]
    for path in gone:
        # The copy first: a manifest alone says nothing, a copy alone would never be cleared.
        Path(path).unlink(missing_ok=True)
        Path(path).with_suffix(MANIFEST).unlink(missing_ok=True)
    if gone:
        sync_folder(Path(gone[0]))
    return gone


def unusable(folder: Path, error: OSError) -> Refused:
    """What an error of the file system means for a backup."""
    if error.errno in (28, 122):  # ENOSPC, EDQUOT
        return Refused("STORAGE_FULL", f"no room for a backup in {folder}", committed=False)
    told = f"the backup folder {folder} cannot be used: {error.strerror}"
    return Refused("STORAGE_UNAVAILABLE", told, committed=False)


def _stamp(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y%m%dT%H%M%SZ")


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return -1
