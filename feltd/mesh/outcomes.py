"""How a holder ends its own claim: complete, fail, release.

The same fence as in fence.py decides; then attempts.end_claim ends the claim in the same
transaction. Because answers get lost, the same verb by the claim it ended gets the recorded
outcome again, and a complete with another body is told that one was recorded.
"""

import hashlib

from msgspec.json import encode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.mesh import artifacts, fence, refusal, secrets
from feltd.mesh.attempts import End, Ended, end_claim
from feltd.mesh.refusal import Verb
from feltd.mesh.retry import RESERVED
from feltd.mesh.states import LIVE_STATES
from feltd.model.base import Ask
from feltd.model.claim import Complete, Fail, Outcome, Release
from feltd.store.tx import Tx

COMPLETE = """
UPDATE workloads
   SET state = 'COMPLETED',
       lane_id = NULL,
       demand_id = NULL,
       finished_at_ms = :now_ms,
       attempts_spent = attempts_spent + 1,
       releases = 0,
       failure_kind = NULL,
       failure_message = NULL,
       result_id = :result_id,
       result_token = fencing_token,
       result_started_at_ms = started_at_ms,
       result_expires_at_ms = expires_at_ms,
       output = :output,
       artifacts = :artifacts,
       result_logs = :result_logs,
       resource_usage = :resource_usage,
       claim_worker_id = NULL,
       claim_incarnation = NULL,
       expires_at_ms = NULL,
       started_at_ms = NULL
 WHERE workload_id = :workload_id
   AND fencing_token = :fencing_token
   AND claim_worker_id = :worker_id
   AND state IN ('RUNNING', 'CHECKPOINTED')
   AND expires_at_ms > :now_ms
   AND (timeouts = '{}'
        OR NOT EXISTS (SELECT 1
                         FROM deadlines d
                        WHERE d.workload_id = :workload_id
                          AND d.at_ms <= :now_ms))
   AND EXISTS (SELECT 1
                 FROM workers k
                WHERE k.worker_id = :worker_id
                  AND k.incarnation = workloads.claim_incarnation
                  AND k.incarnation = coalesce(:incarnation, k.incarnation)
                  AND k.authority_live = 1
                  AND k.authority_unsettled = 0
                  AND coalesce(k.authority_expires_at_ms, :wall_ms + 1) > :wall_ms)
   AND (:key_id = ''
        OR EXISTS (SELECT 1
                     FROM keys y
                    WHERE y.key_id = :key_id
                      AND y.revoked_at_ms IS NULL
                      AND coalesce(y.expires_at_ms, :wall_ms + 1) > :wall_ms))
RETURNING workload_id, seq, tenant_id, application_id, fencing_token, lane_id, demand_id, priority,
          cancel_requested, timeouts, awaited, group_name, result_started_at_ms AS started_at_ms,
          result_expires_at_ms AS expires_at_ms, :worker_id AS worker_id,
          CASE WHEN EXISTS (SELECT 1
                              FROM checkpoints c
                             WHERE c.workload_id = :workload_id
                               AND c.fencing_token = :fencing_token) THEN 'CHECKPOINTED'
               ELSE 'RUNNING' END AS state,
          (SELECT k.lifecycle
             FROM workers k
            WHERE k.worker_id = :worker_id) AS lifecycle,
          (SELECT k.last_seen_at_ms
             FROM workers k
            WHERE k.worker_id = :worker_id) AS last_seen_at_ms
"""

FAIL = """
UPDATE workloads
   SET failure_kind = :kind,
       failure_message = :message
 WHERE workload_id = :workload_id
   AND fencing_token = :fencing_token
   AND claim_worker_id = :worker_id
   AND state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
   AND expires_at_ms > :now_ms
   AND (timeouts = '{}'
        OR NOT EXISTS (SELECT 1
                         FROM deadlines d
                        WHERE d.workload_id = :workload_id
                          AND d.at_ms <= :now_ms))
   AND EXISTS (SELECT 1
                 FROM workers k
                WHERE k.worker_id = :worker_id
                  AND k.incarnation = workloads.claim_incarnation
                  AND k.incarnation = coalesce(:incarnation, k.incarnation)
                  AND k.authority_live = 1
                  AND k.authority_unsettled = 0
                  AND coalesce(k.authority_expires_at_ms, :wall_ms + 1) > :wall_ms)
   AND (:key_id = ''
        OR EXISTS (SELECT 1
                     FROM keys y
                    WHERE y.key_id = :key_id
                      AND y.revoked_at_ms IS NULL
                      AND coalesce(y.expires_at_ms, :wall_ms + 1) > :wall_ms))
RETURNING workload_id, seq, tenant_id, application_id, state, fencing_token,
          claim_worker_id AS worker_id, expires_at_ms, started_at_ms, attempts_spent, max_attempts,
          releases, cancel_requested, priority, retry_policy, timeouts, lane_id, demand_id,
          awaited, group_name,
          (SELECT k.lifecycle
             FROM workers k
            WHERE k.worker_id = :worker_id) AS lifecycle,
          (SELECT k.last_seen_at_ms
             FROM workers k
            WHERE k.worker_id = :worker_id) AS last_seen_at_ms
"""

# What is given back is not failed: only what the holder told of its progress is void.
RELEASE = """
UPDATE workloads
   SET progress = NULL
 WHERE workload_id = :workload_id
   AND fencing_token = :fencing_token
   AND claim_worker_id = :worker_id
   AND state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
   AND expires_at_ms > :now_ms
   AND (timeouts = '{}'
        OR NOT EXISTS (SELECT 1
                         FROM deadlines d
                        WHERE d.workload_id = :workload_id
                          AND d.at_ms <= :now_ms))
   AND EXISTS (SELECT 1
                 FROM workers k
                WHERE k.worker_id = :worker_id
                  AND k.incarnation = workloads.claim_incarnation
                  AND k.incarnation = coalesce(:incarnation, k.incarnation)
                  AND k.authority_live = 1
                  AND k.authority_unsettled = 0
                  AND coalesce(k.authority_expires_at_ms, :wall_ms + 1) > :wall_ms)
   AND (:key_id = ''
        OR EXISTS (SELECT 1
                     FROM keys y
                    WHERE y.key_id = :key_id
                      AND y.revoked_at_ms IS NULL
                      AND coalesce(y.expires_at_ms, :wall_ms + 1) > :wall_ms))
RETURNING workload_id, seq, tenant_id, application_id, state, fencing_token,
          claim_worker_id AS worker_id, expires_at_ms, started_at_ms, attempts_spent, max_attempts,
          releases, cancel_requested, priority, retry_policy, timeouts, lane_id, demand_id,
          awaited, group_name,
          (SELECT k.lifecycle
             FROM workers k
            WHERE k.worker_id = :worker_id) AS lifecycle,
          (SELECT k.last_seen_at_ms
             FROM workers k
            WHERE k.worker_id = :worker_id) AS last_seen_at_ms
"""


def complete(tx: Tx, ask: Ask[Complete], now: Now) -> Outcome:
    """Store the one result and end the claim: RUNNING or CHECKPOINTED → COMPLETED, for ever.

    `result_id` defaults to result_<workload_id>_<fencing_token>; `start` starts a CLAIMED one
    first. `logs` are redacted, cut and bounded like log lines. Repeating with the same body gives
    the recorded outcome; with another body WORKLOAD_STALE_FENCE with recorded: true. Refuses
    WORKLOAD_INVALID for artifacts that the runtime policy does not allow, else as `fence.start`.
    """
    body = ask.body
    params = refusal.presented(ask, now)
    artifacts.require(tx, params, body.artifacts)
    if body.start:
        _start_first(tx, now, params)
    digest = digest_of(body)
    result_id = body.result_id or f"result_{ask.id}_{body.fencing_token}"
    row = fence.hold(
        tx,
        now,
        COMPLETE,
        {
            **params,
            "result_id": result_id,
            "output": fence.text(body.output),
            "artifacts": fence.text(body.artifacts),
            "result_logs": fence.text([fence.cut(secrets.redacted(line)) for line in body.logs]),
            "resource_usage": fence.text(body.resource_usage),
        },
    )
    if row is None:
        verb = Verb("complete", frozenset({"RUNNING", "CHECKPOINTED"}), digest)
        return refusal.explain(tx, ask, now, params, verb)
    ended = end_claim(tx, now, ask.id, End("completed", body_sha256=digest), held=row)
    return _outcome(ended, result_id)


def fail(tx: Tx, ask: Ask[Fail], now: Now) -> Outcome:
    """End the claim as failed; the workload's retry policy decides between READY and DEAD_LETTERED.

    `kind` may be any but the daemon's own. `retry_after_ms` (at most a day) replaces a shorter
    backoff. `start` starts a CLAIMED one first. Repeating gives the recorded outcome. Refuses
    WORKLOAD_INVALID for a reserved kind, WORKLOAD_SECRET_IN_TEXT unless on_secret is "redact",
    else as `fence.start`.
    """
    body = ask.body
    if body.kind in RESERVED or body.kind == "completed":
        raise Refused(
            "WORKLOAD_INVALID",
            f"{body.kind} is an end that only the daemon gives",
            errors=[{"pointer": "/kind", "detail": "reserved"}],
        )
    message = secrets.screened(body.message, body.on_secret, "/message")
    params = refusal.presented(ask, now)
    if body.start:
        _start_first(tx, now, params)
    row = fence.hold(tx, now, FAIL, {**params, "kind": body.kind, "message": message})
    if row is None:
        return refusal.explain(tx, ask, now, params, Verb("fail", LIVE_STATES))
    end = End(
        body.kind,
        message=message,
        retry_after_ms=body.retry_after_ms,
        body_sha256=_sha256([body.kind, message, body.retry_after_ms]),
    )
    return _outcome(end_claim(tx, now, ask.id, end, held=row))


def release(tx: Tx, ask: Ask[Release], now: Now) -> Outcome:
    """Give the workload back: READY at once, no attempt spent.

    The hundredth release in a row makes it a dead letter. Repeating gives the recorded outcome.
    Refuses as `fence.start`.
    """
    params = refusal.presented(ask, now)
    row = fence.hold(tx, now, RELEASE, params)
    if row is None:
        return refusal.explain(tx, ask, now, params, Verb("release", LIVE_STATES))
    end = End("released", body_sha256=_sha256("release"))
    return _outcome(end_claim(tx, now, ask.id, end, held=row))


def digest_of(body: Complete) -> str:
    """SHA-256, hex, of what a complete stores: the same for a repeat, whatever its member order."""
    return _sha256([body.result_id, body.output, body.artifacts, body.logs, body.resource_usage])


def _start_first(tx: Tx, now: Now, params: dict[str, object]) -> None:
    """Start a claim that is only CLAIMED; what is wrong with any other the next UPDATE tells."""
    row = fence.hold(tx, now, fence.START, params)
    if row is not None:
        fence.tell_started(tx, now, params, row)


def _outcome(ended: Ended, result_id: str | None = None) -> Outcome:
    return Outcome(
        workload_id=ended.workload_id,
        state=ended.state,
        claim_id=ended.claim_id,
        fencing_token=ended.fencing_token,
        cancel_requested=ended.cancel_requested,
        result_id=result_id,
        eligible_at_ms=ended.eligible_at_ms,
    )


def _sha256(value: object) -> str:
    return hashlib.sha256(encode(value, order="deterministic")).hexdigest()
