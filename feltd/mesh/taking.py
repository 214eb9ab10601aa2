"""The one statement that issues a claim, and what follows from it in the same transaction.

The INSERT of the claim tests the work and its gates (pool, concurrency key, rate key), the worker,
its authority, its free slots and the key as stored, and draws the fencing token. It also tests that
pools and holds are those the work was found to fit by: no claim passes one placed meanwhile. The
workload follows, its lane and demand find their next head, and the event is written. Whoever gives
work away calls `take`; nothing else makes a claim.
"""

from typing import Any, NamedTuple

from feltd.clock import Now
from feltd.mesh import deadlines, demands, events, fence, gates, holding
from feltd.model.base import Caller
from feltd.model.claim import Claim
from feltd.store.tx import Row, Tx

ISSUE = """
INSERT INTO claims (workload_id, tenant_id, application_id, worker_id, incarnation, number,
                    lease_ms, issued_at_ms, expires_at_ms, how, rank, worker_lifecycle, key_id,
                    request_id, pool_id, concurrency_key, affinity, assigned, decision_id)
SELECT w.workload_id, w.tenant_id, w.application_id, k.worker_id, k.incarnation,
       w.attempt_number + 1, :lease_ms, :now_ms, :expires_at_ms, :how, w.rank, k.lifecycle,
       nullif(:key_id, ''), :request_id, coalesce(w.pool_id, :pool_id),
       nullif(l.concurrency_key, 0), :affinity, :assigned, :decision_id
  FROM workloads w
  JOIN lanes l ON l.lane_id = w.lane_id
  JOIN workers k ON k.worker_id = :worker_id
 WHERE w.workload_id = :workload_id
   AND w.tenant_id = k.tenant_id
   AND w.application_id = k.application_id
   AND w.state = 'READY'
   AND w.eligible_at_ms <= :now_ms
   AND EXISTS (SELECT 1
                 FROM applications a
                WHERE a.tenant_id = w.tenant_id
                  AND a.application_id = w.application_id
                  AND a.gate_generation = :gate_generation)
   AND NOT EXISTS (SELECT 1
                     FROM deadlines d
                    WHERE d.workload_id = :workload_id
                      AND d.at_ms <= :now_ms)
   AND k.lifecycle = 'READY'
   AND k.drain_at_ms IS NULL
   AND (k.quarantined_at_ms IS NULL OR k.quarantined_until_at_ms <= :wall_ms)
   AND k.incarnation = :incarnation
   AND k.authority_live = 1
   AND k.authority_unsettled = 0
   AND coalesce(k.authority_expires_at_ms, :wall_ms + 1) > :wall_ms
   AND (SELECT count(*)
          FROM claims c
         WHERE c.worker_id = k.worker_id
           AND c.ended_at_ms IS NULL) < k.concurrency
   AND ((w.gated = 0 AND :pool_id IS NULL)
        OR ((coalesce(w.pool_id, :pool_id) IS NULL
             OR EXISTS (SELECT 1
                          FROM pools p
                         WHERE p.tenant_id = w.tenant_id
                           AND p.pool_id = coalesce(w.pool_id, :pool_id)
                           AND p.deleted_at_ms IS NULL
                           AND p.active < coalesce(p.max_concurrency, p.active + 1)))
            AND NOT EXISTS (SELECT 1
                              FROM concurrency_keys c
                             WHERE c.key_seq = l.concurrency_key
                               AND c.active >= c.claims_max)
            AND NOT EXISTS (SELECT 1
                              FROM rate_keys r
                              JOIN rate_uses u ON u.key_seq = r.key_seq
                                              AND u.number = r.uses + 1 - r.claims_max
                             WHERE r.key_seq = l.rate_key
                               AND u.at_ms > :now_ms - r.period_ms)))
   AND (:key_id = ''
        OR EXISTS (SELECT 1
                     FROM keys y
                    WHERE y.key_id = :key_id
                      AND y.revoked_at_ms IS NULL
                      AND coalesce(y.expires_at_ms, :wall_ms + 1) > :wall_ms))
RETURNING fencing_token, pool_id
"""

TAKE = """
UPDATE workloads
   SET state = 'CLAIMED',
       due = 0,
       fencing_token = :fencing_token,
       claim_worker_id = :worker_id,
       claim_incarnation = :incarnation,
       expires_at_ms = :expires_at_ms,
       attempt_number = attempt_number + 1,
       progress = NULL
 WHERE workload_id = :workload_id
   AND state = 'READY'
   AND eligible_at_ms <= :now_ms
RETURNING workload_id, tenant_id, application_id, state, fencing_token, claim_worker_id, input,
          attempt_number, expires_at_ms, lane_id, demand_id, definition_id, definition_revision,
          environment, capability_snapshot, connection_scopes, timeouts, runtime_policy,
          traceparent, gated,
          (SELECT g.constraints
             FROM workers k
             JOIN grants g ON g.grant_id = k.authorization_grant_id
            WHERE k.worker_id = :worker_id) AS constraints
"""


class Taking(NamedTuple):
    """One workload for one worker.

    `worker` is a row of claims.PULLER; `how` is pull, id or directed. `affinity` counts the labels
    of the workload's affinity that the worker has. `assigned` marks a claim that its worker has
    not asked for. `pool_id` is what counts a claim of work that names no pool itself.
    """

    caller: Caller
    worker: Row
    workload_id: str
    lease_ms: int
    how: str
    request_id: str | None = None
    start: bool = False
    decision_id: int | None = None
    affinity: int = 0
    assigned: bool = False
    pool_id: str | None = None


def take(tx: Tx, now: Now, taking: Taking) -> Claim | None:
    """Issue the claim and hand the workload over; None, and nothing written, when it may not be.

    The lease is lease_ms from now, within the worker's grant chain; with `start` the workload is
    RUNNING at once. What speaks against it the caller finds by reading.
    """
    worker = taking.worker
    expires_at_ms = now.lease_ms + taking.lease_ms
    if worker["authority_expires_at_ms"] is not None:
        ends_at_ms = now.lease_from_wall(worker["authority_expires_at_ms"])
        expires_at_ms = min(expires_at_ms, ends_at_ms)
    params: dict[str, Any] = {
        "workload_id": taking.workload_id,
        "worker_id": worker["worker_id"],
        "incarnation": worker["incarnation"],
        "lease_ms": taking.lease_ms,
        "now_ms": now.lease_ms,
        "wall_ms": now.wall_ms,
        "expires_at_ms": expires_at_ms,
        "gate_generation": worker["gate_generation"],
        "how": taking.how,
        "key_id": taking.caller.own_key,
        "request_id": taking.request_id,
        "affinity": taking.affinity,
        "assigned": int(taking.assigned),
        "decision_id": taking.decision_id,
        "pool_id": taking.pool_id,
    }
    issued = tx.row(ISSUE, params)
    if issued is None:
        return None
    params["fencing_token"] = issued["fencing_token"]
    held = tx.row(TAKE, params)
    if held is None:
        raise RuntimeError(f"a claim of {taking.workload_id} was issued, yet it is not READY")
    if held["timeouts"] != deadlines.NONE:
        deadlines.arm(tx, now, taking.workload_id)
    demands.withdraw(tx, held["lane_id"], held["demand_id"])
    if held["gated"] or issued["pool_id"] is not None:
        gates.enter(tx, now, held, issued["pool_id"])
    events.tell(
        tx,
        now,
        "claim",
        tenant_id=held["tenant_id"],
        application_id=held["application_id"],
        workload_id=taking.workload_id,
        worker_id=worker["worker_id"],
        fencing_token=issued["fencing_token"],
        from_state="READY",
        to_state="CLAIMED",
        expires_at_ms=expires_at_ms,
        actor=str(taking.caller.subject) if taking.how == "directed" else None,
    )
    if taking.start:
        started = fence.hold(tx, now, fence.START, params)
        if started is None:
            raise RuntimeError(f"{taking.workload_id} was claimed, yet it does not start")
        fence.tell_started(tx, now, params, started)
    return holding.shape(tx, held, now.lease_ms, "RUNNING" if taking.start else "CLAIMED")
