"""How an attempt ends: the one room that closes a claim, whoever ends it and why.

A claim is the attempt. Its end writes the workload, the claim row and the event in one
transaction; nothing else may set `ended_at_ms`. The live part of a claim stands on the workload,
so each UPDATE here repeats the token it was decided for: an end never hits a later claim.
"""

from collections.abc import Mapping
from typing import NamedTuple

from feltd.clock import Now
from feltd.errors import Refused
from feltd.mesh import deadlines, demands, dependencies, events, gates, retry, workers
from feltd.store.tx import Row, Tx

HELD = """
SELECT w.workload_id, w.seq, w.tenant_id, w.application_id, w.state, w.fencing_token,
       w.claim_worker_id AS worker_id, w.expires_at_ms, w.started_at_ms, w.attempts_spent,
       w.max_attempts, w.releases, w.cancel_requested, w.priority, w.retry_policy, w.timeouts,
       w.lane_id, w.demand_id, w.awaited, w.group_name, k.lifecycle
  FROM workloads w
  JOIN workers k ON k.worker_id = w.claim_worker_id
 WHERE w.workload_id = :workload_id
   AND w.state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
"""

RETURN_TO_READY = """
UPDATE workloads
   SET state = 'READY',
       due = :due,
       eligible_at_ms = :eligible_at_ms,
       rank = :rank,
       ready_at_ms = :now_ms,
       attempts_spent = attempts_spent + :spent,
       releases = :releases,
       failure_kind = coalesce(:failure_kind, failure_kind),
       failure_message = CASE WHEN :failure_kind IS NULL THEN failure_message
                              ELSE :failure_message END,
       claim_worker_id = NULL,
       claim_incarnation = NULL,
       expires_at_ms = NULL,
       started_at_ms = NULL
 WHERE workload_id = :workload_id
   AND fencing_token = :fencing_token
   AND claim_worker_id = :worker_id
   AND state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
   AND (:lapsed = 0 OR expires_at_ms <= :now_ms)
"""

DEAD_LETTER = """
UPDATE workloads
   SET state = 'DEAD_LETTERED',
       lane_id = NULL,
       demand_id = NULL,
       finished_at_ms = :now_ms,
       attempts_spent = attempts_spent + :spent,
       releases = :releases,
       failure_kind = :failure_kind,
       failure_message = :failure_message,
       claim_worker_id = NULL,
       claim_incarnation = NULL,
       expires_at_ms = NULL,
       started_at_ms = NULL
 WHERE workload_id = :workload_id
   AND fencing_token = :fencing_token
   AND claim_worker_id = :worker_id
   AND state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
   AND (:lapsed = 0 OR expires_at_ms <= :now_ms)
"""

CANCEL_HELD = """
UPDATE workloads
   SET state = 'CANCELLED',
       lane_id = NULL,
       demand_id = NULL,
       finished_at_ms = :now_ms,
       attempts_spent = attempts_spent + :spent,
       releases = :releases,
       failure_kind = :failure_kind,
       failure_message = :failure_message,
       claim_worker_id = NULL,
       claim_incarnation = NULL,
       expires_at_ms = NULL,
       started_at_ms = NULL
 WHERE workload_id = :workload_id
   AND fencing_token = :fencing_token
   AND claim_worker_id = :worker_id
   AND state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
   AND (:lapsed = 0 OR expires_at_ms <= :now_ms)
"""

CLOSE_CLAIM = """
UPDATE claims
   SET ended_at_ms = :now_ms,
       end_kind = :end_kind,
       end_state = :end_state,
       end_sha256 = :end_sha256,
       spent = :spent,
       retry_at_ms = :eligible_at_ms,
       failure_message = :failure_message,
       expires_at_ms = :expires_at_ms,
       started_at_ms = :started_at_ms
 WHERE fencing_token = :fencing_token
   AND workload_id = :workload_id
   AND ended_at_ms IS NULL
RETURNING tenant_id, pool_id, concurrency_key
"""

LIVE_OF_WORKER = """
SELECT c.workload_id, c.fencing_token
  FROM claims c
 WHERE c.worker_id = :worker_id
   AND c.ended_at_ms IS NULL
 ORDER BY c.fencing_token
"""

#: The event of an end is named after the verb that ended it; any other kind is a worker's `fail`.
VERBS: Mapping[str, str] = {
    "completed": "complete",
    "released": "release",
    "evicted": "evict",
    "lease_expired": "recover",
    "cancelled_by_force": "cancel",
    "worker_lost": "lose",
    "restored": "restore",
    "authority_lost": "withdraw",
    "total_timeout": "time_out",
}

#: What an attempt's failure says when nobody wrote a message.
MESSAGES: Mapping[str, str] = {
    "lease_expired": "the lease ended without a renewal",
    "worker_lost": "the worker was lost or replaced",
    "released": "released too many times in a row",
    "cancelled_by_force": "cancelled while it was held",
    "authority_lost": "the worker's grant no longer covers it",
    "restored": "the database was put back to an earlier state",
    "evicted": "taken from its worker by hand",
}


class End(NamedTuple):
    """How a claim ends.

    `kind` decides what it costs and whether it is tried again. `to` (READY, DEAD_LETTERED)
    and `spend` are an operator's word over that. `fencing_token` mirrors the claim it was decided
    for, `lapsed` demands that its lease has ended by now. `body_sha256` marks an end
    by the worker's own verb, so that a repeat of it is known again.
    """

    kind: str
    message: str | None = None
    retry_after_ms: int | None = None
    body_sha256: str | None = None
    actor: str | None = None
    to: str | None = None
    spend: bool | None = None
    fencing_token: int | None = None
    lapsed: bool = False


class Ended(NamedTuple):
    """An ended claim: the state its workload went to, and when it may be taken again if READY."""

    claim_id: str
    fencing_token: int
    workload_id: str
    worker_id: str
    state: str
    eligible_at_ms: int | None
    cancel_requested: bool


def end_claim(tx: Tx, now: Now, workload_id: str, end: End, *, held: Row | None = None) -> Ended:
    """End the live claim of a workload: the workload, the claim row and the event at once.

    Frees the worker's slot, sets a drained worker that held its last claim OFFLINE, offers the
    workload to its lane when it may be taken again now, and tells who waits for either.
    `held` is what HELD gives, where a fenced UPDATE has just given it. Kind `completed` comes from
    `outcomes.complete` alone, whose UPDATE has made the workload COMPLETED already; every other end
    is decided by `retry.fate`. Refuses WORKLOAD_STALE_FENCE when there is no such live claim.
    """
    if held is None:
        held = _held(tx, workload_id, end.fencing_token)
    if end.kind == "completed":
        fate = retry.Fate("COMPLETED", None, 1, 0)
    else:
        fate = retry.fate(
            held,
            now,
            end.kind,
            to=end.to,
            spend=end.spend,
            retry_after_ms=end.retry_after_ms or 0,
        )
        _leave(tx, now, held, fate, end)
    _close(tx, now, held, fate, end)
    if held["timeouts"] != deadlines.NONE:
        deadlines.arm(tx, now, held["workload_id"])
    _tell(tx, now, held, fate, end)
    return Ended(
        f"claim_{held['fencing_token']}",
        held["fencing_token"],
        held["workload_id"],
        held["worker_id"],
        fate.state,
        fate.eligible_at_ms,
        bool(held["cancel_requested"]),
    )


def end_claims_of(tx: Tx, now: Now, worker_id: str, kind: str) -> list[str]:
    """End every live claim of a worker, oldest token first; the ids of the claims ended.

    At most its concurrency of 1,024, some 40 ms. Repeating ends what came since, usually nothing.
    """
    return [
        end_claim(
            tx, now, claim["workload_id"], End(kind, fencing_token=claim["fencing_token"])
        ).claim_id
        for claim in tx.rows(LIVE_OF_WORKER, {"worker_id": worker_id})
    ]


def _held(tx: Tx, workload_id: str, fencing_token: int | None) -> Row:
    held = tx.row(HELD, {"workload_id": workload_id})
    if held is None or fencing_token not in (None, held["fencing_token"]):
        raise Refused("WORKLOAD_STALE_FENCE", "the workload has no such live claim")
    return held


def _leave(tx: Tx, now: Now, held: Row, fate: retry.Fate, end: End) -> None:
    """Write the workload's side of an end that is not `completed`."""
    failed = fate.state != "READY" or end.kind not in retry.FREE
    params: dict[str, object] = {
        "workload_id": held["workload_id"],
        "fencing_token": held["fencing_token"],
        "worker_id": held["worker_id"],
        "now_ms": now.lease_ms,
        "lapsed": int(end.lapsed),
        "spent": fate.spent,
        "releases": fate.releases,
        "failure_kind": end.kind if failed else None,
        "failure_message": _message(end) if failed else None,
    }
    if fate.state == "READY":
        assert fate.eligible_at_ms is not None
        params["eligible_at_ms"] = fate.eligible_at_ms
        params["rank"] = retry.rank(fate.eligible_at_ms, held["priority"])
        params["due"] = int(fate.eligible_at_ms <= now.lease_ms)
        changed = tx.change(RETURN_TO_READY, params)
    elif fate.state == "DEAD_LETTERED":
        changed = tx.change(DEAD_LETTER, params)
    else:
        changed = tx.change(CANCEL_HELD, params)
    if changed != 1:
        raise Refused("WORKLOAD_STALE_FENCE", "the claim is not the one that was to end")


def _close(tx: Tx, now: Now, held: Row, fate: retry.Fate, end: End) -> None:
    closed = tx.row(
        CLOSE_CLAIM,
        {
            "fencing_token": held["fencing_token"],
            "workload_id": held["workload_id"],
            "now_ms": now.lease_ms,
            "end_kind": end.kind,
            "end_state": fate.state,
            "end_sha256": end.body_sha256,
            "spent": fate.spent,
            "eligible_at_ms": fate.eligible_at_ms,
            "failure_message": _message(end),
            "expires_at_ms": held["expires_at_ms"],
            "started_at_ms": held["started_at_ms"],
        },
    )
    if closed is None:
        raise RuntimeError(f"claim_{held['fencing_token']} is held by a workload, yet has ended")
    if closed["pool_id"] is not None or closed["concurrency_key"] is not None:
        gates.leave(tx, closed)


def _tell(tx: Tx, now: Now, held: Row, fate: retry.Fate, end: End) -> None:
    """Write the event, and tell who waits: for the slot, for the work, for the outcome."""
    events.tell(
        tx,
        now,
        _verb(end),
        tenant_id=held["tenant_id"],
        application_id=held["application_id"],
        workload_id=held["workload_id"],
        worker_id=held["worker_id"],
        fencing_token=held["fencing_token"],
        from_state=held["state"],
        to_state=fate.state,
        eligible_at_ms=fate.eligible_at_ms,
        end_kind=end.kind,
        actor=end.actor,
    )
    if fate.state != "READY":
        tx.tell("workload", held["workload_id"])
        if held["awaited"] or held["group_name"] is not None:
            dependencies.ended(tx, now, held, fate.state)
    elif fate.eligible_at_ms is not None and fate.eligible_at_ms > now.lease_ms:
        tx.tell("due", str(fate.eligible_at_ms))
    elif fate.eligible_at_ms is not None:
        rank = retry.rank(fate.eligible_at_ms, held["priority"])
        demands.offer(tx, held["lane_id"], held["demand_id"], rank, held["seq"])
        tx.tell("ready", f"{held['tenant_id']}/{held['application_id']}")
    # Who ended it itself need not be told so; it only has room again.
    tx.tell("worker" if end.body_sha256 is None else "room", held["worker_id"])
    if held["lifecycle"] == "DRAINING":
        workers.idle(tx, held["worker_id"], now)


def _verb(end: End) -> str:
    # `timeout` is a worker's word as well; only what the worker said has a body.
    if end.kind == "timeout" and end.body_sha256 is None:
        return "time_out"
    return VERBS.get(end.kind, "fail")


def _message(end: End) -> str | None:
    return end.message if end.message is not None else MESSAGES.get(end.kind)
