"""One operation, begun again and again from the same database, that dies somewhere else each time.

Everything between the call and its COMMIT runs as the writer runs it: the batch, its savepoints,
the hooks around it. A dead process leaves an open transaction, which SQLite takes back; what goes
on afterwards is another process on the same file.
"""

import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from feltd.clock import Now
from feltd.errors import Refused
from feltd.mesh import events
from feltd.state import promises
from feltd.store import batch as store_batch
from feltd.store.batch import Batch
from feltd.store.connect import memory
from feltd.store.guard import Guard
from feltd.store.lanes import Lanes, Operation
from feltd.store.tx import Tx
from tests.sim.faults import NONE, Crash, Fault, Line

#: No file is at this path: the guard looks for one before each commit.
PATH = Path("nowhere.db")
OUTAGE_MS = 3_000

Rule = Callable[[Tx, Any, Now], Any]


class Story(NamedTuple):
    """What dies. `begin` is the database before it, `steps` what is run in its order.

    `look` holds what must be true once all of it has been done, however often it was begun: it
    raises AssertionError otherwise. `refused`: the steps refuse the second time, and rightly.
    """

    image: bytes
    now: Now
    steps: tuple[tuple[Rule, Any], ...]
    look: Callable[["Disk"], None]
    refused: str = ""


class Disk:
    """A copy of the story's database, and the process that has it open."""

    def __init__(self, story: Story) -> None:
        self.now = story.now
        self.conn: sqlite3.Connection = memory()
        self.conn.deserialize(story.image)
        self._line = Line(self.conn)
        self._begin()

    def close(self) -> None:
        """Give the memory back."""
        self.conn.close()

    def run(self, rule: Rule, cmd: Any, fault: Fault = NONE) -> Any:
        """One batch of one operation; its answer. Raises what refused it, or Crash."""
        lanes, given = Lanes(), []

        def watched(tx: Tx, cmd: Any, now: Now) -> Any:
            given.append(rule(tx, cmd, now))
            return given[-1]

        # Nobody waits on a loop here, so no future is needed.
        operation = Operation(watched, cmd, None, True, "", 0.0)  # type: ignore[arg-type]
        lanes.add(operation)
        self._line.arm(fault)
        batch = Batch(self._memo)
        try:
            with patient():
                batch.run(self._line, lanes, self._open, self._guard.close)  # type: ignore[arg-type]
        except Crash:
            self.restart()
            raise
        self._guard.settle(batch)
        if not batch.committed:
            self._memo.clear()
        if operation.refusal is not None:
            raise operation.refusal
        assert batch.committed
        if fault.kind == "lost":
            self.restart()
            raise Crash("nobody heard of it")
        return given[-1]

    def restart(self) -> None:
        """The process is gone; another one opens the file."""
        if self.conn.in_transaction:
            self.conn.execute("ROLLBACK")
        self._begin()

    def crossed(self) -> int:
        """Statements of the last batch, BEGIN and COMMIT too."""
        return self._line.crossed

    def rows(self, sql: str, **params: Any) -> list[tuple[Any, ...]]:
        """What the rows say."""
        return [tuple(row) for row in self.conn.execute(sql, params).fetchall()]

    def holds(self) -> None:
        """Every promise is kept."""
        tx = Tx(self.conn)
        broken = promises.ask(tx) + promises.walk(tx)[1]
        assert not broken, broken

    def _begin(self) -> None:
        self._line.arm(NONE)
        self._memo: dict[Any, Any] = {}
        self._guard = Guard(PATH, lambda: self.now, OUTAGE_MS, None, events.seal, None)

    def _open(self, tx: Tx) -> Now:
        return self._guard.open(self._line, tx)  # type: ignore[arg-type]


@contextmanager
def patient() -> Iterator[None]:
    """A slow machine must not cut a batch in two."""
    bound_s, store_batch.BATCH_S_MAX = store_batch.BATCH_S_MAX, math.inf
    try:
        yield
    finally:
        store_batch.BATCH_S_MAX = bound_s


def statements(story: Story) -> list[int]:
    """How many statements each step takes when nothing goes wrong; the story holds then."""
    disk, found = Disk(story), []
    for rule, cmd in story.steps:
        disk.run(rule, cmd)
        found.append(disk.crossed())
    disk.holds()
    story.look(disk)
    disk.close()
    return found


def die(story: Story, kind: str, step: int, at: int) -> None:
    """Let one step meet its fault, then do all that is left, and the step itself, once more."""
    disk = Disk(story)
    for number, (rule, cmd) in enumerate(story.steps):
        if number == step:
            _meet(disk, rule, cmd, Fault(kind, at))  # type: ignore[arg-type]
            # What committed does not come twice; what did not is not there in part.
            disk.holds()
        _go_on(disk, rule, cmd, story.refused if number == step and kind == "lost" else "")
    disk.holds()
    story.look(disk)
    disk.close()


def _meet(disk: Disk, rule: Rule, cmd: Any, fault: Fault) -> None:
    with pytest.raises((Crash, Refused)) as met:
        disk.run(rule, cmd, fault)
    assert isinstance(met.value, Crash) or met.value.code == "STORAGE_FULL", met.value


def _go_on(disk: Disk, rule: Rule, cmd: Any, refused: str) -> None:
    try:
        disk.run(rule, cmd)
    except Refused as found:
        if found.code != refused:
            raise
