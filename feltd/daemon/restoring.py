"""Puts a backup where there is no database, so that the next start goes on from it safely.

The copy is examined first and compared again as it is written. The mark that is written beside it
names another history: the start then ends the claims that lived at the backup's time (`restored`),
sends their workers through reconciliation, and raises the floor of the tokens above all that were
issued since, by the wall clock in microseconds and by the mark that still lay there. A mark that
lies beside the target is what the lost database knew last: it is read, never trusted to be absent.
"""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from feltd.api.fresh import characters
from feltd.clock import wall_ms
from feltd.daemon.examining import Examined, compare, examine, refuse_live
from feltd.daemon.marks import CEILING_ROOM
from feltd.daemon.place import take_lock
from feltd.identity import keyring
from feltd.mesh import ledger
from feltd.store import copying, private, sidecar
from feltd.store.backup import RESERVE_BYTES, Manifest
from feltd.store.connect import RESTORING, StoreProblem, sync_folder
from feltd.store.sidecar import Mark

#: Before the name in the mark: no database is called so, hence the start knows it was put back.
RESTORED = "restored:"


class Restored(Struct, frozen=True):
    """What was put back: `signing_keys` says which keyring serves it now, and what that means."""

    path: str
    bytes: int
    sha256: str
    sequence: int
    schema: int
    created_at_ms: int | None
    broken: tuple[str, ...]
    keyring: str
    signing_keys: str


class Looked(NamedTuple):
    """A copy that was examined; `manifest` is None where none lies beside it."""

    manifest: Manifest | None
    examined: Examined


def look(file: Path) -> Looked:
    """Compare a copy with its manifest, then read all of it.

    Raises StoreProblem naming what is wrong: damaged, cut short, changed, another program's, newer
    than this feltd, or in use.
    """
    refuse_live(file)
    manifest = compare(file)
    return Looked(manifest, examine(file))


def restore(file: Path, target: Path, keyring_file: Path | None, ring_path: Path) -> Restored:
    """Put a copy at `target`, its mark beside it, and see that `ring_path` holds signing keys.

    `keyring_file` is a keyring to put there. Raises StoreProblem with nothing changed where a
    database or anything of one lies at the target, the copy is not whole, or it does not fit;
    LockHeld where a daemon has the target.
    """
    target = target.absolute()
    with take_lock(target):
        _refuse_remains(target)
        looked = look(file)
        ring = None if keyring_file is None else _ring(keyring_file, ring_path)
        sha256, size, told = _place(file, target, looked, lambda: _keep_ring(ring, ring_path))
    found = looked.examined.found
    return Restored(
        path=str(target),
        bytes=size,
        sha256=sha256,
        sequence=found["commit_seq"],
        schema=looked.examined.schema,
        created_at_ms=None if looked.manifest is None else looked.manifest.created_at_ms,
        broken=looked.examined.broken,
        keyring=str(ring_path),
        signing_keys=told,
    )


def _refuse_remains(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise StoreProblem(
            f"{target} exists already.",
            "Nothing was changed. Stop what serves it and move it away, or name another --data.",
        )
    for end in ("-wal", "-shm", "-journal"):
        if (beside := target.with_name(target.name + end)).exists():
            raise StoreProblem(
                f"{beside} is there: it belongs to the database that lay at {target}.",
                "Nothing was changed. Move it away together with that database.",
            )


def _place(
    file: Path, target: Path, looked: Looked, keep_ring: Callable[[], str]
) -> tuple[str, int, str]:
    """Write the copy under another name, its mark, its signing keys, and then give it its own.

    Its name comes last: wherever this is cut off, the same command still goes on.
    """
    draft = target.with_name(target.name + RESTORING)
    draft.unlink(missing_ok=True)
    found = os.statvfs(target.parent)
    size = file.stat().st_size
    if found.f_bavail * found.f_frsize < size + RESERVE_BYTES:
        raise StoreProblem(
            f"{target.parent} has no room for {size} bytes, {RESERVE_BYTES} of them left over.",
            "Nothing was changed. Name a --data on a larger disk.",
        )
    try:
        made = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(made, 0o600)
            sha256, size = copying.digest(file, into=made)
            os.fsync(made)
        finally:
            os.close(made)
        if looked.manifest is not None and sha256 != looked.manifest.sha256:
            raise StoreProblem(f"{file} changed while it was read.", "Use another backup.")
        sidecar.write(target, _mark(target, looked))
        told = keep_ring()
        # link, not rename: it refuses to take the place of a file that came meanwhile.
        os.link(draft, target)
    except OSError as error:
        raise StoreProblem(
            f"{target} cannot be made: {error.strerror}.",
            "Choose a folder this user can write to, with room for it.",
        ) from error
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(target)
    return sha256, size, told


def _mark(target: Path, looked: Looked) -> Mark:
    """The mark of a database that was put back: no token up to its ceiling is ever issued again."""
    found, last = looked.examined.found, sidecar.read(target)
    floors = [found["token_floor"], wall_ms() * 1_000, 0 if last is None else last.ceiling]
    if looked.manifest is not None:
        floors.append(looked.manifest.created_at_ms * 1_000)
    ceiling = min(max(floors) + CEILING_ROOM, ledger.TOKEN_MAX)
    return Mark(
        boot=sidecar.boot_id(),
        commit_seq=max(found["commit_seq"], 0 if last is None else last.commit_seq),
        audit_head=f"{found['audit_seq']}:{found['audit_hash']}",
        lease_ms=max(found["lease_ms"], 0 if last is None else last.lease_ms),
        ceiling=ceiling,
        # Its pages have just been read.
        clean=True,
        database=f"{RESTORED}{found['instance_id']}",
    )


def _ring(file: Path, ring_path: Path) -> bytes:
    """The keyring that was named, unless the folder has another one."""
    content = private.read(file)
    try:
        keyring.parse(content)
    except ValueError as error:
        raise StoreProblem(f"{file} {error}.", "Name the right file with --keyring.") from None
    if ring_path.exists() and private.read(ring_path) != content:
        raise StoreProblem(
            f"{ring_path} is another keyring, which serves the databases of its folder.",
            "Nothing was changed. Name a --data in a folder of its own, or leave --keyring out.",
        )
    return content


def _keep_ring(ring: bytes | None, ring_path: Path) -> str:
    """See that there are signing keys; what the operator must know of them, in a sentence."""
    if ring_path.exists():
        return (
            f"Signing keys: {ring_path}, which was there. Tokens of grants that it signed go on "
            "working, others are refused."
        )
    if ring is not None:
        private.create(ring_path, ring)
        return f"Signing keys: yours, now in {ring_path}. Tokens of grants go on working."
    private.create(ring_path, keyring.render(characters(8), secrets.token_bytes(32)))
    return (
        f"Signing keys: none came with the backup, so new ones were made in {ring_path}. Keys and "
        "users go on working, also keys bound to a grant; grant tokens handed out before are "
        "refused. To have them work again, put the old keyring in its place before the start."
    )
