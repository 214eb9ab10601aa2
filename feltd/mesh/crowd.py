"""The workers of one application as they stand at one instant, and who of them fits what is asked.

For whoever explains or counts: the conditions are those of placement.py, asked of every worker at
once. Workers that offer the same are compared once, so that many kinds of work beside many workers
stay cheap. Only reads, and decides nothing.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from feltd.clock import Now
from feltd.mesh import placement
from feltd.store.tx import Row, Tx

#: Workers of an application that one look compares, those that could take work first.
WORKERS_MAX = 1_000

WORKERS = """
SELECT k.worker_id, k.tenant_id, k.application_id, k.name, k.runtime, k.lifecycle,
       k.offline_reason, k.health, k.concurrency, k.last_seen_at_ms, k.heartbeat_timeout_ms,
       k.authority_live, k.authority_unsettled, k.authority_expires_at_ms, k.authorization_grant_id,
       k.granted_capabilities, k.workload_kinds, k.resource_profile, k.labels, k.drain_by,
       k.drain_reason, k.drain_at_ms, k.quarantined_by, k.quarantine_reason, k.quarantined_at_ms,
       k.quarantined_until_at_ms,
       (SELECT count(*)
          FROM claims c
         WHERE c.worker_id = k.worker_id
           AND c.ended_at_ms IS NULL) AS active
  FROM workers k
 WHERE k.tenant_id = :tenant_id
   AND k.application_id = :application_id
   AND k.removed_at_ms IS NULL
 ORDER BY CASE WHEN k.lifecycle = 'READY' AND k.health = 'HEALTHY' THEN 0 ELSE 1 END, k.worker_id
 LIMIT :rows
"""

WORKER = """
SELECT k.worker_id, k.tenant_id, k.application_id, k.name, k.runtime, k.lifecycle,
       k.offline_reason, k.health, k.concurrency, k.last_seen_at_ms, k.heartbeat_timeout_ms,
       k.authority_live, k.authority_unsettled, k.authority_expires_at_ms, k.authorization_grant_id,
       k.granted_capabilities, k.workload_kinds, k.resource_profile, k.labels, k.drain_by,
       k.drain_reason, k.drain_at_ms, k.quarantined_by, k.quarantine_reason, k.quarantined_at_ms,
       k.quarantined_until_at_ms,
       (SELECT count(*)
          FROM claims c
         WHERE c.worker_id = k.worker_id
           AND c.ended_at_ms IS NULL) AS active
  FROM workers k
 WHERE k.worker_id = :worker_id
"""

COUNT = """
SELECT count(*) AS workers
  FROM workers k
 WHERE k.tenant_id = :tenant_id
   AND k.application_id = :application_id
   AND k.removed_at_ms IS NULL
"""


#: What placement.unfit compares of a worker, beside its id.
OFFER = ("granted_capabilities", "workload_kinds", "resource_profile", "labels")


class Member(NamedTuple):
    """One worker: its row, what it offers, and the rules that keep it from any work now."""

    row: Row
    offered: placement.Offered
    standing: tuple[str, ...]

    @property
    def worker_id(self) -> str:
        """Its id."""
        return str(self.row["worker_id"])

    @property
    def free(self) -> int:
        """Claims it could take beside those it holds."""
        return max(int(self.row["concurrency"]) - int(self.row["active"]), 0)


class Misfit(NamedTuple):
    """A worker that may not take what is asked; `unfit` are the rules that compare the two."""

    member: Member
    unfit: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether only its standing at this instant keeps it away."""
        return not self.unfit

    @property
    def rules(self) -> tuple[str, ...]:
        """Every rule that keeps it away, in the order of placement.RULES."""
        failing = {*self.unfit, *self.member.standing}
        return tuple(rule for rule in placement.RULES if rule in failing)


class Verdict(NamedTuple):
    """Every worker of a crowd, in one of two lists; those that would fit come first of `others`."""

    eligible: list[Member]
    others: list[Misfit]


class Crowd:
    """The workers of one application, up to WORKERS_MAX; `unread` is how many more there are."""

    def __init__(self, members: Iterable[Member], unread: int) -> None:
        self.members = sorted(members, key=lambda one: one.worker_id)
        self.unread = unread
        alike: dict[tuple[str, ...], int] = {}
        #: Of each member, the place of what it offers in `_offers`.
        self._alike: list[int] = []
        self._offers: list[placement.Offered] = []
        for member in self.members:
            offer = tuple(member.row[name] for name in OFFER)
            if offer not in alike:
                alike[offer] = len(self._offers)
                self._offers.append(member.offered)
            self._alike.append(alike[offer])

    def judge(self, wanted: placement.Wanted, pools: Mapping[str, placement.Pool]) -> Verdict:
        """Who may take it beside holds and what its pool and keys have left; each by id."""
        eligible: list[Member] = []
        fitting: list[Misfit] = []
        unfit: list[Misfit] = []
        apart = _tells_apart(wanted.pool_id, pools)
        shared = [] if apart else [tuple(placement.unfit(o, wanted, pools)) for o in self._offers]
        for member, place in zip(self.members, self._alike, strict=True):
            if apart:
                found = tuple(placement.unfit(member.offered, wanted, pools))
            else:
                found = shared[place]
            if found:
                unfit.append(Misfit(member, found))
            elif member.standing:
                fitting.append(Misfit(member, found))
            else:
                eligible.append(member)
        return Verdict(eligible, fitting + unfit)

    def compared(self, pool_id: str | None, pools: Mapping[str, placement.Pool]) -> int:
        """How many comparisons it takes to judge work of this pool."""
        return len(self.members if _tells_apart(pool_id, pools) else self._offers)


def _tells_apart(pool_id: str | None, pools: Mapping[str, placement.Pool]) -> bool:
    """Whether a pool lists workers, and so tells apart those that are alike in all else."""
    pool = None if pool_id is None else pools.get(pool_id)
    return pool is not None and pool.worker_ids is not None


def read(tx: Tx, now: Now, tenant_id: str, application_id: str) -> Crowd:
    """The workers of an application as this transaction sees them; one statement or two."""
    owner = {"tenant_id": tenant_id, "application_id": application_id}
    rows = tx.rows(WORKERS, {**owner, "rows": WORKERS_MAX})
    unread = 0
    if len(rows) == WORKERS_MAX:
        unread = int(tx.rows(COUNT, owner)[0]["workers"]) - WORKERS_MAX
    return Crowd((member(row, now) for row in rows), unread)


def one(tx: Tx, now: Now, worker_id: str) -> Member | None:
    """One worker, also of a removed name; None where there never was one."""
    row = tx.row(WORKER, {"worker_id": worker_id})
    return None if row is None else member(row, now)


def member(row: Row, now: Now) -> Member:
    """A worker from its row as WORKERS gives it."""
    standing = placement.standing(row, now, active=row["active"])
    return Member(row, placement.of_worker(row), tuple(standing))
