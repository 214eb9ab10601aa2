"""One look over everything a person should know at three in the morning. It only reads.

The same look serves a running daemon (diagnostics) and `feltd doctor` on a file that nobody serves.
It is bounded: each list stops at a few rows, each count at its cap.
"""

from collections.abc import Callable, Sequence

from feltd.clock import Now
from feltd.identity.principals import LOCAL
from feltd.mesh import backlog, ledger, measures, stops
from feltd.mesh.states import WORKER_LIFECYCLES, WORKLOAD_STATES
from feltd.model.base import Ask
from feltd.model.checkup import Checkup, Ending, Ends, Some, Stands, Waits
from feltd.model.why import BacklogAsk, Kind
from feltd.store.tx import Row, Tx

#: Of each list so many are named; a person fixes one at a time.
NAMED = 5
#: Rows counted beyond those.
COUNTED = 1_000
#: Dead letters of the hour that are counted, the newest, some 60 ms of a reader.
DEAD_ROWS = 50_000
HOUR_MS = 3_600_000
#: A trigger this many changes behind is not just busy.
BEHIND_CHANGES = 1_000
#: Kinds of work that are compared with workers; the first of them has waited longest.
KINDS = 5
WORKERS_NAMED = 5

#: Which workers stop with each of these grants, or keys.
Stopping = Callable[[Tx, Ask[tuple[str, ...]], Now], dict[str, stops.Stops]]

HOLDS = """
SELECT h.hold_id AS id, h.tenant_id, h.scope || coalesce(' ' || h.value, '') AS what,
       h.held_by AS actor, h.reason, h.held_at_ms AS at_ms
  FROM holds h
 WHERE h.ended_at_ms IS NULL
   AND (h.until_at_ms IS NULL OR h.until_at_ms > :wall_ms)
 ORDER BY h.held_at_ms, h.tenant_id, h.hold_id
 LIMIT :rows
"""

DRAINED = """
SELECT k.worker_id AS id, k.tenant_id, k.name || ' is ' || k.lifecycle AS what,
       k.drain_by AS actor, coalesce(k.drain_reason, '') AS reason, k.drain_at_ms AS at_ms
  FROM workers k
 WHERE k.removed_at_ms IS NULL
   AND k.drain_by IS NOT NULL
 ORDER BY k.drain_at_ms, k.worker_id
 LIMIT :rows
"""

QUARANTINED = """
SELECT k.worker_id AS id, k.tenant_id, k.name || ' is ' || k.lifecycle AS what,
       k.quarantined_by AS actor, coalesce(k.quarantine_reason, '') AS reason,
       k.quarantined_at_ms AS at_ms
  FROM workers k
 WHERE k.removed_at_ms IS NULL
   AND k.quarantined_by IS NOT NULL
 ORDER BY k.quarantined_at_ms, k.worker_id
 LIMIT :rows
"""

LAPSED = """
SELECT k.worker_id AS id, k.tenant_id, k.name || ' is ' || k.lifecycle AS what,
       coalesce(k.authorization_grant_id, '') AS actor,
       CASE WHEN k.authority_live = 0 THEN 'revoked' ELSE 'ended' END AS reason,
       coalesce(k.authority_expires_at_ms, 0) AS at_ms
  FROM workers k
 WHERE k.removed_at_ms IS NULL
   AND k.authorization_grant_id IS NOT NULL
   AND (k.authority_live = 0 OR k.authority_expires_at_ms <= :wall_ms)
   AND k.last_seen_at_ms > :recent_ms
 ORDER BY k.worker_id
 LIMIT :rows
"""

TRIGGERS_OFF = """
SELECT t.trigger_id AS id, t.tenant_id, t.kind || ' for ' || t.target_capability AS what,
       coalesce(t.disabled_by, '') AS actor, coalesce(t.disabled_reason, '') AS reason,
       coalesce(t.disabled_at_ms, t.updated_at_ms) AS at_ms
  FROM triggers t
 WHERE t.enabled = 0
 ORDER BY t.tenant_id, t.trigger_id
 LIMIT :rows
"""

TRIGGERS_BEHIND = """
SELECT t.trigger_id AS id, t.tenant_id,
       CASE WHEN t.failures > 0 THEN t.failures || ' failures in a row'
            ELSE (g.head_seq - t.cursor_seq) || ' changes not judged'
       END AS what,
       t.requested_by AS actor, coalesce(t.failure, '') AS reason, t.updated_at_ms AS at_ms
  FROM triggers t
  LEFT JOIN change_logs g ON g.tenant_id = t.tenant_id
 WHERE t.enabled = 1
   AND (t.failures > 0 OR g.head_seq - t.cursor_seq > :behind)
 ORDER BY t.tenant_id, t.trigger_id
 LIMIT :rows
"""

DEAD = """
SELECT d.failure_kind AS kind, count(*) AS workloads
  FROM (SELECT w.failure_kind
          FROM workloads w
         WHERE w.state = 'DEAD_LETTERED'
           AND w.finished_at_ms > :since_ms
         ORDER BY w.finished_at_ms DESC, w.seq DESC
         LIMIT :rows) AS d
 GROUP BY d.failure_kind
"""

GRANTS = """
SELECT g.grant_id AS id, g.tenant_id || '/' || g.application_id || ' for '
       || g.subject_kind || ':' || g.subject_id AS what,
       g.expires_at_ms
  FROM grants g
 WHERE g.status = 'ACTIVE'
   AND g.chain_live = 1
   AND g.expires_at_ms > :wall_ms
   AND g.expires_at_ms <= :until_ms
 ORDER BY g.expires_at_ms, g.grant_id
 LIMIT :rows
"""

KEYS = """
SELECT y.key_id AS id, y.name AS what, y.expires_at_ms
  FROM keys y
 WHERE y.revoked_at_ms IS NULL
   AND y.expires_at_ms > :wall_ms
   AND y.expires_at_ms <= :until_ms
 ORDER BY y.expires_at_ms, y.key_id
 LIMIT :rows
"""


def look(tx: Tx, cmd: None, now: Now) -> Checkup:
    """Look over everything; half a second of a reader beside a million workloads."""
    found = ledger.read(tx)
    states = {row["state"]: row["workloads"] for row in tx.rows(measures.WORKLOADS)}
    lifecycles = {row["lifecycle"]: row["workers"] for row in tx.rows(measures.WORKERS)}
    dead = tx.rows(DEAD, {"since_ms": now.lease_ms - HOUR_MS, "rows": DEAD_ROWS})
    bounds = {"rows": COUNTED}
    at = {"wall_ms": now.wall_ms, "until_ms": now.wall_ms + measures.EXPIRING_MS}
    recent_ms = now.lease_ms - HOUR_MS
    lapsed = tx.rows(LAPSED, {**bounds, "wall_ms": now.wall_ms, "recent_ms": recent_ms})
    return Checkup(
        instance_id=found["instance_id"],
        lease_ms=now.lease_ms,
        workloads=dict.fromkeys(WORKLOAD_STATES, 0) | states,
        workers=dict.fromkeys(WORKER_LIFECYCLES, 0) | lifecycles,
        oldest=_oldest(tx, now),
        holds=_some(tx.rows(HOLDS, {**bounds, "wall_ms": now.wall_ms}), now),
        drained=_some(tx.rows(DRAINED, bounds), now),
        quarantined=_some(tx.rows(QUARANTINED, bounds), now),
        lapsed=_some(lapsed, now),
        triggers_off=_some(tx.rows(TRIGGERS_OFF, bounds), now),
        triggers_behind=_some(tx.rows(TRIGGERS_BEHIND, {**bounds, "behind": BEHIND_CHANGES}), now),
        dead_in_hour={row["kind"] or "": row["workloads"] for row in dead},
        dead_capped=sum(row["workloads"] for row in dead) >= DEAD_ROWS,
        grants_ending=_ending(tx, now, tx.rows(GRANTS, {**bounds, **at}), stops.with_grants),
        keys_ending=_ending(tx, now, tx.rows(KEYS, {**bounds, **at}), stops.with_keys),
    )


def _oldest(tx: Tx, now: Now) -> Waits | None:
    """What has waited longest among the kinds that something waits of."""
    kinds = backlog.page(tx, Ask(LOCAL, BacklogAsk(limit=KINDS)), now).items
    waiting = [one for one in kinds if one.oldest_ready_at_ms is not None]
    if not waiting:
        return None
    return _waits(min(waiting, key=lambda one: one.oldest_ready_at_ms or 0), now)


def _waits(kind: Kind, now: Now) -> Waits:
    in_its_way = kind.blocked[0] if kind.blocked else None
    return Waits(
        tenant_id=kind.tenant_id,
        application_id=kind.application_id,
        definition_id=kind.definition_id,
        ready=kind.ready,
        held=kind.waiting.held,
        waited_ms=max(0, now.lease_ms - (kind.oldest_ready_at_ms or now.lease_ms)),
        code=in_its_way.code if in_its_way else "ITS_TURN",
        detail=in_its_way.detail if in_its_way else "workers fit it and take it in its turn",
        remedy=in_its_way.remedy if in_its_way else "start more workers, or wait",
    )


def _some(rows: Sequence[Row], now: Now) -> Some:
    first = tuple(
        Stands(
            id=row["id"],
            tenant_id=row["tenant_id"],
            what=row["what"],
            by=row["actor"],
            reason=row["reason"],
            for_ms=max(0, now.lease_ms - row["at_ms"]),
        )
        for row in rows[:NAMED]
    )
    return Some(count=len(rows), first=first)


def _ending(tx: Tx, now: Now, rows: Sequence[Row], stopping: Stopping) -> Ending:
    named = rows[:NAMED]
    workers = stopping(tx, Ask(LOCAL, tuple(row["id"] for row in named)), now)
    first = []
    for row in named:
        found = workers.get(row["id"])
        first.append(
            Ends(
                id=row["id"],
                what=row["what"],
                ends_at_ms=row["expires_at_ms"],
                workers=found.count if found else 0,
                named=tuple(one.name for one in found.workers[:WORKERS_NAMED]) if found else (),
            )
        )
    return Ending(count=len(rows), first=tuple(first))
