"""A worker as the rules find it: looked up, shown, heard, and let go when its drain is through.

Only what several rooms share stands here; registering, beating, draining and reconciling have files
of their own. What a worker holds is counted from live claim rows, never from what it says.
"""

from msgspec import Raw
from msgspec.json import decode

from feltd.clock import Now
from feltd.identity import principals
from feltd.mesh import events, lifecycle
from feltd.model.base import Caller
from feltd.model.worker import CONTRACT_VERSION, Capacity, Drain, Quarantine, Worker
from feltd.store.tx import Row, Tx

#: Accepted calls refresh last_seen at most this often: a heartbeat timeout is at least 2 s.
HEARD_EVERY_MS = 1_000

BY_ID = """
SELECT k.worker_id, k.tenant_id, k.application_id, k.name, k.runtime, k.version, k.process_id,
       k.incarnation, k.content_version, k.capability_version, k.declared_capabilities,
       k.granted_capabilities, k.workload_kinds, k.resource_profile, k.labels, k.concurrency,
       k.health, k.lifecycle, k.offline_reason, k.heartbeat_interval_ms, k.heartbeat_timeout_ms,
       k.registered_at_ms, k.last_seen_at_ms, k.clock_skew_ms, k.authorization_grant_id,
       k.authority_live, k.authority_unsettled, k.authority_expires_at_ms, k.authority_kid,
       k.drain_by, k.drain_reason, k.drain_at_ms, k.drain_until, k.no_renew_after_at_ms,
       k.reported, k.removed_at_ms, k.quarantined_by, k.quarantine_reason,
       k.quarantined_at_ms, k.quarantined_until_at_ms
  FROM workers k
 WHERE k.worker_id = :worker_id
"""

LIVE = """
SELECT c.fencing_token
  FROM claims c
 WHERE c.worker_id = :worker_id
   AND c.ended_at_ms IS NULL
 ORDER BY c.fencing_token
"""

HEAR = """
UPDATE workers
   SET last_seen_at_ms = :now_ms
 WHERE worker_id = :worker_id
   AND last_seen_at_ms <= :heard_before_ms
   AND lifecycle <> 'OFFLINE'
"""


def find(tx: Tx, worker_id: str) -> Row | None:
    """The row of a worker, also of a removed one."""
    return tx.row(BY_ID, {"worker_id": worker_id})


def present(tx: Tx, worker_id: str) -> Row:
    """The row of a worker this transaction has just seen."""
    row = find(tx, worker_id)
    if row is None:
        raise LookupError(worker_id)
    return row


def lookup(tx: Tx, caller: Caller, worker_id: str) -> Row:
    """The row of a worker the caller may see.

    Refuses WORKER_NOT_FOUND for one that never was, was removed, or is of another tenant: all
    three answer alike.
    """
    row = find(tx, worker_id)
    if row is None or row["removed_at_ms"] is not None or not caller.may_see(row["tenant_id"]):
        raise principals.not_found("WORKER_NOT_FOUND")
    return row


def own(tx: Tx, caller: Caller, worker_id: str, now: Now) -> Row:
    """The row of the worker the caller is, its key tested once more in this transaction.

    Refuses UNAUTHENTICATED when the key ended meanwhile, FORBIDDEN when the key is not this
    worker's, WORKER_NOT_FOUND when the worker was removed.
    """
    principals.confirm(tx, caller, now)
    principals.acting_worker(caller, worker_id)
    return lookup(tx, caller, worker_id)


def live_claims(tx: Tx, worker_id: str) -> list[str]:
    """The ids of the claims a worker holds, oldest first."""
    return [f"claim_{row['fencing_token']}" for row in tx.rows(LIVE, {"worker_id": worker_id})]


def shown(tx: Tx, row: Row) -> Worker:
    """A worker as every answer shows it."""
    return show(row, live_claims(tx, row["worker_id"]))


def show(row: Row, claims: list[str]) -> Worker:
    """As `shown`, with the ids of its live claims already read."""
    return Worker(
        contract_version=CONTRACT_VERSION,
        worker_id=row["worker_id"],
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        name=row["name"],
        runtime=row["runtime"],
        version=row["version"],
        incarnation=row["incarnation"],
        declared_capabilities=_raw(row["declared_capabilities"]),
        granted_capabilities=_raw(row["granted_capabilities"]),
        workload_kinds=_raw(row["workload_kinds"]),
        resource_profile=_raw(row["resource_profile"]),
        labels=_raw(row["labels"]),
        capacity=Capacity(row["concurrency"], len(claims)),
        health=row["health"],
        lifecycle=lifecycle.shown(row, len(claims)),
        heartbeat_interval_ms=row["heartbeat_interval_ms"],
        heartbeat_timeout_ms=row["heartbeat_timeout_ms"],
        registered_at_ms=row["registered_at_ms"],
        last_seen_at_ms=row["last_seen_at_ms"],
        clock_skew_ms=row["clock_skew_ms"],
        capability_version=row["capability_version"],
        authorization_grant_id=row["authorization_grant_id"],
        claims=claims,
        offline_reason=row["offline_reason"],
        drain=drain_of(row),
        quarantine=quarantine_of(row),
        reported=None if row["reported"] is None else _raw(row["reported"]),
    )


def drain_of(row: Row) -> Drain | None:
    """The drain that stands, if one does."""
    if row["drain_at_ms"] is None:
        return None
    return Drain(
        by=row["drain_by"],
        reason=row["drain_reason"] or "",
        at_ms=row["drain_at_ms"],
        until=row["drain_until"],
        no_renew_after_at_ms=row["no_renew_after_at_ms"],
    )


def quarantine_of(row: Row) -> Quarantine | None:
    """The quarantine that stands, if one does; past its instant until the keeper comes by."""
    if row["quarantined_at_ms"] is None:
        return None
    return Quarantine(
        by=row["quarantined_by"],
        reason=row["quarantine_reason"],
        at_ms=row["quarantined_at_ms"],
        until_at_ms=row["quarantined_until_at_ms"],
    )


def labels_of(row: Row) -> dict[str, str]:
    """The labels of a worker."""
    labels: dict[str, str] = decode(row["labels"])
    return labels


def heard(tx: Tx, worker_id: str, now: Now) -> None:
    """An accepted call by the worker's own key: it lives. Stored at most once a second.

    An OFFLINE worker stays what it is: only reconcile or a registration brings it back.
    """
    heard_before_ms = now.lease_ms - HEARD_EVERY_MS
    tx.change(
        HEAR,
        {"worker_id": worker_id, "now_ms": now.lease_ms, "heard_before_ms": heard_before_ms},
    )


def idle(tx: Tx, worker_id: str, now: Now) -> bool:
    """Set a drained worker OFFLINE when it holds no claim any more; whether it was.

    Harmless for any other worker. The end of a claim calls it, so it happens at once.
    """
    row = find(tx, worker_id)
    if row is None or not lifecycle.finish_drain(tx, worker_id):
        return False
    told(tx, now, "drained", row, from_state=row["lifecycle"], to_state="OFFLINE")
    tx.tell("worker_offline", worker_id)
    return True


def told(
    tx: Tx,
    now: Now,
    kind: str,
    row: Row,
    *,
    from_state: str | None = None,
    to_state: str | None = None,
    actor: str | None = None,
) -> None:
    """Write the event of something that happened to a worker."""
    events.tell(
        tx,
        now,
        kind,
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        worker_id=row["worker_id"],
        from_state=from_state,
        to_state=to_state,
        actor=actor,
    )


def _raw(text: str) -> Raw:
    return Raw(text.encode())
