"""A whole mesh in memory: the real schema and rules, one transaction an operation, time by hand."""

import sqlite3
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any, TypeVar

from msgspec import convert

from feltd.clock import Now
from feltd.config import Config
from feltd.errors import Refused
from feltd.identity import principals
from feltd.mesh import (
    claims,
    creation,
    due,
    events,
    fence,
    ledger,
    lifecycle,
    outcomes,
    register,
    sweep,
)
from feltd.model import claim as claim_bodies
from feltd.model.base import Ask, Caller, Subject
from feltd.model.claim import Claim, Outcome, Pull, Pulled
from feltd.model.worker import Registration
from feltd.model.workload import Creation, NewWorkload
from feltd.store.connect import memory
from feltd.store.migrate import apply
from feltd.store.tx import Kept, Row, Tx

R = TypeVar("R")

#: An ordinary day in 2026; lease and wall time agree until a story moves one of them.
BEGIN_MS = 1_790_000_000_000

VERBS: dict[str, tuple[Callable[..., Outcome], type[Any]]] = {
    "start": (fence.start, claim_bodies.Start),
    "renew": (fence.renew, claim_bodies.Renew),
    "checkpoint": (fence.checkpoint, claim_bodies.Checkpoint),
    "log": (fence.log, claim_bodies.Log),
    "complete": (outcomes.complete, claim_bodies.Complete),
    "fail": (outcomes.fail, claim_bodies.Fail),
    "release": (outcomes.release, claim_bodies.Release),
}
#: What a verb needs beside its fence, where a story does not say.
NEEDED: dict[str, dict[str, Any]] = {
    "checkpoint": {"data": {"page": 1}},
    "log": {"lines": ["hello"]},
    "fail": {"kind": "transient", "message": "try again"},
}


EVERYTHING = (
    "SELECT * FROM workloads",
    "SELECT * FROM claims",
    "SELECT * FROM checkpoints",
    "SELECT * FROM claim_logs",
    "SELECT * FROM events",
)


@cache
def _empty() -> bytes:
    """A migrated database without a row, made once."""
    conn = memory()
    apply(conn)
    return conn.serialize()


class Mesh:
    """The world of one story. `now` is the instant every operation is stamped with."""

    #: Anybody under --no-auth.
    open = principals.OPEN

    def __init__(self) -> None:
        self.conn: sqlite3.Connection = memory()
        self.conn.deserialize(_empty())
        self.now = Now(BEGIN_MS, BEGIN_MS)
        self.memo: dict[Any, Any] = {}
        self.signals: list[tuple[str, str]] = []
        self.statements = 0
        #: A story changed rows by hand: promises about them are no longer the rules' to keep.
        self.by_hand = False
        self._numbers = count(1)
        self.run(lambda tx, _, now: ledger.begin(tx, "instance", now))

    def close(self) -> None:
        self.conn.close()

    # -- time --------------------------------------------------------------------------------

    def later(self, ms: int) -> None:
        """Both clocks go on."""
        self.now = Now(self.now.lease_ms + ms, self.now.wall_ms + ms)

    # -- operations --------------------------------------------------------------------------

    def run(self, rule: Callable[[Tx, Any, Now], R], cmd: Any = None) -> R:
        """One committed operation, as the writer runs it: a refusal changes nothing."""
        self.conn.execute("BEGIN IMMEDIATE")
        tx = Tx(self.conn, self.memo)
        try:
            answer = rule(tx, cmd, self.now)
        except Kept:
            self._commit(tx)
            raise
        except BaseException:
            self.conn.execute("ROLLBACK")
            # The memo belongs to what is committed.
            self.memo.clear()
            raise
        self._commit(tx)
        return answer

    def ask(
        self,
        rule: Callable[[Tx, Any, Now], R],
        body: Any,
        id: str = "",
        caller: Caller = principals.OPEN,
    ) -> R:
        """As `run`, with a caller (anybody under --no-auth unless the story says who)."""
        fresh = f"{next(self._numbers):055d}"
        return self.run(rule, Ask(caller=caller, body=body, id=id, fresh=fresh, limits=Config()))

    def row(self, sql: str, **params: Any) -> Row:
        """The one row of a query, read by hand."""
        found: Row | None = self.conn.execute(sql, params).fetchone()
        assert found is not None
        return found

    def everything(self) -> list[tuple[Any, ...]]:
        """Every row that work and claims are made of, to see that nothing changed."""
        return [tuple(row) for sql in EVERYTHING for row in self.conn.execute(sql).fetchall()]

    def hand(self, sql: str, **params: Any) -> None:
        """A change typed by hand."""
        self.by_hand = True
        self.conn.execute(sql, params)

    def _commit(self, tx: Tx) -> None:
        self.statements = tx.statements
        events.seal(tx, self.now)
        self.conn.execute("COMMIT")
        self.signals = list(dict.fromkeys(tx.signals))

    @property
    def told(self) -> list[tuple[str, str]]:
        """The signals of the last operation but for those of the feed, which each event gives."""
        return [signal for signal in self.signals if signal[0] not in ("events", "audit")]

    # -- the domain --------------------------------------------------------------------------

    def worker(self, name: str = "edge", **members: Any) -> str:
        """A registered, READY, HEALTHY worker of acme/docs; its id."""
        told = {
            "tenant_id": "acme",
            "application_id": "docs",
            "name": name,
            "runtime": "process",
            "version": "1",
            "capacity": {"concurrency": 1},
            "capabilities": ["docs.extract"],
            **members,
        }
        body = register.Registering(registration=convert(told, Registration))
        worker_id = self.ask(register.register, body).answer.worker.worker_id
        self.run(lambda tx, _, now: lifecycle.make_ready(tx, worker_id))
        self.conn.execute("UPDATE workers SET health = 'HEALTHY' WHERE worker_id = ?", [worker_id])
        return worker_id

    def workload(self, **members: Any) -> str:
        """A workload of acme/docs, READY; its id."""
        asked = {
            "tenant_id": "acme",
            "application_id": "docs",
            "definition_id": "extract",
            "idempotency_key": f"job-{next(self._numbers)}",
            **members,
        }
        body = Creation(body=convert(asked, NewWorkload))
        return str(self.ask(creation.create, body).workload.workload_id)

    def key(self, worker_id: str, name: str = "k1", incarnation: int | None = 1) -> Caller:
        """A worker's key, stored, and the caller behind it."""
        key_id = f"{name:0>12}"
        self.hand(
            "INSERT INTO keys (key_id, name, secret_digest, scopes, namespaces, tenants,"
            " subject_type, worker_id, incarnation, created_by, created_at_ms)"
            " VALUES (:key_id, :key_id, :digest, '[]', '[]', '[\"acme\"]', 'worker', :worker_id,"
            " :incarnation, 'service:test', :now_ms)",
            key_id=key_id,
            digest="sha256:" + "0" * 64,
            worker_id=worker_id,
            incarnation=incarnation,
            now_ms=self.now.wall_ms,
        )
        return Caller(
            subject=Subject(kind="worker", id=key_id),
            key_id=key_id,
            tenants=("acme",),
            worker_id=worker_id,
            incarnation=incarnation,
        )

    def pull(self, worker_id: str, caller: Caller = principals.OPEN, **members: Any) -> Pulled:
        """A pull by a worker."""
        return self.ask(claims.pull, convert(members, Pull), worker_id, caller)

    def claims(self, job: str, by: str, lease_ms: int = 30_000, start: bool = False) -> Claim:
        """A claim of a named workload by a worker."""
        body = convert({"worker_id": by, "lease_ms": lease_ms}, claim_bodies.ClaimById)
        held, _ = self.ask(claims.claim, body, job)
        if start:
            self.say("start", held)
        return held

    def say(
        self, verb: str, held: Claim, caller: Caller = principals.OPEN, **members: Any
    ) -> Outcome:
        """A fenced verb by the holder of a claim; members replace what the claim says."""
        return self.say_at(verb, held, held.workload_id, caller, **members)

    def say_at(
        self, verb: str, held: Claim, job: str, caller: Caller = principals.OPEN, **members: Any
    ) -> Outcome:
        """As `say`, sent to the path of a workload."""
        rule, body = _said(verb, held, members)
        return self.ask(rule, body, job, caller)

    def fenced(self, tx: Tx, now: Now, verb: str, held: Claim) -> Outcome:
        """A fenced verb inside a transaction of the story's own."""
        rule, body = _said(verb, held, {})
        return rule(tx, Ask(caller=self.open, body=body, id=held.workload_id), now)

    def refusal(self, verb: str, held: Claim, **members: Any) -> str | None:
        """The code a fenced verb is refused with, or None."""
        return self.refused(lambda: self.say(verb, held, **members))

    def refusal_at(
        self, verb: str, held: Claim, job: str, caller: Caller = principals.OPEN, **members: Any
    ) -> str | None:
        """As `refusal`, sent to the path of a workload."""
        return self.refused(lambda: self.say_at(verb, held, job, caller, **members))

    def refused(self, act: Callable[[], object]) -> str | None:
        """The code an act is refused with, or None."""
        try:
            act()
        except Refused as refused:
            return refused.code
        return None

    def sweep(self, limit: int = 200) -> int:
        """The keeper's pass over ended leases; how many claims it ended."""
        return self.run(sweep.recover, limit)

    def promote(self) -> None:
        """The keeper's pass over work that has become due."""
        self.run(due.promote, 500)

    def state(self, job: str) -> str:
        """The state of a workload."""
        return str(self.row("SELECT state FROM workloads WHERE workload_id = :id", id=job)["state"])


def _said(verb: str, held: Claim, members: dict[str, Any]) -> tuple[Callable[..., Outcome], Any]:
    """The rule of a fenced verb, and its body under a claim."""
    rule, shape = VERBS[verb]
    fence_members = {
        "claim_id": held.claim_id,
        "worker_id": held.worker_id,
        "fencing_token": held.fencing_token,
    }
    return rule, convert({**fence_members, **NEEDED.get(verb, {}), **members}, shape)
