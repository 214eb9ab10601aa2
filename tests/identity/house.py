"""A house of keys and grants for stories: the real rules and schema in memory, time by hand."""

import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import bearer, grants, keyrows, keys, regrants, worker_keys
from feltd.identity.principals import LOCAL, caller_of
from feltd.mesh import ledger
from feltd.model.base import Ask, Caller, Subject
from feltd.model.grant import (
    Affected,
    Grant,
    GrantConstraints,
    IssueGrant,
    ReplaceGrant,
    ResourceScope,
    RevokeGrant,
)
from feltd.model.key import CreateKey, KeyMade, RotateKey
from feltd.store.tx import Tx
from tests.store.ready import migrated

R = TypeVar("R")

START_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

WORKER = """
INSERT INTO workers (worker_id, tenant_id, application_id, name, runtime, version,
                     capability_version, declared_capabilities, granted_capabilities,
                     workload_kinds, resource_profile, labels, concurrency, health, lifecycle,
                     lifecycle_cause, heartbeat_interval_ms, heartbeat_timeout_ms,
                     registered_at_ms, last_seen_at_ms)
VALUES (:worker_id, :tenant_id, 'docs', :worker_id, 'process', '1', 1, '[]', '[]', '[]', '{}', '{}',
        1, 'UNKNOWN', 'REGISTERED', 'register', 10000, 30000, 1, 1)
"""


class House:
    """One database in memory. Each verb is a transaction of its own; a refusal undoes it."""

    def __init__(self) -> None:
        self.conn = migrated()
        self.wall_ms = START_MS
        self.made = 0
        #: What the last transaction told.
        self.signals: list[tuple[str, str]] = []
        self.do(lambda tx, now: ledger.begin(tx, "instance_1", now))

    @property
    def now(self) -> Now:
        return Now(self.wall_ms - 7_000, self.wall_ms)

    def later(self, ms: int) -> None:
        self.wall_ms += ms

    def do(self, fn: Callable[[Tx, Now], R]) -> R:
        self.conn.execute("BEGIN IMMEDIATE")
        tx = Tx(self.conn)
        try:
            result = fn(tx, self.now)
        except BaseException:
            self.conn.execute("ROLLBACK")
            raise
        self.conn.execute("COMMIT")
        self.signals = tx.signals
        return result

    @property
    def ended_now(self) -> list[tuple[str, str]]:
        """What the last transaction told of keys and grants, sorted; the chain grew anyway."""
        return sorted(told for told in self.signals if told[0] != "audit")

    def see(self, fn: Callable[[Tx, Now], R]) -> R:
        """A read; what was told stays to be looked at."""
        return fn(Tx(self.conn), self.now)

    def ask(
        self, rule: Callable[[Tx, Any, Now], R], by: Caller, body: Any = None, **more: Any
    ) -> R:
        ask = Ask(caller=by, body=body, **more)
        return self.do(lambda tx, now: rule(tx, ask, now))

    def refusal(self, verb: Callable[[], Any]) -> Refused:
        """What a verb refuses; nothing of it may stay."""
        before = self.dump()
        try:
            verb()
        except Refused as refused:
            assert self.dump() == before
            return refused
        raise AssertionError("nothing was refused")

    def dump(self) -> list[str]:
        return list(self.conn.iterdump())

    def rows(self, sql: str, *params: object) -> list[sqlite3.Row]:
        return self.conn.execute(sql, params).fetchall()

    # Keys

    def fresh(self) -> str:
        self.made += 1
        return f"{self.made:012d}".replace(" ", "0") + f"Secret{self.made:037d}"

    def key(self, by: Caller = LOCAL, **members: Any) -> KeyMade:
        members.setdefault("name", "a key")
        if by is LOCAL and "worker_id" not in members:
            members.setdefault("tenants", ("acme",))
        body = msgspec.convert(members, CreateKey)
        return self.ask(keys.create, by, body, fresh=self.fresh())

    def caller(self, by: Caller = LOCAL, **members: Any) -> Caller:
        return self.bearer_of(self.key(by, **members))

    def bearer_of(self, made: KeyMade) -> Caller:
        assert bearer.parse(made.secret) == made.key_id
        return caller_of(self.row(made.key_id))

    def row(self, key_id: str) -> sqlite3.Row:
        row = self.see(lambda tx, now: keyrows.read(tx, key_id))
        assert row is not None
        return row

    def ended(self, key_id: str) -> str | None:
        return self.row(key_id)["revoked_reason"]

    def revoke_key(self, key_id: str, by: Caller = LOCAL) -> None:
        self.ask(keys.revoke, by, id=key_id)

    def rotate(self, key_id: str, overlap_ms: int, by: Caller = LOCAL) -> KeyMade:
        body = RotateKey(overlap_ms=overlap_ms)
        return self.ask(keys.rotate, by, body, id=key_id, fresh=self.fresh())

    # Workers

    def worker(self, worker_id: str, tenant_id: str = "acme") -> str:
        params = {"worker_id": worker_id, "tenant_id": tenant_id}
        self.do(lambda tx, now: tx.change(WORKER, params))
        return worker_id

    def takes_over(self, worker_id: str) -> list[str]:
        sql = "UPDATE workers SET incarnation = incarnation + 1 WHERE worker_id = :id"

        def rule(tx: Tx, now: Now) -> list[str]:
            tx.change(sql, {"id": worker_id})
            row = tx.row("SELECT incarnation FROM workers WHERE worker_id = :id", {"id": worker_id})
            assert row is not None
            return worker_keys.revoke_keys_of_worker(tx, now, worker_id, row[0])

        return self.do(rule)

    def issue_worker_key(
        self, by: Caller, worker_id: str, incarnation: int = 1, grant_id: str | None = None
    ) -> Caller:
        fresh = self.fresh()
        secret = self.do(
            lambda tx, now: worker_keys.issue_worker_key(
                tx,
                now,
                caller=by,
                worker_id=worker_id,
                incarnation=incarnation,
                tenant_id="acme",
                grant_id=grant_id,
                namespace="default",
                fresh=fresh,
            )
        )
        assert secret == bearer.bearer("w", fresh)
        return caller_of(self.row(fresh[:12]))

    # Grants

    def grant(self, subject: Subject | str = "registrar", by: Caller = LOCAL, **more: Any) -> Grant:
        if isinstance(subject, str):
            subject = Subject(kind="service", id=subject)
        members: dict[str, Any] = {
            "subject": subject,
            "tenant_id": "acme",
            "application_id": "docs",
            "capabilities": ("worker:register", "worker:capability:extract"),
            "resources": (prefix("flow://docs/workers/*"),),
            "constraints": GrantConstraints(),
            "expires_at_ms": self.wall_ms + DAY_MS,
        }
        self.made += 1
        return self.ask(
            grants.issue, by, IssueGrant(**members | more), fresh=f"grant_{self.made:016d}"
        )

    def child(self, parent: Grant, by: Caller = LOCAL, **more: Any) -> Grant:
        members = {
            "capabilities": parent.capabilities,
            "resources": parent.resources,
            "expires_at_ms": parent.expires_at_ms,
            "parent_grant": parent.id,
        }
        return self.grant("child", by, **members | more)

    def replace(self, grant: Grant, by: Caller = LOCAL, **more: Any) -> Affected:
        members = {
            "capabilities": grant.capabilities,
            "resources": grant.resources,
            "constraints": grant.constraints,
            "expires_at_ms": grant.expires_at_ms,
        }
        return self.ask(regrants.replace, by, ReplaceGrant(**members | more), id=grant.id)

    def revoke(self, grant: Grant, by: Caller = LOCAL, reason: str | None = None) -> Affected:
        return self.ask(regrants.revoke, by, RevokeGrant(reason=reason), id=grant.id)

    def read(self, grant: Grant | str) -> Grant:
        grant_id = grant if isinstance(grant, str) else grant.id
        found = self.see(lambda tx, now: grants.read(tx, grant_id))
        assert found is not None
        return found

    def usable(self, by: Caller, grant: Grant | None = None, code: str = "GRANT_DENIED") -> Grant:
        grant_id = grant.id if grant is not None else None
        return self.see(lambda tx, now: grants.usable(tx, by, now, grant_id, code=code))


def prefix(uri: str) -> ResourceScope:
    return ResourceScope(kind="RESOURCE_PREFIX", uri=uri)


def exact(uri: str) -> ResourceScope:
    return ResourceScope(kind="EXACT", uri=uri)


def pointers(refused: Refused) -> list[str]:
    errors: Iterable[dict[str, str]] = refused.facts["errors"]
    return [error["pointer"] for error in errors]


def reasons(refused: Refused) -> list[str]:
    return [reason["code"] for reason in refused.facts.get("reasons", [])]
