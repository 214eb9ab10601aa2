"""Workloads as they stand: found by id, shown whole, with what happened to them.

Everything here only reads. Another tenant's workload answers exactly as a made-up id; a worker's
key sees what its worker holds and nothing else.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Raw
from msgspec.json import decode

from feltd.clock import Now
from feltd.identity import principals
from feltd.mesh import policies
from feltd.mesh.states import FINAL_STATES
from feltd.model.base import Ask, Caller, Subject
from feltd.model.policy import Concurrency, Placement, Rate, Timeouts
from feltd.model.workload import (
    ANSWER_BYTES_MAX,
    After,
    Attempt,
    Failure,
    Holding,
    LateResult,
    LateResults,
    LoggedLine,
    Logs,
    Resources,
    Result,
    RetryPolicy,
    Workload,
)
from feltd.store.tx import Row, Tx

#: Attempts shown of one workload: the newest. 1,000 spent ones are the most a policy allows.
ATTEMPTS_MAX = 1_000
#: A thousand attempts may each have said 8 KiB: of the older ones only the beginning is shown.
MESSAGES_BYTES_MAX = 512 * 1024
MESSAGE_CHARS_MIN = 200
#: Late results carry whole outputs: so many at a time are read to fill an answer.
LATE_AT_ONCE = 4
#: Nothing waits for these any more.
SETTLED_STATES = FINAL_STATES | {"DEAD_LETTERED"}

READ = """
SELECT w.seq, w.workload_id, w.tenant_id, w.application_id, w.idempotency_key, w.state, w.lane_id,
       w.demand_id, w.rank, w.due, w.eligible_at_ms, w.fencing_token, w.claim_worker_id,
       w.claim_incarnation, w.expires_at_ms, w.started_at_ms, w.attempt_number, w.attempts_spent,
       w.max_attempts, w.cancel_requested, w.priority, w.not_before_at_ms, w.ready_at_ms,
       w.created_at_ms, w.finished_at_ms, w.environment, w.definition_id, w.definition_revision,
       w.trigger, w.requested_by, w.authorization_grant_id, w.capability_snapshot,
       w.connection_scopes, w.retry_policy, w.placement, w.resources, w.on_worker_lost, w.labels,
       w.traceparent, w.progress, w.failure_kind, w.failure_message, w.result_id, w.result_token,
       w.resource_usage, w.artifacts, w.result_logs, w.input, w.output, w.timeouts,
       w.runtime_policy, w.dependencies, w.dependency_policy, w.awaited, w.group_name,
       w.concurrency, w.rate, w.pool_id, w.gated
  FROM workloads w
 WHERE w.workload_id = :workload_id
"""

ATTEMPTS = """
SELECT c.fencing_token, c.worker_id, c.number, c.issued_at_ms, c.expires_at_ms, c.started_at_ms,
       c.ended_at_ms, c.end_kind, c.spent, c.failure_message
  FROM claims c
 WHERE c.workload_id = :workload_id
 ORDER BY c.fencing_token DESC
 LIMIT :attempts_max
"""

CHECKPOINT = """
SELECT k.state
  FROM checkpoints k
 WHERE k.workload_id = :workload_id
"""

LOGS = """
SELECT l.seq, l.fencing_token, l.at_ms, l.level, l.text
  FROM claim_logs l
 WHERE l.workload_id = :workload_id
   AND l.seq > :after
 ORDER BY l.seq
 LIMIT :limit
"""

LATE_RESULTS = """
SELECT r.fencing_token, r.workload_id, r.worker_id, r.at_ms, r.outcome, r.report
  FROM late_results r
 WHERE r.workload_id = :workload_id
   AND r.fencing_token > :after
 ORDER BY r.fencing_token
 LIMIT :limit
"""


def lookup(tx: Tx, caller: Caller, workload_id: str) -> Row:
    """The row of a workload the caller may see; refuses WORKLOAD_NOT_FOUND."""
    row = tx.row(READ, {"workload_id": workload_id})
    if row is None:
        raise principals.not_found("WORKLOAD_NOT_FOUND")
    if caller.worker_id is not None:
        if row["claim_worker_id"] != caller.worker_id:
            raise principals.not_found("WORKLOAD_NOT_FOUND")
    else:
        principals.require_tenant(caller, row["tenant_id"], "WORKLOAD_NOT_FOUND")
    return row


def get(tx: Tx, ask: Ask[None], now: Now) -> Workload:
    """One workload by its id, whole. Refuses WORKLOAD_NOT_FOUND."""
    return shown(tx, lookup(tx, ask.caller, ask.id))


def logs(tx: Tx, ask: Ask[After], now: Now) -> Logs:
    """The lines its workers logged after line `after`, oldest first. Refuses WORKLOAD_NOT_FOUND."""
    row = lookup(tx, ask.caller, ask.id)
    lines = tx.rows(LOGS, _stretch(ask))
    return Logs(
        items=[
            LoggedLine(
                seq=line["seq"],
                claim_id=f"claim_{line['fencing_token']}",
                fencing_token=line["fencing_token"],
                at_ms=line["at_ms"],
                level=line["level"],
                text=line["text"],
            )
            for line in lines
        ],
        final=row["state"] in SETTLED_STATES,
    )


def late_results(tx: Tx, ask: Ask[After], now: Now) -> LateResults:
    """What came after the claims of a workload had ended, oldest first; ends early at 4 MiB.

    Refuses WORKLOAD_NOT_FOUND.
    """
    lookup(tx, ask.caller, ask.id)
    items: list[LateResult] = []
    size_bytes, after = 0, ask.body.after
    while len(items) < ask.body.limit:
        few = min(LATE_AT_ONCE, ask.body.limit - len(items))
        rows = tx.rows(LATE_RESULTS, {"workload_id": ask.id, "after": after, "limit": few})
        for row in rows:
            report = row["report"].encode()
            size_bytes += len(report)
            if items and size_bytes > ANSWER_BYTES_MAX:
                return LateResults(items)
            items.append(_late(row, report))
            after = row["fencing_token"]
        if len(rows) < few:
            break
    return LateResults(items)


def shown(tx: Tx, row: Row) -> Workload:
    """A workload as it is shown, from its row as READ gives it: two statements more."""
    claims = tx.rows(ATTEMPTS, {"workload_id": row["workload_id"], "attempts_max": ATTEMPTS_MAX})
    claims.reverse()
    checkpoint = tx.row(CHECKPOINT, {"workload_id": row["workload_id"]})
    return shape(row, claims, None if checkpoint is None else checkpoint["state"])


def shape(row: Row | Mapping[str, Any], claims: list[Row], checkpoint: str | None) -> Workload:
    """A workload as it is shown, from what was read of it; asks for nothing."""
    kind, _, identity = row["requested_by"].partition(":")
    return Workload(
        workload_id=row["workload_id"],
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        environment=row["environment"],
        definition_id=row["definition_id"],
        definition_revision=row["definition_revision"],
        trigger=row["trigger"],
        input=Raw(row["input"].encode()),
        requested_by=Subject(kind=kind, id=identity),
        authorization_grant_id=row["authorization_grant_id"],
        capability_snapshot=decode(row["capability_snapshot"], type=tuple[str, ...]),
        connection_scopes=decode(row["connection_scopes"], type=tuple[str, ...]),
        priority=row["priority"],
        idempotency_key=row["idempotency_key"],
        retry_policy=decode(row["retry_policy"], type=RetryPolicy),
        timeouts=decode(row["timeouts"], type=Timeouts),
        runtime_policy=policies.of(row["runtime_policy"]),
        dependencies=decode(row["dependencies"], type=tuple[str, ...]),
        dependency_policy=row["dependency_policy"],
        placement=decode(row["placement"], type=Placement),
        resources=decode(row["resources"], type=Resources),
        labels=decode(row["labels"]),
        state=row["state"],
        eligible_at_ms=row["eligible_at_ms"],
        fencing_token=row["fencing_token"],
        attempts=_attempts(row, claims),
        cancel_requested=bool(row["cancel_requested"]),
        created_at_ms=row["created_at_ms"],
        group=row["group_name"],
        concurrency=decode(row["concurrency"] or "null", type=Concurrency | None),
        rate=decode(row["rate"] or "null", type=Rate | None),
        on_worker_lost=row["on_worker_lost"],
        not_before_at_ms=row["not_before_at_ms"],
        current_claim=_holding(row, claims),
        checkpoint=None if checkpoint is None else Raw(checkpoint.encode()),
        progress=None if row["progress"] is None else Raw(row["progress"].encode()),
        result=_result(row),
        failure=_failure(row),
        traceparent=row["traceparent"],
        finished_at_ms=row["finished_at_ms"],
    )


def _attempts(row: Row | Mapping[str, Any], claims: list[Row]) -> list[Attempt]:
    """All of them; what the newest said is shown whole, what came before is cut."""
    attempts: list[Attempt] = []
    left_bytes = MESSAGES_BYTES_MAX
    for claim in reversed(claims):
        message = claim["failure_message"]
        if message is not None:
            left_bytes -= len(message.encode())
            if left_bytes < 0 and len(message) > MESSAGE_CHARS_MIN:
                message = message[: MESSAGE_CHARS_MIN - 1] + "…"
        attempts.append(_attempt(row, claim, message))
    attempts.reverse()
    return attempts


def _attempt(row: Row | Mapping[str, Any], claim: Row, message: str | None) -> Attempt:
    token, live = claim["fencing_token"], claim["ended_at_ms"] is None
    return Attempt(
        attempt_id=f"attempt_{token}",
        number=claim["number"],
        spent=bool(claim["spent"]),
        worker_id=claim["worker_id"],
        claim_id=f"claim_{token}",
        fencing_token=token,
        issued_at_ms=claim["issued_at_ms"],
        started_at_ms=row["started_at_ms"] if live else claim["started_at_ms"],
        ended_at_ms=claim["ended_at_ms"],
        end=claim["end_kind"],
        failure=None if message is None else Failure(claim["end_kind"], message),
    )


def _holding(row: Row | Mapping[str, Any], claims: list[Row]) -> Holding | None:
    if row["claim_worker_id"] is None or not claims:
        return None
    token, claim = row["fencing_token"], claims[-1]
    return Holding(
        claim_id=f"claim_{token}",
        lease_id=f"lease_{token}",
        attempt_id=f"attempt_{token}",
        attempt_number=claim["number"],
        worker_id=row["claim_worker_id"],
        fencing_token=token,
        issued_at_ms=claim["issued_at_ms"],
        expires_at_ms=row["expires_at_ms"],
        started_at_ms=row["started_at_ms"],
    )


def _result(row: Row | Mapping[str, Any]) -> Result | None:
    if row["result_id"] is None:
        return None
    return Result(
        result_id=row["result_id"],
        output=Raw(row["output"].encode()),
        artifacts=Raw((row["artifacts"] or "[]").encode()),
        logs=Raw((row["result_logs"] or "[]").encode()),
        resource_usage=Raw((row["resource_usage"] or "{}").encode()),
        fencing_token=row["result_token"],
    )


def _failure(row: Row | Mapping[str, Any]) -> Failure | None:
    # A workload that was completed after all has its failures among its attempts alone.
    if row["failure_kind"] is None or row["state"] == "COMPLETED":
        return None
    return Failure(row["failure_kind"], row["failure_message"] or "")


def _late(row: Row, report: bytes) -> LateResult:
    return LateResult(
        claim_id=f"claim_{row['fencing_token']}",
        fencing_token=row["fencing_token"],
        workload_id=row["workload_id"],
        worker_id=row["worker_id"],
        at_ms=row["at_ms"],
        outcome=row["outcome"],
        report=Raw(report),
    )


def _stretch(ask: Ask[After]) -> dict[str, object]:
    return {"workload_id": ask.id, "after": ask.body.after, "limit": ask.body.limit}
