"""After an outage both sides compare what they hold, and hold the same set afterwards.

The rows decide, by the daemon's clock. Results that could not be delivered are committed here when
their claim still lives, else kept as evidence and never as the outcome. Every live claim of the
worker is answered whole, also one it did not name: go on with it, or release it.
"""

from functools import partial
from itertools import pairwise
from typing import NamedTuple

from msgspec.json import encode
from msgspec.structs import replace

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import grants
from feltd.mesh import (
    attempts,
    authority,
    drain,
    fence,
    lifecycle,
    outcomes,
    overdue,
    refusal,
    retry,
    secrets,
    standing,
    workers,
)
from feltd.model.base import Ask
from feltd.model.claim import Complete, Fail, Outcome
from feltd.model.worker import AttemptResult, Failure, Reconciled, Reconciliation, Result
from feltd.store.tx import Kept, Row, Tx

HEAR = """
UPDATE workers
   SET last_seen_at_ms = :now_ms,
       health = :health,
       clock_skew_ms = coalesce(:clock_skew_ms, clock_skew_ms)
 WHERE worker_id = :worker_id
"""

TIMED_OUT = """
SELECT c.workload_id
  FROM claims c
  JOIN deadlines d ON d.workload_id = c.workload_id
 WHERE c.worker_id = :worker_id
   AND c.ended_at_ms IS NULL
   AND d.at_ms <= :now_ms
 ORDER BY c.fencing_token
"""

CLAIM = """
SELECT c.fencing_token, c.workload_id, c.worker_id, c.ended_at_ms, c.end_kind, c.end_sha256,
       w.expires_at_ms
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE c.fencing_token = :fencing_token
   AND c.worker_id = :worker_id
"""

LIVE = """
SELECT c.fencing_token, c.workload_id, w.expires_at_ms
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE c.worker_id = :worker_id
   AND c.ended_at_ms IS NULL
 ORDER BY c.fencing_token
"""

KEEP_LATE = """
INSERT INTO late_results (fencing_token, workload_id, worker_id, at_ms, outcome, report)
VALUES (:fencing_token, :workload_id, :worker_id, :now_ms, :outcome, :report)
ON CONFLICT (fencing_token) DO NOTHING
"""


class Verdicts(NamedTuple):
    """What became of finished attempts: recorded as their outcome, or too late for that."""

    accepted: set[str]
    late: set[str]


def reconcile(tx: Tx, ask: Ask[Reconciliation], now: Now) -> Reconciled:
    """Give each id that was sent its one verdict, and bring the worker back.

    claims: authoritative, or fenced · running attempts: of an authoritative claim, or cancel ·
    finished ones: accepted, late, or of an authoritative claim still. Results of live claims
    commit here. OFFLINE and RECOVERING become READY with the reported health; a drain stands.
    Every live claim is answered; past 4 MiB in all the rest are `truncated` (see StandingClaim).
    Repeating gives the same verdicts. Refuses WORKER_NOT_FOUND, WORKER_RECONCILIATION_DENIED
    (register first), WORKER_INVALID for an id in two lists; WORKER_UNAUTHORIZED when the grant's
    max_workers are there without it: the worker stays OFFLINE, what it holds runs to its lease,
    yet the results stand, as accepted_results and late_results of the refusal say.
    """
    row = workers.own(tx, ask.caller, ask.id, now)
    _require_same(row, ask.body)
    _require_once(ask.body)
    if row["authority_unsettled"]:
        authority.settle(tx, now, row["worker_id"])
    _time_out(tx, now, row["worker_id"])
    verdicts = _deliver(tx, ask, now)
    _let_lapse(tx, now, row["worker_id"])
    _require_room(tx, row, verdicts)
    _come_back(tx, ask, now, row)
    return _answer(tx, ask, now, verdicts)


def _require_same(row: Row, told: Reconciliation) -> None:
    same = (
        told.worker_id == row["worker_id"]
        and told.worker_version == row["version"]
        and told.capability_version == row["capability_version"]
    )
    if not same:
        raise Refused(
            "WORKER_RECONCILIATION_DENIED",
            "worker contract version changed",
            capability_version=row["capability_version"],
            incarnation=row["incarnation"],
        )


def _require_once(told: Reconciliation) -> None:
    """Refuse an id that is said to be two things at once."""
    said: dict[str, str] = {}
    for name in ("known_claims", "running_attempts", "completed_attempts", "failed_attempts"):
        for place, attempt_id in enumerate(getattr(told, name)):
            if said.setdefault(attempt_id, name) != name:
                raise _invalid(f"/{name}/{place}", f"{attempt_id} is in {said[attempt_id]} too")
    delivered: set[str] = set()
    for place, result in enumerate(told.results or ()):
        pointer, attempt_id = f"/results/{place}", result.attempt_id
        own_list = f"{result.outcome}_attempts"
        if said.get(attempt_id, own_list) != own_list:
            raise _invalid(pointer, f"{attempt_id} is in {said[attempt_id]} too")
        if attempt_id in delivered:
            raise _invalid(pointer, f"{attempt_id} has two results")
        delivered.add(attempt_id)
        _require_whole(result, pointer)


def _require_whole(told: AttemptResult, pointer: str) -> None:
    token = told.fencing_token
    if told.claim_id != f"claim_{token}" or told.attempt_id != f"attempt_{token}":
        raise _invalid(pointer, "attempt_id, claim_id and fencing_token name different claims")
    failed = told.outcome == "failed"
    if failed and told.failure is None:
        raise _invalid(f"{pointer}/failure", "is required when the outcome is failed")
    if (told.result if failed else told.failure) is not None:
        beside = "result" if failed else "failure"
        raise _invalid(f"{pointer}/{beside}", f"does not belong to the outcome {told.outcome}")
    if told.failure is not None and told.failure.kind in {*retry.RESERVED, "completed"}:
        raise _invalid(f"{pointer}/failure/kind", "is an end that only the daemon gives")


def _deliver(tx: Tx, ask: Ask[Reconciliation], now: Now) -> Verdicts:
    """Commit the results of live claims, keep the others as evidence."""
    verdicts = Verdicts(set(), set())
    delivered = set()
    for told in ask.body.results or ():
        delivered.add(told.attempt_id)
        claim = tx.row(CLAIM, {"fencing_token": told.fencing_token, "worker_id": ask.id})
        if claim is None:
            verdicts.late.add(told.attempt_id)
        elif _committed(tx, ask, now, claim["workload_id"], told):
            verdicts.accepted.add(told.attempt_id)
        elif not _lives(claim, now):
            # Refused although it lives (its grant ended): the claim stays, and is answered.
            verdicts.late.add(told.attempt_id)
            _keep(tx, now, claim, told)
    for attempt_id in (*ask.body.completed_attempts, *ask.body.failed_attempts):
        if attempt_id not in delivered:
            _judge(tx, ask, now, attempt_id, verdicts)
    return verdicts


def _judge(tx: Tx, ask: Ask[Reconciliation], now: Now, attempt_id: str, verdicts: Verdicts) -> None:
    """A finished attempt that came without its result: held still, recorded, or lost."""
    token = _token_of(attempt_id)
    claim = tx.row(CLAIM, {"fencing_token": token, "worker_id": ask.id})
    if claim is not None and _lives(claim, now):
        return
    # An end without a body is the daemon's, whatever it is called.
    by_worker = claim is not None and claim["end_sha256"] is not None
    end_kind = claim["end_kind"] if claim is not None and by_worker else None
    completed = attempt_id in ask.body.completed_attempts
    recorded = (
        end_kind == "completed"
        if completed
        else end_kind is not None and end_kind not in {*retry.RESERVED, "completed"}
    )
    (verdicts.accepted if recorded else verdicts.late).add(attempt_id)


def _committed(
    tx: Tx, ask: Ask[Reconciliation], now: Now, workload_id: str, told: AttemptResult
) -> bool:
    """Whether the fence lets the outcome through, or did when it was first sent."""
    try:
        tx.attempt(partial(_commit, tx, ask, now, workload_id, told))
    except Refused:
        return False
    return True


def _commit(
    tx: Tx, ask: Ask[Reconciliation], now: Now, workload_id: str, told: AttemptResult
) -> Outcome:
    if told.failure is not None:
        fail = Fail(
            claim_id=told.claim_id,
            worker_id=ask.id,
            fencing_token=told.fencing_token,
            kind=told.failure.kind,
            message=told.failure.message,
            retry_after_ms=told.failure.retry_after_ms,
            on_secret="redact",
        )
        return outcomes.fail(tx, Ask(ask.caller, fail, workload_id, limits=ask.limits), now)
    result = told.result or Result()
    complete = Complete(
        claim_id=told.claim_id,
        worker_id=ask.id,
        fencing_token=told.fencing_token,
        result_id=result.result_id,
        output=result.output,
        artifacts=result.artifacts,
        logs=result.logs,
        resource_usage=result.resource_usage,
        start=True,
    )
    return outcomes.complete(tx, Ask(ask.caller, complete, workload_id, limits=ask.limits), now)


def _keep(tx: Tx, now: Now, claim: Row, told: AttemptResult) -> None:
    tx.change(
        KEEP_LATE,
        {
            "fencing_token": claim["fencing_token"],
            "workload_id": claim["workload_id"],
            "worker_id": claim["worker_id"],
            "now_ms": now.lease_ms,
            "outcome": told.outcome,
            "report": encode(_screened(told)).decode(),
        },
    )


def _screened(told: AttemptResult) -> Result | Failure:
    """What is kept of a late outcome, its message or logs covered like those of one in time."""
    if told.failure is not None:
        return replace(told.failure, message=secrets.redacted(told.failure.message))
    result = told.result or Result()
    logs = tuple(fence.cut(secrets.redacted(line)) for line in result.logs)
    return replace(result, logs=logs)


def _time_out(tx: Tx, now: Now, worker_id: str) -> None:
    """End claims whose timeout has passed, so that what comes of them is late, and kept."""
    for claim in tx.rows(TIMED_OUT, {"worker_id": worker_id, "now_ms": now.lease_ms}):
        overdue.end_passed(tx, now, claim["workload_id"])


def _let_lapse(tx: Tx, now: Now, worker_id: str) -> None:
    """End what the sweep has not come to yet: a lapsed claim is nobody's authority."""
    for claim in tx.rows(LIVE, {"worker_id": worker_id}):
        if claim["expires_at_ms"] <= now.lease_ms:
            end = attempts.End("lease_expired", fencing_token=claim["fencing_token"], lapsed=True)
            attempts.end_claim(tx, now, claim["workload_id"], end)


def _require_room(tx: Tx, row: Row, verdicts: Verdicts) -> None:
    """Refuse to bring back a lost worker for which its grant has no room; what it did stands."""
    if row["lifecycle"] != "OFFLINE" or _finished(tx, row):
        return
    grant_id = row["authorization_grant_id"]
    try:
        authority.room(
            tx, None if grant_id is None else grants.read(tx, grant_id), row["worker_id"]
        )
    except Refused as refused:
        raise Kept(
            refused.code,
            f"{refused.detail}; what the results say of live claims is recorded",
            **refused.facts,
            accepted_results=sorted(verdicts.accepted),
            late_results=sorted(verdicts.late),
        ) from refused


def _finished(tx: Tx, row: Row) -> bool:
    """Whether the worker has nothing left to do under its drain."""
    return row["drain_at_ms"] is not None and not workers.live_claims(tx, row["worker_id"])


def _come_back(tx: Tx, ask: Ask[Reconciliation], now: Now, row: Row) -> None:
    """Hear the worker, and walk it to READY unless it has nothing left to do under its drain."""
    worker_id, told = row["worker_id"], ask.body
    at_ms = told.timestamp_at_ms
    tx.change(
        HEAR,
        {
            "worker_id": worker_id,
            "now_ms": now.lease_ms,
            "health": told.health,
            "clock_skew_ms": None if at_ms is None else at_ms - now.wall_ms,
        },
    )
    finished = _finished(tx, row)
    lost = row["lifecycle"] == "OFFLINE"
    path = [row["lifecycle"]]
    if lost and not finished:
        lifecycle.begin_recovery(tx, now, worker_id, row["offline_reason"])
        path.append("RECOVERING")
    if not (lost and finished) and lifecycle.make_ready(tx, worker_id):
        path.append("READY")
    for before, after in pairwise(path):
        workers.told(tx, now, "reconcile", row, from_state=before, to_state=after)
    drain.settle(tx, worker_id, now)


def _answer(tx: Tx, ask: Ask[Reconciliation], now: Now, verdicts: Verdicts) -> Reconciled:
    told = ask.body
    row = workers.present(tx, ask.id)
    claim_ids = workers.live_claims(tx, ask.id)
    live = {refusal.token_of(claim_id) for claim_id in claim_ids}
    # The claim of an accepted result has ended well: its verdict is the result's.
    answered = live | {_token_of(attempt_id) for attempt_id in verdicts.accepted}
    known = {claim_id: refusal.token_of(claim_id) for claim_id in told.known_claims}
    running = {attempt_id: _token_of(attempt_id) for attempt_id in told.running_attempts}
    answer = Reconciled(
        authoritative_claims=[],
        fenced_claims=sorted(one for one, token in known.items() if token not in answered),
        cancel_attempts=sorted(one for one, token in running.items() if token not in live),
        accepted_results=sorted(verdicts.accepted),
        late_results=sorted(verdicts.late),
        worker=workers.show(row, claim_ids),
        server_time_ms=now.lease_ms,
    )
    named = {*known.values(), *running.values()}
    claims = standing.of_worker(tx, ask.id, named.__contains__, len(encode(answer)))
    return replace(answer, authoritative_claims=claims)


def _lives(claim: Row, now: Now) -> bool:
    return claim["ended_at_ms"] is None and claim["expires_at_ms"] > now.lease_ms


def _token_of(attempt_id: str) -> int:
    """The token in an attempt's id; 0, which no claim has, for a text that is no attempt's id."""
    number = attempt_id.removeprefix("attempt_")
    return 0 if number == attempt_id else refusal.token_of(f"claim_{number}") or 0


def _invalid(pointer: str, detail: str) -> Refused:
    return Refused(
        "WORKER_INVALID",
        f"{pointer}: {detail}"[:300],
        errors=[{"pointer": pointer, "detail": detail[:300]}],
    )
