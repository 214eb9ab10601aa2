"""The daemon follows its file of signing keys, so that a rotation needs no restart.

The commands change the file, whole or not at all; the daemon looks at it each round and takes what
it says: new tokens are signed by the new key, and what a retired one proved ends in the same round.
A file that cannot be read changes nothing: the keys in memory go on, and health says so.
"""

import asyncio
import os
from pathlib import Path

import structlog

from feltd.api.health import Health
from feltd.identity import keyring
from feltd.identity.keyring import Keyring
from feltd.mesh import signing
from feltd.store import private
from feltd.store.connect import StoreProblem
from feltd.store.writer import Writer

log = structlog.get_logger("feltd.signing")


def load(path: Path) -> Keyring:
    """The keyring of a file. Raises StoreProblem with the way out."""
    try:
        return keyring.parse(private.read(path))
    except ValueError as error:
        raise StoreProblem(
            f"{path} {error}.", "Name the right file with --keyring, or put a backup in its place."
        ) from None


class Following:
    """One file and the keyring in memory. Used on the event loop alone."""

    def __init__(self, path: Path, held: Keyring, writer: Writer, health: Health) -> None:
        self._path = path
        self._held = held
        self._writer = writer
        self._health = health
        self._seen: tuple[int, int, int] | None = None
        self._first = True
        #: What the ledger does not know yet: the keyring is followed before it can be told.
        self._rotated = False
        self._told: frozenset[str] = frozenset()

    async def look(self) -> None:
        """Take the file as it is now, if it changed since the last look."""
        stamp = await asyncio.to_thread(_stamp, self._path)
        if stamp == self._seen and not self._first:
            return
        try:
            found = await asyncio.to_thread(load, self._path)
        except StoreProblem as problem:
            self._health.note("KEYRING_UNREADABLE", f"{problem} The keys read before go on.")
            return
        self._health.note("KEYRING_UNREADABLE", None)
        self._rotated = self._rotated or found.kid != self._held.kid
        seen, retired = not self._first, found.retired - self._told
        # First no token of theirs opens, then what they proved goes: nothing comes in between.
        self._held.follow(found)
        if self._rotated or retired:
            moved = signing.Moved(found.kid, tuple(sorted(retired)), self._rotated, seen)
            # Where this fails all of it is told again in the next round.
            lost = await self._writer.submit(signing.follow, moved, keep_alive=True)
            if seen or lost:
                log.info("signing keys", active=found.kid, retired=sorted(retired), workers=lost)
        self._rotated, self._told = False, found.retired
        self._seen, self._first = stamp, False


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
