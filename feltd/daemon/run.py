"""One run of the daemon: open, serve, stop. Whatever fails on the way ends the process, non-zero.

A start either ends with the address on stdout or with a sentence on stderr. A stop goes from the
outside in: no new connections, polls woken, calls answered, the keeper's round ended, the last
commit, the checkpoint, the clean mark. A timer of its own ends what hangs.
"""

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from feltd import console
from feltd.api import tracing
from feltd.api.app import Context, application
from feltd.api.door import Door
from feltd.api.health import Health, Shared, durable_ledger
from feltd.api.listen import local_socket_path, raise_file_limit
from feltd.api.metrics import Metrics
from feltd.api.polls import Polls
from feltd.api.server import Server, ServerSettings
from feltd.clock import Now
from feltd.config import Config, Hooks
from feltd.daemon import signing, start
from feltd.daemon.backups import Backups
from feltd.daemon.chores import table
from feltd.daemon.compacting import Compacting
from feltd.daemon.crash import CrashPoint
from feltd.daemon.foreign import ForeignWrites
from feltd.daemon.handed import handed_sockets
from feltd.daemon.hangup import hang_up
from feltd.daemon.logs import LAST
from feltd.daemon.notify import notify, watchdog_every_ms
from feltd.daemon.pagecheck import check_pages
from feltd.daemon.replica import Replica
from feltd.errors import Refused
from feltd.identity import keyring
from feltd.keeper import Keeper
from feltd.mesh import events, ledger, measures, vitals
from feltd.store.lock import DataLock
from feltd.store.probe import Probe
from feltd.store.readers import Readers
from feltd.store.tx import Tx
from feltd.store.writer import Signals, Writer

if TYPE_CHECKING:
    from feltd.daemon.executing import Executing

#: Of graceful_ms, what the connections may take; the rest is for the last commits.
SERVING_SHARE = 0.7
#: Of graceful_ms, what the daemon's tasks may take after that; its own workers begin to end before.
TASKS_SHARE, EXECUTING_SHARE = 0.25, 0.45
#: How long the loop keeps the writer's thread from running Python, and it the loop: at Python's own
#: 5 ms a busy loop costs each statement of the writer as much.
SWITCH_S = 0.00005
#: A round trip of the watchdog that takes longer has not come back.
ROUND_TRIP_MS = 5_000
#: What a commit tells is to be done at a lease time: the keeper's entry that does it.
WAKES = {
    "due": "promote",
    "rate": "open_rates",
    "deadline": "end_timeouts",
    "settle": "settle_dependencies",
    "evaluate": "evaluate_triggers",
    "instant": "fire_schedules",
}

log = structlog.get_logger("feltd.daemon")


class Daemon:
    """The parts of one run. Made on the event loop, with the lock held."""

    opened: start.Opened
    writer: Writer
    readers: Readers
    metrics: Metrics
    health: Health
    context: Context
    keeper: Keeper
    server: Server
    compacting: Compacting
    backups: Backups

    def __init__(self, config: Config, hooks: Hooks, lock: DataLock) -> None:
        self.config = config
        self.lock = lock
        self.stop = asyncio.Event()
        #: The hold on everybody's work that stands, as a sentence; '' for none.
        self.held = ""
        #: Why it stops, when it did not choose to.
        self.fatal: BaseException | None = None
        #: Where each setting came from.
        self.config_from: Mapping[str, str] = {}
        #: The daemon's own workers; None unless it shall have some.
        self.executing: Executing | None = None
        self._hooks = hooks
        self._tasks: list[asyncio.Task[None]] = []
        self._timer: threading.Timer | None = None

    async def run(self, on_ready: Callable[[str], None]) -> int:
        """Serve until a signal or a fatal error; the exit code.

        `on_ready` gets the address once connections are taken, and behind it a hold on everybody's
        work that stands. Raises StoreProblem, ListenProblem
        or ConfigProblem when the start fails.
        """
        raise_file_limit(self.config.max_connections)
        sys.setswitchinterval(SWITCH_S)
        self._fds = handed_sockets(self.config)
        keys = signing.load(self.config.keyring_path)
        self.replica = Replica(self.config)
        self.opened = await start.open_database(self.config)
        self._make_writer()
        try:
            self.readers = await Readers.open(self.config.path, self.opened.clock.now)
            self._make_context(keys)
            await self._serve(on_ready)
        finally:
            await self._close()
        return 0 if self.fatal is None else 1

    def _make_writer(self) -> None:
        opened, config = self.opened, self.config
        self.health = Health(
            opened.finding,
            opened.clock,
            tick_ms=config.tick_ms,
            transport="https" if config.tls_cert else "http",
            auth=not config.no_auth,
        )
        self._note_held(opened.held)
        self.foreign = ForeignWrites(
            config.path, lambda: self.writer, self.health, self.stop, opened.marker.audit_head
        )
        crash = self._hooks.crash
        self.metrics = Metrics() if crash is None else CrashPoint(*crash)
        self.writer = Writer(
            opened.conn,
            config.path,
            opened.clock.now,
            tick_ms=config.tick_ms,
            before_batch=self._credit,
            before_commit=self._seal,
            after_commit=self._tell,
            on_foreign_write=self.replica.spared(self.foreign.note),
            on_fatal=self.die,
            observer=self.metrics,
        )
        self.replica.attach(self.writer, self.health)
        if opened.credited_ms:
            self._note_credit(opened.credited_ms)
        self.metrics.on_shed_keep_alive = self.writer.note_shed_keep_alive

    def _make_context(self, keys: keyring.Keyring) -> None:
        opened, config = self.opened, self.config
        probe = Probe(self.writer, self.readers)
        self.tracing = tracing.begin()
        self.context = Context(
            config=config,
            clock=opened.clock,
            writer=self.tracing.writer(self.writer),
            readers=self.readers,
            keyring=keys,
            door=Door(config),
            polls=Polls(),
            stop=self.stop,
            metrics=self.metrics,
            health=self.health,
            probe=probe,
            readiness=Shared(partial(durable_ledger, probe, self.readers)),
            schema_version=opened.schema_version,
        )
        settings = ServerSettings(
            host=config.host,
            port=config.port,
            fds=self._fds,
            local_path=local_socket_path(str(config.path)),
            max_connections=config.max_connections,
            max_connections_per_address=config.max_connections_per_address,
            graceful_ms=int(config.graceful_ms * SERVING_SHARE),
            tls_cert=config.tls_cert,
            tls_key=config.tls_key,
            trust_proxy=config.trust_proxy,
        )
        app = application(self.context, extra=console.ROUTES, refused_page=console.refused_page)
        self.server = Server(self.tracing.around(app), settings, stop=self.stop)
        self.context.connections = lambda: self.server.connections
        self.context.log_lines, self.context.config_from = LAST.lines, self.config_from
        self.context.compactor = self.compacting = Compacting(
            config, self.writer, self.readers, self.metrics, self.stop
        )
        self.backups = Backups(config, self.writer, self.health, self.stop)
        self.context.backups, self.context.backup_age_s = self.backups, self.backups.age_s
        self.health.keeper = self.keeper = Keeper(
            table(self),
            lambda op, limit: self.writer.submit(op, limit, keep_alive=True),
            opened.clock.now,
            config.tick_ms,
        )

    async def _serve(self, on_ready: Callable[[str], None]) -> None:
        if self.config.worker:
            # The worker's half of feltd, HTTP client and all: nobody else's start waits for it.
            from feltd.daemon.executing import Executing
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.begin_stop, signal.Signals(number).name)
        loop.add_signal_handler(signal.SIGHUP, hang_up, self)
        self.metrics.watch(self.context, await self.readers.read(measures.last_event, None))
        await self.context.door.fill(self.readers)
        # One round before the first call: credit is given, what lapsed meanwhile is settled.
        await self.keeper.round(everything=True)
        self._begin(self.keeper.run(self.stop))
        self._begin(self._feed_watchdog())
        self._begin(self.replica.run(self.stop))
        if self.opened.check_behind:
            self._begin(check_pages(self.config.path, self.health, self.stop))

        def listening(url: str) -> None:
            notify("READY=1", f"STATUS=serving {url}")
            found = self.health.finding
            path, held = str(self.config.path), self.held
            log.info("serving", url=url, database=path, storage=found.label, held=held)
            self.writer.slow_commit_ms = self._hooks.slow_commit_ms
            if isinstance(self.metrics, CrashPoint):
                self.metrics.serving()
            if self.config.worker:
                self.health.autonomous = True
                self.executing = Executing(self)
                self._begin(self.executing.run())
            on_ready(f"{url} ({held}; feltd hold delete lifts it)" if held else url)

        # What stands now stays: the collector need never look at it again.
        gc.freeze()
        if not self.stop.is_set():
            await self.server.serve(listening)

    def begin_stop(self, reason: str) -> None:
        """Stop in order, within graceful_ms; repeating changes nothing."""
        if self.stop.is_set():
            return
        log.info("stopping", reason=reason)
        self.health.stopping = "the daemon is stopping"
        notify("STOPPING=1", f"STATUS=stopping: {reason}")
        self._leave_in_time()
        self.stop.set()

    def _leave_in_time(self) -> None:
        """From now on the process ends within graceful_ms, by force if it must."""
        if self._timer is None:
            self._timer = threading.Timer(self.config.graceful_ms / 1_000, _leave)
            self._timer.daemon = True
            self._timer.start()

    async def _close(self) -> None:
        """The end, from the outside in. A clean mark only after a clean end."""
        self._leave_in_time()
        self.stop.set()
        if self._tasks:
            share = TASKS_SHARE if self.executing is None else EXECUTING_SHARE
            await asyncio.wait(self._tasks, timeout=self.config.graceful_ms / 1_000 * share)
        for task in self._tasks:
            task.cancel()
        if hasattr(self, "compacting"):
            await self.compacting.close()
            await self.foreign.close()
            await self.backups.close()
        found = None
        if self.writer.broken is None:
            try:
                found = await self.writer.submit(ledger.read, None)
            except Refused as refused:
                log.error("the last look at the ledger failed", detail=refused.detail)
        if hasattr(self, "readers"):
            await self.readers.close()
        if hasattr(self, "tracing"):
            await self.tracing.close()
        await self.writer.close()
        await self.replica.close()
        if found is not None and self.fatal is None and self.writer.broken is None:
            lease_ms = self.opened.clock.now().lease_ms
            self.opened.marker.follow(found, lease_ms, clean=True)
            log.info("stopped", commits=found["commit_seq"])
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.die(error)

    async def _feed_watchdog(self) -> None:
        """Tell systemd that the daemon lives, each time after a read and a write came back."""
        every_ms = watchdog_every_ms()
        if every_ms is None:
            return
        probe = Probe(self.writer, self.readers, bound_ms=ROUND_TRIP_MS)
        while not self.stop.is_set():
            try:
                await probe.ready()
                alive = True
            except Refused as refused:
                # A full disk comes back with an answer: a restart would not help it.
                alive = refused.code != "STORAGE_STALLED"
            if alive:
                notify("WATCHDOG=1")
            with suppress(TimeoutError):
                async with asyncio.timeout(every_ms / 1_000):
                    await self.stop.wait()

    # Hooks of the writer, on its thread

    def _credit(self, tx: Tx, now: Now, gap_ms: int, first: bool) -> None:
        # The start's own commit gave the credit of the first batch.
        if not first and vitals.credit(tx, now, gap_ms, False):
            self._note_credit(gap_ms)

    def _note_credit(self, gap_ms: int) -> None:
        now = self.opened.clock.now()
        self.health.recovering_until_ms = now.lease_ms + self.config.heartbeat_timeout_ms
        self.metrics.outage_credit_ms += gap_ms

    def _seal(self, tx: Tx, now: Now) -> None:
        events.seal(tx, now)
        self.opened.marker.before_commit(tx, now)
        if isinstance(self.metrics, CrashPoint):
            self.metrics.before_commit()

    # Hooks of the writer, on the event loop

    def _tell(self, signals: Signals) -> None:
        for topic, key in signals:
            if (entry := WAKES.get(topic)) is not None:
                self.keeper.expect(entry, int(key))
                continue
            if topic == "trigger":
                log.warning("trigger", told=key)
                continue
            if topic == "held":
                self._note_held(key)
                continue
            self.context.door.told(topic, key)
            self.context.polls.told(topic, key)
            if self.executing is not None:
                self.executing.told(topic, key)

    def _note_held(self, held: str) -> None:
        self.held = held
        self.health.note("CLAIMS_HELD", held or None)

    def die(self, error: BaseException) -> None:
        """Stop in order because of an error that no repetition can mend; the exit code is 1."""
        if self.fatal is None:
            self.fatal = error
            log.critical("the daemon cannot go on", error=repr(error))
        self.begin_stop("fatal error")


def _leave() -> None:
    """End the process by force when the stop hangs: a supervisor would only do it later."""
    os.write(2, b'{"event": "the stop took longer than graceful_ms; leaving"}\n')
    os._exit(1)
