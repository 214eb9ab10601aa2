"""A worker says that it lives, and is told where its account of its claims is wrong.

What it reports is compared with the rows and shown; it changes only health and liveness, and those
by the daemon's clock. Heartbeats write neither event nor audit row; a first beat that makes the
worker READY tells of that edge. A beat never brings a lost worker back: that is reconcile's.
"""

from collections.abc import Collection, Iterable, Sequence

from msgspec.json import encode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.mesh import assigned, authority, drain, fence, lifecycle, workers
from feltd.model.base import Ask
from feltd.model.claim import Progress
from feltd.model.worker import (
    CapacityMismatch,
    Differences,
    Heartbeat,
    HeartbeatAnswer,
    Reported,
)
from feltd.store.tx import Kept, Row, Tx

#: A worker's clock may differ from ours by so much; further, its own instants mean nothing.
CLOCK_TOLERANCE_MS = 5_000
#: A claim younger than this may still be on its way to the worker.
UNKNOWN_AFTER_MS = 5_000
#: Offline reasons after which the process should stop, as nobody waits for it, and how it is told.
LEFT_FOR_GOOD = {
    "drained": "the worker was drained and must stop",
    "left": "the worker has left and must stop",
}

BEAT = """
UPDATE workers
   SET last_seen_at_ms = :now_ms,
       health = :health,
       clock_skew_ms = coalesce(:clock_skew_ms, clock_skew_ms),
       reported = :reported
 WHERE worker_id = :worker_id
   AND lifecycle IN ('REGISTERED', 'READY', 'DRAINING')
"""

HEAR_CROOKED = """
UPDATE workers
   SET last_seen_at_ms = :now_ms,
       clock_skew_ms = :clock_skew_ms
 WHERE worker_id = :worker_id
   AND lifecycle IN ('REGISTERED', 'READY', 'DRAINING')
"""

HELD = """
SELECT c.fencing_token, c.workload_id, c.issued_at_ms, w.expires_at_ms, w.cancel_requested,
       CASE WHEN w.state = 'CLAIMED' THEN c.assigned ELSE 0 END AS assigned,
       CASE WHEN w.timeouts <> '{}'
            THEN (SELECT d.at_ms
                    FROM deadlines d
                   WHERE d.workload_id = w.workload_id) END AS timeout_at_ms
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE c.worker_id = :worker_id
   AND c.ended_at_ms IS NULL
 ORDER BY c.fencing_token
"""

TELL_PROGRESS = """
UPDATE workloads
   SET progress = :progress
 WHERE workload_id = :workload_id
   AND fencing_token = :fencing_token
   AND claim_worker_id = :worker_id
   AND state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
   AND expires_at_ms > :now_ms
"""


def heartbeat(tx: Tx, ask: Ask[Heartbeat], now: Now) -> HeartbeatAnswer:
    """Count the worker as heard, take its health, and name the differences.

    REGISTERED becomes READY; under a standing drain it goes on to DRAINING, and to OFFLINE when
    it holds nothing. `renew_leases` moves the ends of the reported live claims out. Refuses in
    this order WORKER_NOT_FOUND, WORKER_HEARTBEAT_REJECTED (register again),
    WORKER_CLOCK_INVALID (more than 5,000 ms off; the beat counts as heard all the same),
    WORKER_RECOVERY_REQUIRED (OFFLINE or RECOVERING: reconcile, or stop when it was drained).
    """
    row = workers.own(tx, ask.caller, ask.id, now)
    beat = ask.body
    _require_same(row, beat)
    skew_ms = _skew_ms(tx, row, beat, now)
    require_present(row)
    if row["authority_unsettled"]:
        authority.settle(tx, now, row["worker_id"])
    tx.change(
        BEAT,
        {
            "worker_id": row["worker_id"],
            "now_ms": now.lease_ms,
            "health": beat.health,
            "clock_skew_ms": skew_ms,
            "reported": _reported(beat),
        },
    )
    if beat.health != row["health"]:
        # A poll that waits for it to be HEALTHY looks again.
        tx.tell("worker", row["worker_id"])
    if row["lifecycle"] != "READY" or row["drain_at_ms"] is not None:
        if lifecycle.make_ready(tx, row["worker_id"]):
            workers.told(tx, now, "ready", row, from_state=row["lifecycle"], to_state="READY")
        drain.settle(tx, row["worker_id"], now)
    return _answer(tx, ask, now)


def differences(
    tx: Tx, worker: Row, reported_ids: Collection[str], named_ids: Collection[str], now: Now
) -> Differences:
    """Where the claims a worker runs and the rows differ.

    `reported_ids` are the claims it is taken to run, `named_ids` those it has named itself: one
    that was assigned is so no more, nothing else changes. What has lapsed or timed out counts as
    fenced here, although its row may wait for its end. What is assigned is never unknown.
    """
    return _compare(tx, _held(tx, worker["worker_id"]), reported_ids, named_ids, now)


def require_present(row: Row) -> None:
    """Refuse WORKER_RECOVERY_REQUIRED for a worker that must reconcile first."""
    if row["lifecycle"] not in ("OFFLINE", "RECOVERING"):
        return
    reason = row["offline_reason"]
    for_good = LEFT_FOR_GOOD.get(reason) if row["lifecycle"] == "OFFLINE" else None
    raise Refused(
        "WORKER_RECOVERY_REQUIRED",
        for_good or "offline worker must reconcile before heartbeat",
        offline_reason=reason,
        next="stop" if for_good else "reconcile",
    )


def _require_same(row: Row, beat: Heartbeat) -> None:
    same = (
        beat.worker_id == row["worker_id"]
        and beat.version == row["version"]
        and beat.capability_version == row["capability_version"]
        and beat.process_id in (None, row["process_id"])
    )
    if not same:
        raise Refused(
            "WORKER_HEARTBEAT_REJECTED",
            "worker identity, version, or capability version changed",
            capability_version=row["capability_version"],
            incarnation=row["incarnation"],
        )


def _skew_ms(tx: Tx, row: Row, beat: Heartbeat, now: Now) -> int | None:
    """The worker's clock minus ours, None when it told none."""
    if beat.timestamp_at_ms is None:
        return None
    skew_ms = beat.timestamp_at_ms - now.wall_ms
    if abs(skew_ms) > CLOCK_TOLERANCE_MS:
        heard = {
            "worker_id": row["worker_id"],
            "now_ms": now.lease_ms,
            "clock_skew_ms": skew_ms,
        }
        tx.change(HEAR_CROOKED, heard)
        raise Kept(
            "WORKER_CLOCK_INVALID",
            "heartbeat is outside clock tolerance",
            server_time_ms=now.lease_ms,
            wall_time_ms=now.wall_ms,
        )
    return skew_ms


def _reported(beat: Heartbeat) -> str:
    told = beat.reported
    return encode(
        Reported(
            concurrency=beat.capacity.concurrency,
            active=beat.capacity.active,
            rss_bytes=None if told is None else told.rss_bytes,
            load=None if told is None else told.load,
            disk_free_bytes=None if told is None else told.disk_free_bytes,
            note=None if told is None else told.note,
        )
    ).decode()


def _answer(tx: Tx, ask: Ask[Heartbeat], now: Now) -> HeartbeatAnswer:
    beat = ask.body
    row = workers.present(tx, ask.id)
    renewed: dict[str, int] = {}
    if beat.renew_leases:
        renewed = fence.renew_held(tx, now, row, beat.running_claims, beat.lease_ms)
    held = _held(tx, ask.id)
    if beat.progress:
        _tell_progress(tx, now, ask.id, held, beat.progress)
    found = _compare(tx, held, beat.running_claims, beat.running_claims, now)
    registered, reported = row["concurrency"], beat.capacity.concurrency
    return HeartbeatAnswer(
        worker=workers.show(row, [_id(claim) for claim in held]),
        fenced_claims=found.fenced_claims,
        unknown_claims=found.unknown_claims,
        cancel_claims=found.cancel_claims,
        assigned_claims=found.assigned_claims,
        renewed=renewed,
        grant_expires_at_ms=row["authority_expires_at_ms"],
        key_expires_at_ms=ask.caller.expires_at_ms,
        server_time_ms=now.lease_ms,
        wall_time_ms=now.wall_ms,
        capacity_mismatch=(
            None
            if registered == reported
            else CapacityMismatch(registered=registered, reported=reported)
        ),
    )


def _compare(
    tx: Tx, held: Sequence[Row], reported_ids: Collection[str], named_ids: Collection[str], now: Now
) -> Differences:
    live = {_id(claim): claim for claim in held if _lives(claim, now)}
    reported, named = set(reported_ids), set(named_ids)
    assigned.named(tx, live.values(), named)
    return Differences(
        fenced_claims=sorted(reported - live.keys()),
        unknown_claims=[
            claim_id
            for claim_id, claim in live.items()
            if claim_id not in reported
            and not claim["assigned"]
            and claim["issued_at_ms"] + UNKNOWN_AFTER_MS < now.lease_ms
        ],
        cancel_claims=[claim_id for claim_id, claim in live.items() if claim["cancel_requested"]],
        assigned_claims=assigned.waiting(tx, live.values(), named),
    )


def _tell_progress(
    tx: Tx, now: Now, worker_id: str, held: Iterable[Row], progress: dict[str, Progress]
) -> None:
    for claim in held:
        told = progress.get(_id(claim))
        if told is not None:
            tx.change(
                TELL_PROGRESS,
                {
                    "worker_id": worker_id,
                    "workload_id": claim["workload_id"],
                    "fencing_token": claim["fencing_token"],
                    "now_ms": now.lease_ms,
                    "progress": encode(told).decode(),
                },
            )


def _held(tx: Tx, worker_id: str) -> list[Row]:
    return tx.rows(HELD, {"worker_id": worker_id})


def _lives(claim: Row, now: Now) -> bool:
    timeout_at_ms = claim["timeout_at_ms"]
    return claim["expires_at_ms"] > now.lease_ms and (
        timeout_at_ms is None or timeout_at_ms > now.lease_ms
    )


def _id(claim: Row) -> str:
    return f"claim_{claim['fencing_token']}"
