"""The simulated daemon: the real rules and migrations, the real batches, time by hand.

Everything the daemon does between a call and its COMMIT runs here as it runs there: one batch in
one transaction, a savepoint an operation, credit before and the seal behind. What the machine does
to it is the seed's: clocks move, statements crash, replies get lost, an older file is put back.
"""

import math
import pickle
import sqlite3
import zlib
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from feltd.clock import Now
from feltd.config import Config
from feltd.daemon import start
from feltd.daemon.marks import CEILING_ROOM
from feltd.errors import Refused
from feltd.keeper import SLICES_MAX, rules
from feltd.mesh import events, ledger, vitals
from feltd.model.base import Ask
from feltd.state import promises
from feltd.store import batch as store_batch
from feltd.store.batch import Batch
from feltd.store.connect import memory
from feltd.store.guard import Guard
from feltd.store.lanes import Lanes, Operation
from feltd.store.sidecar import Mark
from feltd.store.tx import Tx
from tests.mesh.rebuilt import Lives
from tests.sim import edits, times
from tests.sim.calls import Call, watched
from tests.sim.faults import NONE, Crash, Fault, Line
from tests.sim.gifts import DECIDED
from tests.sim.history import Violation
from tests.sim.machine import LEFT_BEHIND, Backup, Clock, replaced
from tests.sim.oracle import Oracle

if TYPE_CHECKING:
    from tests.sim.followers import Follower

#: No file is at this path: the guard looks for one before each commit.
PATH = Path("simulated.db")
#: The keeper may be this late here without breaking a promise; each round is checked by itself.
SLACK_MS = 10**12
OUTAGE_MS = 3_000
#: Refusals whose writes stay.
KEPT = frozenset({"WORKER_CLOCK_INVALID"})


class World:
    """One daemon and its machine. `rng` is the only chance there is."""

    def __init__(self, rng: Random, at_ms: int, image: bytes | None = None) -> None:
        self.rng = rng
        self.clock = Clock(at_ms)
        self._open_image(image)
        self.config = Config()
        self.oracle = Oracle()
        self.backups: list[Backup] = []
        self.trace: list[str] = []
        self.mark: Mark | None = None
        self.fresh_number = 0
        self.followers: list[Follower] = []
        self.faults = True
        self._memo: dict[Any, Any] = {}
        self._link = promises.START
        self._lives = Lives()
        self._checked = -1
        self._guard = self._new_guard()
        self._credit: tuple[Now, int, bool] | None = None

    def close(self) -> None:
        """Give the memory back."""
        self.conn.close()

    def _open_image(self, image: bytes | None) -> None:
        """Open a database of its own; a connection that had another one before may crash on it."""
        self.conn: sqlite3.Connection = memory()
        if image is not None:
            self.conn.deserialize(image)
        self._line = Line(self.conn)

    @property
    def now(self) -> Now:
        """The present instant."""
        return self.clock.now()

    def fresh(self) -> str:
        """55 characters that no call before had."""
        self.fresh_number += 1
        return f"{self.fresh_number:012d}{self.rng.getrandbits(128):043d}"

    def note(self, text: str) -> None:
        """A line of the trace."""
        self.trace.append(f"{len(self.trace):4} {self.clock.lease_ms % 10**8:>8} {text}")

    # -- time --------------------------------------------------------------------------------

    def later(self, ms: int) -> None:
        """Both clocks go on while the daemon runs: it hears, though its keeper may be late."""
        while ms > 0:
            step_ms = min(ms, OUTAGE_MS)
            self.clock.lease_ms += step_ms
            self.clock.wall_ms += step_ms
            ms -= step_ms
            if ms > 0 or step_ms == OUTAGE_MS:
                self._run([Call("tick", ledger.read, None)])

    def stopped(self, ms: int) -> None:
        """The machine stands still for so long; nobody is heard meanwhile."""
        self.clock.lease_ms += ms
        self.clock.wall_ms += ms
        self.note(f"stopped for {ms} ms")

    def step_wall(self, ms: int) -> None:
        """Somebody sets the wall clock; lease time does not notice."""
        self.clock.wall_ms += ms
        self.note(f"wall clock moved by {ms} ms")

    # -- calls -------------------------------------------------------------------------------

    def perform(self, *calls: Call, fault: Fault = NONE) -> None:
        """Run calls as one batch, tell the oracle, look whether every promise holds.

        After a crash the daemon has been started again, and every call is `lost`.
        """
        looked = len(calls) == 1 and self.rng.random() < 0.2
        before = self._digest() if looked else 0
        if fault.kind in ("crash", "full") and not fault.at:
            fault = fault._replace(at=self.rng.randint(1, self.count(*calls)))
        try:
            self._run(list(calls), fault)
        except Crash:
            self.oracle.reached["crash"] += 1
            for call in calls:
                call.lost = True
                self.note(f"{call.asked()}: died at statement {fault.at}")
            self.restart()
            return
        for call in calls:
            call.lost = fault.kind == "lost"
            if call.lost:
                self.oracle.reached["lost"] += 1
                self.note(f"{call.verb}: nobody hears of it")
        refusal = calls[0].refusal
        kept = self._credit is not None or refusal is None or refusal.code in KEPT
        kept = kept or (calls[0].verb == "give" and refusal is not None and refusal.code in DECIDED)
        if looked and not kept and self._digest() != before:
            raise Violation(f"{calls[0].verb} was refused {calls[0].told()}, yet rows changed")
        self.check()

    def check(self) -> None:
        """Every promise holds, and the rows are what was acknowledged."""
        if self.conn.total_changes == self._checked:
            return
        self._checked = self.conn.total_changes
        tx = Tx(self.conn)
        broken = promises.ask(tx, None if self.mark is None else self.mark.commit_seq)
        self._link, wrong = promises.walk(tx, self._link)
        if broken or wrong or (untold := self._lives.wrong(tx)):
            raise Violation(str([*broken, *wrong] or untold))
        self.oracle.compare(tx)

    def _run(self, calls: list[Call], fault: Fault = NONE, *, rehearsal: bool = False) -> None:
        """One batch as the writer runs it. Raises Crash, the transaction rolled back."""
        lanes = Lanes()
        of_call = {}
        for call in calls:
            tenant = "tenant" if isinstance(call.cmd, Ask) else ""
            # Nobody waits on a loop here, so no future is needed.
            operation = Operation(
                watched(call),
                call.cmd,
                None,  # type: ignore[arg-type]
                call.keep_alive,
                tenant,
                0.0,
            )
            of_call[id(operation)] = call
            lanes.add(operation)
        self._credit = None
        self._line.arm(fault, rehearsal=rehearsal)
        batch = Batch(self._memo)
        bound_s, store_batch.BATCH_S_MAX = store_batch.BATCH_S_MAX, math.inf
        try:
            # A slow machine must not cut a batch in two: the seed alone decides.
            batch.run(self._line, lanes, self._open, self._close)  # type: ignore[arg-type]
        except Crash:
            if self.conn.in_transaction:
                self.conn.execute("ROLLBACK")
            self._memo.clear()
            raise
        finally:
            store_batch.BATCH_S_MAX = bound_s
        if rehearsal:
            self.conn.execute("ROLLBACK")
            self._memo.clear()
            return
        if not batch.committed:
            self.oracle.reached["full"] += 1
            self._memo.clear()
        self._guard.settle(batch)
        self._settle(batch, of_call)

    def _settle(self, batch: Batch, of_call: dict[int, Call]) -> None:
        """Each call gets its outcome, and the oracle hears of it in the order of the batch."""
        if batch.committed and self._credit is not None:
            self.oracle.credited(*self._credit)
            self.oracle.reached["credit"] += not self._credit[2]
            self.note(f"credit for {self._credit[1]} ms")
        for operation in batch.operations:
            call, refusal = of_call[id(operation)], operation.refusal
            if refusal is not None and not isinstance(refusal, Refused):
                raise Violation(f"{call.verb} is a fault of feltd: {refusal!r}") from refusal
            call.refusal, call.committed, call.now = refusal, batch.committed, self.now
            if call.verb != "tick":
                self.note(call.told())
            if batch.committed and call.verb != "tick":
                self.oracle.heard(call)

    def _open(self, tx: Tx) -> Now:
        return self._guard.open(self._line, tx)  # type: ignore[arg-type]

    def _close(self, tx: Tx, now: Now, changes: int) -> None:
        self._guard.close(tx, now, changes)

    def _before_batch(self, tx: Tx, now: Now, gap_ms: int, first: bool) -> None:
        vitals.credit(tx, now, gap_ms, first)
        self._credit = (now, gap_ms, first)

    def _before_commit(self, tx: Tx, now: Now) -> None:
        events.seal(tx, now)
        newest = ledger.newest_token(tx)
        if self.mark is not None and newest + CEILING_ROOM // 2 >= self.mark.ceiling:
            # On disk before the tokens are, so it outlives a crash of this very commit.
            self.mark = replaced(self.mark, ceiling=newest + CEILING_ROOM)

    def _new_guard(self) -> Guard:
        return Guard(PATH, self.clock.now, OUTAGE_MS, self._before_batch, self._before_commit, None)

    def count(self, *calls: Call) -> int:
        """How many statements a batch of these would run, BEGIN and COMMIT too; nothing stays."""
        self._run(list(calls), rehearsal=True)
        return self._line.crossed

    # -- the keeper --------------------------------------------------------------------------

    def keep(self, *, fault: Fault = NONE, limit: int | None = None) -> None:
        """One round of the keeper, in slices; with a fault in one of its entries."""
        table = rules(self.config)
        broken = self.rng.randrange(len(table)) if fault.kind != "none" else -1
        for place, entry in enumerate(table):
            bound = min(entry.limit, limit or entry.limit)
            for _ in range(SLICES_MAX):
                call = Call(entry.name, entry.op, bound, keep_alive=True)
                self.perform(call, fault=fault if place == broken else NONE)
                if not call.ok:
                    return
                many = isinstance(call.answer, tuple)
                count, next_ms = call.answer if many else (call.answer, None)
                # What is due already is not waited for: the keeper's timer fires at once.
                more = next_ms is not None and next_ms <= self.now.lease_ms
                if int(count or 0) < bound and not more:
                    break
            else:
                return
        self._note_mark()
        instants = {"now_ms": self.now.lease_ms, "wall_ms": self.now.wall_ms}
        left: list[Any] = [tuple(row) for row in self.conn.execute(LEFT_BEHIND, instants)]
        left += times.left(self.oracle.history, self.now) + self.oracle.lost()
        if left:
            raise Violation(f"the keeper left behind {left}")
        if adrift := edits.adrift(self.oracle.history, self.now):
            raise Violation(f"the keeper did not move {adrift}")

    def _note_mark(self) -> None:
        """Write the sidecar, as the keeper does each tick."""
        found = ledger.read(Tx(self.conn))
        assert self.mark is not None
        self.mark = replaced(
            self.mark,
            commit_seq=found["commit_seq"],
            audit_head=f"{found['audit_seq']}:{found['audit_hash']}",
            lease_ms=self.now.lease_ms,
        )

    # -- starts ------------------------------------------------------------------------------

    def restart(self, *, down_ms: int = 0, crash_at: int = 0) -> None:
        """The daemon ends and is started again, as feltd/daemon/start.py does it."""
        self.clock.wall_ms += down_ms
        self._memo.clear()
        found = ledger.read(Tx(self.conn))
        head = self._head()
        finding = start.find(found, self.mark, None, head)
        self.oracle.rolled_back = start.rolled_back(finding)
        self.oracle.reached["restored start"] += start.rolled_back(finding)
        self.note(f"start: {finding.label} {dict(finding.detail or {})}")
        stored_ms = max(found["lease_ms"], 0 if self.mark is None else self.mark.lease_ms)
        self.clock.begin(stored_ms)
        self._guard = Guard(PATH, self.clock.now, OUTAGE_MS, None, self._before_commit, None)
        call = Call("open_run", self._open_run, finding)
        try:
            self._run([call], Fault("crash", crash_at) if crash_at else NONE)
        except Crash:
            self.note(f"start: died at statement {crash_at}")
            self.restart()
            return
        self.oracle.rolled_back = False
        floor = int(call.answer)
        found = ledger.read(Tx(self.conn))
        self.mark = Mark(
            boot="simulated",
            commit_seq=found["commit_seq"],
            audit_head=f"{found['audit_seq']}:{found['audit_hash']}",
            lease_ms=self.now.lease_ms,
            ceiling=floor + CEILING_ROOM,
            clean=False,
            database=found["instance_id"],
        )
        self._guard = self._new_guard()
        self.check()
        self.keep()

    def _open_run(self, tx: Tx, finding: start.Finding, now: Now) -> int:
        ceiling = 0 if self.mark is None else self.mark.ceiling
        if start.rolled_back(finding):
            ledger.rename(tx, f"instance-{len(self.trace)}", now)
        floor = ledger.open_run(tx, ledger.Opening(ceiling, SLACK_MS, finding.label), now)
        if start.rolled_back(finding):
            vitals.restore(tx, now)
        return floor

    def _head(self) -> str | None:
        if self.mark is None:
            return None
        return ledger.audit_hash(Tx(self.conn), int(self.mark.audit_head.partition(":")[0]))

    def back_up(self) -> None:
        """A copy of the file, as an operator keeps one."""
        self.backups = self.backups[-1:]
        known = pickle.dumps((self.oracle.history, self._lives))
        self.backups.append(Backup(self.conn.serialize(), known))
        self.note("backed up")

    def restore(self, *, keep_mark: bool, crash_at: int = 0) -> None:
        """An earlier copy is put back under a stopped daemon, with its sidecar or without."""
        backup = self.rng.choice(self.backups)
        # Nobody makes a copy, goes on and puts it back all within one tick.
        self._note_mark()
        self.note(f"restored, sidecar {'kept' if keep_mark else 'lost'}")
        self.conn.close()
        self._open_image(backup.image)
        self.oracle.history, self._lives = pickle.loads(backup.known)
        self._link, self._checked = promises.START, -1
        if not keep_mark:
            self.mark = None
        self.restart(crash_at=crash_at)

    # -- looking -----------------------------------------------------------------------------

    def rows(self, sql: str, **params: Any) -> list[sqlite3.Row]:
        """What the rows say, for whoever plans the next step."""
        found: list[sqlite3.Row] = self.conn.execute(sql, params).fetchall()
        return found

    def _digest(self) -> int:
        """Of every page; only the header's two counters of commits are left out."""
        image = bytearray(self.conn.serialize())
        image[24:28] = image[92:96] = bytes(4)
        return zlib.crc32(image)
