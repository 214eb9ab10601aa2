"""Why READY work is not claimed: its instant, what keeps it from everybody, the workers, its turn.

What holds now comes first; what would hold once that is gone begins with "then". By the same rules
as a pull: where nothing keeps it back, each worker named CLAIMABLE gets work at its next pull.
Only reads, and never more than a bounded number of rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import structs
from msgspec.json import decode

from feltd.clock import Now
from feltd.mesh import affinity, barriers, causes, crowd, heads, holds, misfits, placement, pools
from feltd.mesh.crowd import Member
from feltd.mesh.underway import passed
from feltd.model.base import Ask, Caller
from feltd.model.policy import AFFINITY_WAIT_MS
from feltd.model.why import Cause
from feltd.store.tx import Row, Tx

#: Better ranked work that is counted, and the kinds it is looked for in.
BETTER_MAX = 1_000
BETTER_KINDS_MAX = 64
#: Workers that kinds are compared with to know what comes first for them.
TAKERS_COMPARED = 4
THEN = "then: "

STAND = """
SELECT d.pool_open, l.concurrency_key, l.rate_key, l.concurrency_open, l.rate_open
  FROM lanes l
  JOIN demands d ON d.demand_id = l.demand_id
 WHERE l.lane_id = :lane_id
"""

BETTER = """
SELECT d.demand_id, d.definition_id, d.definition_revision, d.capabilities, d.resources,
       d.placement
  FROM demands d
 WHERE d.tenant_id = :tenant_id
   AND d.application_id = :application_id
   AND d.head_rank IS NOT NULL
   AND (d.head_rank, d.head_seq) < (:rank, :seq)
 ORDER BY d.head_rank, d.head_seq
 LIMIT :rows
"""

COUNT_BETTER = """
SELECT count(*) AS workloads
  FROM (SELECT w.seq
          FROM lanes l
          JOIN workloads w ON w.lane_id = l.lane_id
         WHERE l.demand_id = :demand_id
           AND l.head_rank IS NOT NULL
           AND l.head_rank <= :rank
           AND l.concurrency_open = 1
           AND l.rate_open = 1
           AND w.state = 'READY'
           AND w.due = 1
           AND (w.rank, w.seq) < (:rank, :seq)
         LIMIT :rows)
"""


class _Fit(NamedTuple):
    """What the workers of an application make of one workload."""

    subject: misfits.Subject
    pools: Mapping[str, placement.Pool]
    holds: placement.Holds
    crowd: crowd.Crowd
    verdict: crowd.Verdict


def causes_of(tx: Tx, ask: Ask[None], row: Row, now: Now) -> list[Cause]:
    """Why a READY workload is not claimed, from its row as why.READ gives it; never nothing."""
    stand = tx.rows(STAND, {"lane_id": row["lane_id"]})[0]
    told = _instants(now, row)
    fit = _fit(tx, now, row)
    blocked = _barriers(tx, ask.caller, now, row, stand, fit)
    told += later(blocked) if told else blocked
    nobody = _nobody(now, fit)
    if nobody:
        return told + (later(nobody) if told else nobody)
    return told or _turn(tx, now, row, fit)


def beside_time(tx: Tx, caller: Caller, row: Row, now: Now) -> list[Cause]:
    """What will keep a workload once what it waits for has ended."""
    stand = tx.rows(STAND, {"lane_id": row["lane_id"]})[0]
    fit = _fit(tx, now, row)
    told = _instants(now, row) if row["not_before_at_ms"] is not None else []
    return told + _barriers(tx, caller, now, row, stand, fit) + _nobody(now, fit)


def later(found: Sequence[Cause]) -> list[Cause]:
    """Causes that count once those before them are gone."""
    return [structs.replace(one, detail=THEN + one.detail) for one in found]


def not_yet(now: Now, row: Row | Mapping[str, Any], workload_id: str) -> Cause:
    """What work that is not eligible yet waits for: its not_before, or the end of its backoff.

    The row has eligible_at_ms and not_before_at_ms.
    """
    until = causes.moment(now, row["eligible_at_ms"])
    not_before_at_ms = row["not_before_at_ms"]
    remedy = f"feltd workload run-now {workload_id}"
    if not_before_at_ms is not None and not_before_at_ms > now.wall_ms:
        return Cause(
            code="NOT_BEFORE", detail=f"its not_before has not come: {until}", remedy=remedy
        )
    return Cause(
        code="BACKOFF", detail=f"it waits after a failed attempt, until {until}", remedy=remedy
    )


def _instants(now: Now, row: Row) -> list[Cause]:
    told = []
    if row["timeout_at_ms"] is not None and row["timeout_at_ms"] <= now.lease_ms:
        told.append(passed(now, row["timeout_at_ms"]))
    if row["eligible_at_ms"] > now.lease_ms:
        told.append(not_yet(now, row, row["workload_id"]))
    elif row["state"] == "READY" and not row["due"]:
        told.append(
            Cause(
                code="DUE",
                detail="its time has come, and it is about to be offered",
                remedy="wait a moment; if it stays so: feltd health",
            )
        )
    return told


def _fit(tx: Tx, now: Now, row: Row) -> _Fit:
    owner = (row["tenant_id"], row["application_id"])
    known = pools.of_application(tx, *owner, None)
    wanted = placement.of_workload(row)
    if wanted.pool_id not in known:
        # Nobody is a member of what is not there: that is told once, not of each worker.
        wanted = structs.replace(wanted, pool_id=None)
    members = crowd.read(tx, now, *owner)
    return _Fit(
        misfits.Subject(*owner, wanted, row["workload_id"]),
        known,
        holds.of_application(tx, *owner, None),
        members,
        members.judge(wanted, known),
    )


def _barriers(tx: Tx, caller: Caller, now: Now, row: Row, stand: Row, fit: _Fit) -> list[Cause]:
    """What keeps it from everybody: a hold, its pool, its keys."""
    told: list[Cause | None] = []
    held = holds.touching(row, fit.holds)
    if held is not None:
        told.append(barriers.hold(tx, now, caller, row["tenant_id"], held))
    owner = (row["tenant_id"], row["application_id"])
    told.append(barriers.pool(tx, *owner, row["pool_id"], bool(stand["pool_open"])))
    if stand["concurrency_key"]:
        open_ = bool(stand["concurrency_open"])
        told.append(barriers.key(tx, stand["concurrency_key"], open_, row["workload_id"]))
    if stand["rate_key"]:
        told.append(barriers.rate(tx, now, stand["rate_key"], bool(stand["rate_open"])))
    return [one for one in told if one is not None]


def _nobody(now: Now, fit: _Fit) -> list[Cause]:
    """Why no worker may take it; nothing where one may."""
    if fit.verdict.eligible:
        return []
    return misfits.tell(now, fit.subject, fit.crowd, fit.verdict, fit.pools)


def _turn(tx: Tx, now: Now, row: Row, fit: _Fit) -> list[Cause]:
    """Nothing keeps it back: who could take it, and what comes before it."""
    # The head is what a pull looks at: what stands behind it waits for it.
    head = heads.next_of(tx, now, row["demand_id"])
    if head is None:
        return [
            Cause(
                code="OPENING",
                detail="it is about to be offered",
                remedy="wait a moment; if it stays so: feltd health",
            )
        ]
    if heads.timed_out(head, now):
        ended = passed(now, head["timeout_at_ms"])
        detail = f"it stands behind {head['workload_id']}: {ended.detail}"
        return [structs.replace(ended, detail=detail)]
    takers, leaving = _takers(now, row, head, fit.verdict.eligible)
    told = _behind(tx, row, fit, takers)
    for member in takers[: causes.NAMED_MAX]:
        told.append(
            Cause(
                code="CLAIMABLE",
                detail=f"{member.row['name']} could take work now: it has {member.free} free, and "
                "gets it at its next pull",
                remedy=f"see that its process pulls: feltd worker why {member.worker_id}",
                worker_id=member.worker_id,
            )
        )
    more = len(takers) - causes.NAMED_MAX
    if more > 0:
        told.append(
            Cause(
                code="CLAIMABLE",
                detail=f"{causes.many(more, 'other worker')} could as well",
                remedy=f"feltd worker list --application {row['application_id']}",
            )
        )
    return told + leaving


def _takers(
    now: Now, row: Row, head: Row, eligible: Sequence[Member]
) -> tuple[list[Member], list[Cause]]:
    """The workers that a pull would give it to, and what is said of those that leave it."""
    asked = decode(row["placement"])
    labels = asked.get("affinity") or {}
    over_at_ms = head["eligible_at_ms"] + asked.get("affinity_wait_ms", AFFINITY_WAIT_MS)
    if not labels or over_at_ms <= now.lease_ms:
        return list(eligible), []
    met = {one.worker_id: affinity.met(labels, one.offered.labels) for one in eligible}
    most = max(met.values())
    takers = [one for one in eligible if met[one.worker_id] == most]
    names = [one.row["name"] for one in eligible if met[one.worker_id] < most]
    if not names:
        return takers, []
    better = causes.listed([one.row["name"] for one in takers])
    told = Cause(
        code="LEFT_FOR_BETTER",
        detail=f"{causes.listed(names)} leave it to {better}, which has more of its affinity "
        f"labels, until {causes.moment(now, over_at_ms)}",
        remedy=f"wait until then, or feltd workload edit {row['workload_id']} "
        "--set placement.affinity_wait_ms=0",
    )
    return takers, [told]


def _behind(tx: Tx, row: Row, fit: _Fit, takers: Sequence[Member]) -> list[Cause]:
    """How much better ranked work one of the takers would be given first."""
    mine = {"rank": row["rank"], "seq": row["seq"]}
    owner = {"tenant_id": row["tenant_id"], "application_id": row["application_id"]}
    offers = [one.offered for one in takers[:TAKERS_COMPARED]]
    count = 0
    for demand in tx.rows(BETTER, {**owner, **mine, "rows": BETTER_KINDS_MAX}):
        wanted = placement.of_demand(demand)
        if all(placement.unfit(offered, wanted, fit.pools, fit.holds) for offered in offers):
            continue
        bound = {"demand_id": demand["demand_id"], "rows": BETTER_MAX - count}
        count += tx.rows(COUNT_BETTER, {**mine, **bound})[0]["workloads"]
        if count >= BETTER_MAX:
            break
    if count == 0:
        return []
    most = "at least " if count >= BETTER_MAX else ""
    return [
        Cause(
            code="BEHIND",
            detail=f"{most}{causes.many(count, 'better ranked workload')} come before it",
            remedy=f"start more workers, or feltd workload edit {row['workload_id']} "
            f"--priority {min(row['priority'] + 10, 1_000)}",
        )
    ]
