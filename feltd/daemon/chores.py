"""What the keeper does beside the rules: checkpoint, watch disk and WAL, mark, check writes.

Each is awaited in its round, bounded, and silent when there is nothing to do.
"""

import asyncio
import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from feltd.api import samples
from feltd.api.health import DISK_FREE_BYTES_MIN, WAL_BYTES_MAX
from feltd.api.metrics import free_bytes
from feltd.daemon import backups
from feltd.daemon.aside import Aside
from feltd.daemon.auditfile import AuditFile
from feltd.daemon.place import ALONE
from feltd.daemon.signing import Following
from feltd.errors import Refused
from feltd.identity import keys
from feltd.keeper import Chore, Entry, rules
from feltd.mesh import audited, ledger, measures
from feltd.store.lock import LockHeld

if TYPE_CHECKING:
    from feltd.daemon.run import Daemon

#: The writer checkpoints by itself under load; this empties the WAL of a quiet daemon.
CHECKPOINT_EVERY_MS = 30_000
PROBE_EVERY_MS = 1_000
#: last_used_at_ms is kept to the minute.
NOTE_KEY_USE_EVERY_MS = 15_000
#: What ends within a week is looked for this often.
EXPIRIES_EVERY_MS = 60_000
#: Pages of the audit that one round puts into its file: 20,000 rows, far more than a tick makes. A
#: new mirror of a long chain takes rounds, and nobody's lease waits for it.
AUDIT_PAGES_MAX = 20
#: Entries that make work of changes and instants.
STARTING = frozenset({"evaluate_triggers", "fire_schedules"})


def table(daemon: "Daemon") -> tuple[Entry | Chore, ...]:
    """The whole periodic table of a daemon, in the order of a round."""
    chores = Chores(daemon)
    alone = os.environ.get(ALONE) == "1"
    return (
        *(one for one in rules(daemon.config) if not (alone and one.name in STARTING)),
        Chore("compact", daemon.config.compact_every_ms, daemon.compacting.begin),
        Chore("checkpoint", CHECKPOINT_EVERY_MS, chores.checkpoint),
        Chore("backups", backups.LOOK_EVERY_MS, daemon.backups.look),
        Chore("probe", PROBE_EVERY_MS, chores.probe),
        Chore("note_key_use", NOTE_KEY_USE_EVERY_MS, chores.note_key_use),
        Chore("expiries", EXPIRIES_EVERY_MS, chores.expiries),
        Chore("samples", samples.EVERY_MS, daemon.context.samples.take),
        Chore("check_foreign_writes", 0, daemon.foreign.begin),
        Chore("lock", 0, chores.lock),
        Chore("signing_keys", 0, chores.signing_keys),
        Chore("mark", 0, chores.mark),
        *((Chore("audit_file", 0, chores.audit_file),) if daemon.config.audit else ()),
    )


class Chores:
    """The chores of one daemon."""

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon = daemon
        self._signing = Following(
            daemon.config.keyring_path, daemon.context.keyring, daemon.writer, daemon.health
        )
        self._audit = None if (path := daemon.config.audit_path) is None else AuditFile(path)
        #: Where the mirror is written: it may lie on another disk, which may hang.
        self._aside = Aside()

    async def checkpoint(self) -> None:
        """Move committed pages into the file, where some wait."""
        if self._daemon.writer.wal_pages:
            await self._daemon.writer.checkpoint()

    async def probe(self) -> None:
        """Note what the writer, the WAL and the disk are short of."""
        writer, health = self._daemon.writer, self._daemon.health
        if writer.trouble is not None and writer.broken is None:
            # Nobody may write for hours: the daemon finds out by itself that the trouble is over.
            with suppress(Refused):
                await self._daemon.context.probe.durable()
        trouble = writer.broken or writer.trouble
        health.note("STORAGE_FAILING", None if trouble is None else f"last commit: {trouble}")
        wal_bytes = writer.wal_bytes
        health.note(
            "WAL_LARGE",
            f"the write-ahead log holds {wal_bytes} bytes: somebody keeps a read open"
            if wal_bytes > WAL_BYTES_MAX
            else None,
        )
        free = free_bytes(self._daemon.config.path)
        health.note(
            "DISK_LOW",
            f"{free} bytes are left beside the database" if free < DISK_FREE_BYTES_MIN else None,
        )
        health.look()  # so that each reason tells since when, though nobody asked at that time

    async def note_key_use(self) -> None:
        """Write down when keys were last used, a few hundred at a time."""
        used = self._daemon.context.door.take_used()
        if used:
            await self._daemon.writer.submit(keys.note_used, used)

    async def expiries(self) -> None:
        """Say in health what will end within a week, before somebody's work stops by it."""
        grants, keys = await self._daemon.readers.read(measures.expiring, None)
        told = " and ".join(
            f"{count} {noun}{'' if count == 1 else 's'}"
            for count, noun in ((grants, "grant"), (keys, "key"))
            if count
        )
        self._daemon.health.note(
            "EXPIRING", f"within 7 days end {told}: feltd doctor names them" if told else None
        )

    async def lock(self) -> None:
        """Hold the lock on, also when somebody removed its file; end when another has it."""
        try:
            await asyncio.to_thread(self._daemon.lock.renew)
        except LockHeld as held:
            self._daemon.die(held)

    async def signing_keys(self) -> None:
        """Take a changed file of signing keys."""
        await self._signing.look()

    async def mark(self) -> None:
        """Write the mark beside the database, when it would say something new."""
        daemon = self._daemon
        found = await daemon.readers.read(ledger.read, None)
        lease_ms = daemon.opened.clock.now().lease_ms
        await asyncio.to_thread(daemon.opened.marker.follow, found, lease_ms)

    async def audit_file(self) -> None:
        """Append the audit rows that are new to the file the operator named, so many a round."""
        file, daemon = self._audit, self._daemon
        assert file is not None
        await self._aside.run(file.look)
        for _ in range(AUDIT_PAGES_MAX):
            place = audited.Place(file.seq or 0, file.hash)
            ahead = await daemon.readers.read(audited.ahead, place)
            told = f"{file.path}: {ahead.trouble}: compare (feltd check --audit), move it away"
            daemon.health.note("AUDIT_FILE", told if ahead.trouble else None)
            if ahead.trouble:
                file.forget()
                return
            if ahead.rows:
                await self._aside.run(partial(file.append, ahead.rows))
            if len(ahead.rows) < audited.AHEAD_ROWS:
                return
