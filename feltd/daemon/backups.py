"""The backups of one daemon: one at a time, each in a process of its own, and how old the last is.

The loop only starts the process and hears how it goes. What it made is written into the ledger; a
failure stands in the health until one succeeds. At the stop the process is let go of, and takes
what it had begun with it.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from feltd.api.backups import BackupList, Underway
from feltd.api.health import Health
from feltd.clock import wall_ms
from feltd.config import Config
from feltd.daemon import backup_job
from feltd.daemon.aside import Aside
from feltd.daemon.backup_job import Order, Said
from feltd.errors import Refused
from feltd.identity.answers import KEPT_MS
from feltd.mesh import backups
from feltd.store import backup
from feltd.store.backup import Manifest
from feltd.store.writer import Writer

#: A job that was let go of has only files to remove.
LET_GO_S = 2.0
#: The folder is looked at again after this: others may clear it, or copy it away.
LOOK_EVERY_MS = 60_000
#: Keys of requests that began or joined one, remembered until the daemon ends; the newest.
KEYS_MAX = 1_000
#: One line of a job: a manifest with every promise broken.
LINE_BYTES_MAX = 1024 * 1024

T = TypeVar("T")

log = structlog.get_logger("feltd.backup")


class Making:
    """One backup, from when it was asked for."""

    task: "asyncio.Task[Manifest]"

    def __init__(self, by: str) -> None:
        self.by = by
        self.said = Said(phase="copy")
        self.started_at_ms = wall_ms()
        self.started_s = time.monotonic()

    @property
    def forgotten(self) -> bool:
        """Whether its key begins another: it failed, or the key is a day old."""
        task = self.task
        failed = task.done() and (task.cancelled() or task.exception() is not None)
        return failed or time.monotonic() - self.started_s > KEPT_MS / 1_000

    def told(self) -> Underway:
        """How far it is."""
        said = self.said
        return Underway(
            state="running",
            phase=said.phase,
            bytes=said.bytes,
            total_bytes=said.total_bytes,
            wal_bytes=said.wal_bytes,
            started_at_ms=self.started_at_ms,
            by=self.by,
        )


class Backups:
    """Made and used on the event loop. `stop` is the daemon's."""

    def __init__(self, config: Config, writer: Writer, health: Health, stop: asyncio.Event) -> None:
        self._config = config
        self._writer = writer
        self._health = health
        self._stop = stop
        self._making: Making | None = None
        self._of_key: dict[tuple[str, str], Making] = {}
        self._newest: Manifest | None = None
        self._looked = False
        self._aside = Aside()

    def begin(self, by: str, key: tuple[str, str] | None = None) -> Making:
        """Begin one, or join the one that runs, or the one begun or joined under this key.

        One that failed is not joined under a key: then another is begun.
        """
        known = self._of_key.get(key) if key is not None else None
        if known is not None and not known.forgotten:
            return known
        making = self._making
        if making is None or making.task.done():
            making = self._making = Making(by)
            making.task = asyncio.get_running_loop().create_task(self._make(making))
            making.task.add_done_callback(_looked_at)
        if key is not None:
            self._of_key[key] = making
            while len(self._of_key) > KEYS_MAX:
                del self._of_key[next(iter(self._of_key))]
        return making

    async def listing(self) -> BackupList:
        """The backups of this database, and the one being made. Refuses as `look` does."""
        found = await self.look()
        making = self._making
        running = making is not None and not making.task.done()
        return BackupList(
            items=found,
            folder=str(self._config.backup_path),
            running=making.told() if making is not None and running else None,
        )

    async def look(self) -> tuple[Manifest, ...]:
        """The keeper's chore: see what lies in the folder; the first time, clear what a crash left.

        Refuses STORAGE_UNAVAILABLE, also where the folder does not answer: a round waits no longer.
        """
        folder = self._config.backup_path
        if not self._looked:
            await self._do(partial(_sweep, folder))
            self._looked = True
        listed = await self._do(partial(backup.listing, folder))
        found = tuple(one for one in listed if one.database == str(self._config.path))
        self._newest = backup.newest_verified(found, self._config.path, wall_ms())
        return found

    def age_s(self) -> float:
        """Seconds since the newest verified backup was asked for; -1 where there is none."""
        if self._newest is None:
            return -1.0
        return backup.age_ms(self._newest, wall_ms()) / 1_000

    async def close(self) -> None:
        """After the stop was told: the one at work is given up, nothing of it is left."""
        if self._making is not None:
            self._making.task.cancel()
            await asyncio.wait((self._making.task,), timeout=2 * LET_GO_S)

    async def _do(self, work: Callable[[], T]) -> T:
        folder = self._config.backup_path
        try:
            return await self._aside.run(work)
        except TimeoutError as hung:
            told = f"the backup folder {folder} does not answer"
            raise Refused("STORAGE_UNAVAILABLE", told, committed=False) from hung
        except OSError as error:
            raise backup.unusable(folder, error) from error

    async def _make(self, making: Making) -> Manifest:
        try:
            said = await self._run(making)
            if said.made is None:
                raise Refused(said.code, said.detail, committed=False)
        except Refused as refused:
            self._health.note("BACKUP_FAILED", f"the last backup failed: {refused.detail}")
            log.error("backup failed", code=refused.code, detail=refused.detail, by=making.by)
            raise
        made = said.made
        self._tell(making, made, said.removed)
        await self._writer.submit(
            backups.made, backups.Made(making.by, made.path, made.sequence, made.sha256)
        )
        # It is made and told of, also where its folder does not answer now.
        with suppress(Refused):
            await self.look()
        return made

    def _tell(self, making: Making, made: Manifest, removed: tuple[str, ...]) -> None:
        told = None
        if made.broken:
            told = f"the last backup breaks {len(made.broken)} promises: {made.broken[0]}"
        self._health.note("BACKUP_FAILED", told)
        log.info(
            "backup made",
            path=made.path,
            bytes=made.bytes,
            sequence=made.sequence,
            verified=made.verified_at_ms is not None,
            broken=list(made.broken),
            took_ms=int((time.monotonic() - making.started_s) * 1_000),
            wal_bytes=making.said.wal_bytes,
            removed=list(removed),
            by=making.by,
        )

    async def _run(self, making: Making) -> Said:
        """The job's last line; what it said before is how far `making` is."""
        config = self._config
        order = Order(str(config.path), str(config.backup_path), config.backup_keep)
        try:
            process = await asyncio.create_subprocess_exec(
                *backup_job.arguments(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=LINE_BYTES_MAX,
            )
        except OSError as error:
            told = f"no process for a backup could be started: {error.strerror}"
            raise Refused("STORAGE_UNAVAILABLE", told, committed=False) from error
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        crying = asyncio.ensure_future(process.stderr.read())
        try:
            process.stdin.write(backup_job.order_line(order))
            async for line in process.stdout:
                said = backup_job.heard(line)
                if said.made is not None or said.code:
                    return said
                making.said = said
            why = (await crying).decode(errors="replace").strip().splitlines()[-1:]
            told = f"the backup's process ended: {why[0] if why else 'without a word'}"
            raise Refused("STORAGE_UNAVAILABLE", told, committed=False)
        except (msgspec.DecodeError, ValueError) as error:
            told = f"the backup's process said what cannot be read: {error}"
            raise Refused("STORAGE_UNAVAILABLE", told, committed=False) from error
        finally:
            crying.cancel()
            await _let_go(process)
            # Whatever it could not clear up itself; one that was made has its name by now.
            with suppress(Refused):
                await self._do(partial(_sweep, config.backup_path))


async def _let_go(process: asyncio.subprocess.Process) -> None:
    """End a job, whether it has ended by itself or not."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(LET_GO_S):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _sweep(folder: Path) -> None:
    """Clear what a crash left in the folder, unless somebody writes into it now."""
    if folder.is_dir():
        with suppress(Refused), backup.held(folder):
            pass


def _looked_at(task: "asyncio.Task[Manifest]") -> None:
    if not task.cancelled():
        # Looked at here too: those who waited for it may all have gone.
        task.exception()
