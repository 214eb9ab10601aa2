"""What the holder of a claim may do while it holds it: start, renew, checkpoint, log.

One rule over all four: the conditional UPDATE tests workload, token, worker, incarnation, state,
the lease's end, live authority and the key, all as stored. Only when it changed no row does
anybody read why. Nothing the caller says of its claim is believed. Never end a claim here.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.json import encode

from feltd.clock import Now
from feltd.mesh import deadlines, events, refusal, secrets, workers
from feltd.mesh.refusal import Verb
from feltd.mesh.states import LIVE_STATES
from feltd.model.base import LEASE_MS_DEFAULT, Ask
from feltd.model.claim import (
    LOG_LINE_BYTES_MAX,
    LOG_LINES_MAX,
    Checkpoint,
    Log,
    LogLine,
    Outcome,
    Progress,
    Renew,
    Start,
)
from feltd.store.tx import Row, Tx

START = """
UPDATE workloads
   SET state = 'RUNNING',
       started_at_ms = :now_ms
 WHERE workload_id = :workload_id
   AND fencing_token = :fencing_token
   AND claim_worker_id = :worker_id
   AND state = 'CLAIMED'
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
RETURNING state, fencing_token, expires_at_ms, cancel_requested, tenant_id, application_id,
          timeouts,
          (SELECT k.last_seen_at_ms
             FROM workers k
            WHERE k.worker_id = :worker_id) AS last_seen_at_ms
"""

RENEW = """
UPDATE workloads
   SET expires_at_ms = CASE WHEN expires_at_ms < :until_ms THEN :until_ms
                            ELSE expires_at_ms END,
       progress = coalesce(:progress, progress)
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
RETURNING state, fencing_token, expires_at_ms, cancel_requested, tenant_id, application_id,
          (SELECT k.last_seen_at_ms
             FROM workers k
            WHERE k.worker_id = :worker_id) AS last_seen_at_ms
"""

CHECKPOINT = """
UPDATE workloads
   SET state = 'CHECKPOINTED',
       expires_at_ms = CASE WHEN expires_at_ms < :until_ms THEN :until_ms
                            ELSE expires_at_ms END,
       progress = coalesce(:progress, progress)
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
RETURNING state, fencing_token, expires_at_ms, cancel_requested, tenant_id, application_id,
          (SELECT k.last_seen_at_ms
             FROM workers k
            WHERE k.worker_id = :worker_id) AS last_seen_at_ms,
          (SELECT c.fencing_token
             FROM checkpoints c
            WHERE c.workload_id = :workload_id) AS checkpoint_token
"""

# A log changes nothing of the claim, so its fence is a read; the lines follow in the same
# transaction. Rewriting the workload's row for every line would copy its input each time.
HOLDS = """
SELECT w.state, w.fencing_token, w.expires_at_ms, w.cancel_requested, w.tenant_id,
       w.application_id, k.last_seen_at_ms
  FROM workloads w
  JOIN workers k ON k.worker_id = w.claim_worker_id
 WHERE w.workload_id = :workload_id
   AND w.fencing_token = :fencing_token
   AND w.claim_worker_id = :worker_id
   AND w.state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
   AND w.expires_at_ms > :now_ms
   AND NOT EXISTS (SELECT 1
                     FROM deadlines d
                    WHERE d.workload_id = :workload_id
                      AND d.at_ms <= :now_ms)
   AND k.incarnation = w.claim_incarnation
   AND k.incarnation = coalesce(:incarnation, k.incarnation)
   AND k.authority_live = 1
   AND k.authority_unsettled = 0
   AND coalesce(k.authority_expires_at_ms, :wall_ms + 1) > :wall_ms
   AND (:key_id = ''
        OR EXISTS (SELECT 1
                     FROM keys y
                    WHERE y.key_id = :key_id
                      AND y.revoked_at_ms IS NULL
                      AND coalesce(y.expires_at_ms, :wall_ms + 1) > :wall_ms))
"""

BOUNDS = """
SELECT k.authority_expires_at_ms, k.no_renew_after_at_ms, c.lease_ms
  FROM workers k
  LEFT JOIN claims c ON c.fencing_token = :fencing_token
 WHERE k.worker_id = :worker_id
"""

KEEP_CHECKPOINT = """
INSERT INTO checkpoints (workload_id, fencing_token, at_ms, state)
VALUES (:workload_id, :fencing_token, :now_ms, :state)
ON CONFLICT (workload_id) DO UPDATE
   SET fencing_token = excluded.fencing_token,
       at_ms = excluded.at_ms,
       state = excluded.state
"""

WRITE_LINE = """
INSERT INTO claim_logs (workload_id, fencing_token, at_ms, level, text)
VALUES (:workload_id, :fencing_token, :at_ms, :level, :text)
"""

FORGET_LINES = """
DELETE FROM claim_logs
 WHERE fencing_token = :fencing_token
   AND seq <= (SELECT l.seq
                 FROM claim_logs l
                WHERE l.fencing_token = :fencing_token
                ORDER BY l.seq DESC
                LIMIT 1 OFFSET :lines_max)
"""

LIVE_OF_WORKER = """
SELECT c.workload_id, c.fencing_token
  FROM claims c
 WHERE c.worker_id = :worker_id
   AND c.incarnation = :incarnation
   AND c.ended_at_ms IS NULL
 ORDER BY c.fencing_token
"""


def start(tx: Tx, ask: Ask[Start], now: Now) -> Outcome:
    """CLAIMED → RUNNING. Repeating while the claim lives changes nothing.

    Refuses, in this order: MESH_CLAIM_SCOPE_DENIED, WORKLOAD_NOT_FOUND, WORKLOAD_STALE_FENCE (stop
    working, nothing of it will be accepted), MESH_CAPABILITY_DENIED, WORKLOAD_TRANSITION_DENIED.
    So do all fenced verbs.
    """
    params = refusal.presented(ask, now)
    row = hold(tx, now, START, params)
    if row is None:
        return refusal.explain(tx, ask, now, params, Verb("start", frozenset({"CLAIMED"})))
    tell_started(tx, now, params, row)
    return refusal.outcome(params, row)


def tell_started(tx: Tx, now: Now, params: Mapping[str, object], row: Row) -> None:
    """What follows a claim's start: its execution_ms runs, and the event."""
    if row["timeouts"] != deadlines.NONE:
        deadlines.arm(tx, now, str(params["workload_id"]))
    events.tell(
        tx,
        now,
        "start",
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        workload_id=str(params["workload_id"]),
        worker_id=str(params["worker_id"]),
        fencing_token=row["fencing_token"],
        from_state="CLAIMED",
        to_state="RUNNING",
    )


def renew(tx: Tx, ask: Ask[Renew], now: Now) -> Outcome:
    """Push the end of a held lease to now + lease_ms, never earlier than it is.

    lease_ms is 1,000..3,600,000; absent, what was claimed for. The end stays within the worker's
    grant chain and its drain's no_renew_after. Repeating is harmless; writes no event. Refuses as
    `start`.
    """
    params = refusal.presented(ask, now)
    params["until_ms"] = _until_ms(tx, now, params, ask.body.lease_ms)
    params["progress"] = _progress(ask.body.progress)
    row = hold(tx, now, RENEW, params)
    if row is None:
        return refusal.explain(tx, ask, now, params, Verb("renew", LIVE_STATES))
    return refusal.outcome(params, row)


def renew_held(
    tx: Tx,
    now: Now,
    worker: Row,
    claim_ids: tuple[str, ...],
    lease_ms: int | None = None,
) -> dict[str, int]:
    """Renew those of `claim_ids` that the worker's present incarnation holds: id → new end.

    For heartbeats, whose caller is already known to be the worker. Ids that are not held are
    passed over; the heartbeat names them among its differences.
    """
    named = set(claim_ids)
    renewed: dict[str, int] = {}
    owner = {"worker_id": worker["worker_id"], "incarnation": worker["incarnation"]}
    for claim in tx.rows(LIVE_OF_WORKER, owner):
        claim_id = f"claim_{claim['fencing_token']}"
        if claim_id not in named:
            continue
        params: dict[str, object] = {
            **owner,
            "workload_id": claim["workload_id"],
            "fencing_token": claim["fencing_token"],
            "key_id": "",
            "now_ms": now.lease_ms,
            "wall_ms": now.wall_ms,
            "progress": None,
        }
        params["until_ms"] = _until_ms(tx, now, params, lease_ms)
        row = tx.row(RENEW, params)
        if row is not None:
            renewed[claim_id] = row["expires_at_ms"]
    return renewed


def checkpoint(tx: Tx, ask: Ask[Checkpoint], now: Now) -> Outcome:
    """Keep `data` for the next attempt in place of what was kept before, and renew.

    RUNNING → CHECKPOINTED, or stays. Repeating stores the same again. Refuses as `start`.
    """
    params = refusal.presented(ask, now)
    params["until_ms"] = _until_ms(tx, now, params, ask.body.lease_ms)
    params["progress"] = _progress(ask.body.progress)
    row = hold(tx, now, CHECKPOINT, params)
    if row is None:
        verb = Verb("checkpoint", frozenset({"RUNNING", "CHECKPOINTED"}))
        return refusal.explain(tx, ask, now, params, verb)
    again = row["checkpoint_token"] == row["fencing_token"]
    tx.change(KEEP_CHECKPOINT, {**params, "state": text(ask.body.data)})
    events.tell(
        tx,
        now,
        "checkpoint",
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        workload_id=ask.id,
        worker_id=ask.body.worker_id,
        fencing_token=row["fencing_token"],
        from_state="CHECKPOINTED" if again else "RUNNING",
        to_state="CHECKPOINTED",
        expires_at_ms=row["expires_at_ms"],
    )
    return refusal.outcome(params, row)


def log(tx: Tx, ask: Ask[Log], now: Now) -> Outcome:
    """Append lines to the attempt's log, each cut to 1 KiB; the newest 1,000 stay.

    Repeating appends again. Refuses WORKLOAD_SECRET_IN_TEXT unless on_secret is "redact", else as
    `start`.
    """
    lines = [
        _screened(line, ask.body.on_secret, f"/lines/{place}")
        for place, line in enumerate(ask.body.lines)
    ]
    params = refusal.presented(ask, now)
    row = hold(tx, now, HOLDS, params)
    if row is None:
        return refusal.explain(tx, ask, now, params, Verb("log", LIVE_STATES))
    for line in lines:
        at_ms = now.wall_ms if line.at_ms is None else line.at_ms
        written = {"at_ms": at_ms, "level": line.level, "text": line.text}
        tx.change(WRITE_LINE, {**params, **written})
    tx.change(FORGET_LINES, {**params, "lines_max": LOG_LINES_MAX})
    tx.tell("log", ask.id)
    return refusal.outcome(params, row)


def hold(tx: Tx, now: Now, sql: str, params: Mapping[str, object]) -> Row | None:
    """Run a fenced statement; its row, or None when the fence does not hold.

    A worker whose grant changed under it is settled first and tried once more. What passes the
    fence counts as heard from the worker.
    """
    row = tx.row(sql, params)
    if row is None and refusal.settled(tx, now, params["worker_id"]):
        row = tx.row(sql, params)
    if row is not None and row["last_seen_at_ms"] + workers.HEARD_EVERY_MS <= now.lease_ms:
        workers.heard(tx, str(params["worker_id"]), now)
    return row


def cut(line: str) -> str:
    """At most LOG_LINE_BYTES_MAX bytes of a line, whole characters."""
    raw = line.encode()
    if len(raw) <= LOG_LINE_BYTES_MAX:
        return line
    return raw[: LOG_LINE_BYTES_MAX - 3].decode(errors="ignore") + "…"


def text(value: Any) -> str:
    """Free JSON as it is stored; a `Raw` the handler has checked passes as it is."""
    return encode(value, order="deterministic").decode()


def _until_ms(tx: Tx, now: Now, params: Mapping[str, object], lease_ms: int | None) -> int:
    """Lease time a renewal may reach: never past the grant chain or a drain's binding end."""
    bounds = tx.row(BOUNDS, params)
    if bounds is None:
        return now.lease_ms
    until_ms = now.lease_ms + (lease_ms or bounds["lease_ms"] or LEASE_MS_DEFAULT)
    if bounds["authority_expires_at_ms"] is not None:
        until_ms = min(until_ms, now.lease_from_wall(bounds["authority_expires_at_ms"]))
    if bounds["no_renew_after_at_ms"] is not None:
        until_ms = min(until_ms, bounds["no_renew_after_at_ms"])
    return until_ms


def _progress(progress: Progress | None) -> str | None:
    return None if progress is None else text(progress)


def _screened(line: str | LogLine, on_secret: str, pointer: str) -> LogLine:
    sent = LogLine(text=line) if isinstance(line, str) else line
    screened = secrets.screened(sent.text, on_secret, pointer)
    return LogLine(text=cut(screened), at_ms=sent.at_ms, level=sent.level)
