"""What a placement decision reads: the work, the workers, the pool, the hold, the limits, the time.

Everything is read in one transaction and put into `choosing.Inputs`; what is decided from it is
choosing's. A decision about a named worker reads that worker alone.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.json import decode

from feltd.clock import Now
from feltd.identity import principals
from feltd.mesh import choosing, holds, membership, placement
from feltd.model.base import Caller
from feltd.model.policy import Placement
from feltd.store.tx import Row, Tx

#: Workers of an application that one decision compares, some 30 µs each on the writer. Of more,
#: those that are READY and HEALTHY come first, and the decision says how many were left out.
WORKERS_MAX = 1_000

WORKLOAD = """
SELECT w.workload_id, w.tenant_id, w.application_id, w.state, w.eligible_at_ms, w.fencing_token,
       w.claim_worker_id, w.claim_incarnation, w.expires_at_ms, w.definition_id,
       w.definition_revision, w.capability_snapshot, w.resources, w.placement, w.concurrency,
       w.rate, d.at_ms AS timeout_at_ms
  FROM workloads w
  LEFT JOIN deadlines d ON d.workload_id = w.workload_id
 WHERE w.workload_id = :workload_id
"""

WORKER = """
SELECT k.worker_id, k.tenant_id, k.application_id, k.lifecycle, k.health, k.concurrency,
       k.last_seen_at_ms, k.heartbeat_timeout_ms, k.authority_live, k.authority_unsettled,
       k.authority_expires_at_ms, k.granted_capabilities, k.workload_kinds, k.resource_profile,
       k.labels, k.drain_at_ms, k.quarantined_at_ms, k.quarantined_until_at_ms,
       (SELECT count(*)
          FROM claims c
         WHERE c.worker_id = k.worker_id
           AND c.ended_at_ms IS NULL) AS active
  FROM workers k
 WHERE k.worker_id = :worker_id
   AND k.removed_at_ms IS NULL
"""

WORKERS = """
SELECT k.worker_id, k.tenant_id, k.application_id, k.lifecycle, k.health, k.concurrency,
       k.last_seen_at_ms, k.heartbeat_timeout_ms, k.authority_live, k.authority_unsettled,
       k.authority_expires_at_ms, k.granted_capabilities, k.workload_kinds, k.resource_profile,
       k.labels, k.drain_at_ms, k.quarantined_at_ms, k.quarantined_until_at_ms,
       (SELECT count(*)
          FROM claims c
         WHERE c.worker_id = k.worker_id
           AND c.ended_at_ms IS NULL) AS active
  FROM workers k
 WHERE k.tenant_id = :tenant_id
   AND k.application_id = :application_id
   AND k.removed_at_ms IS NULL
 ORDER BY CASE WHEN k.lifecycle = 'READY' AND k.health = 'HEALTHY' THEN 0 ELSE 1 END, k.worker_id
 LIMIT :rows
"""

COUNT = """
SELECT count(*) AS workers
  FROM workers k
 WHERE k.tenant_id = :tenant_id
   AND k.application_id = :application_id
   AND k.removed_at_ms IS NULL
"""

POOL = """
SELECT p.pool_id, p.capabilities, p.required_labels, p.worker_ids, p.listed, p.active,
       p.max_concurrency
  FROM pools p
 WHERE p.tenant_id = :tenant_id
   AND p.pool_id = :pool_id
   AND (p.application_id IS NULL OR p.application_id = :application_id)
   AND p.deleted_at_ms IS NULL
"""

CONCURRENCY = """
SELECT c.name, c.active, c.claims_max
  FROM concurrency_keys c
 WHERE c.tenant_id = :tenant_id
   AND c.application_id = :application_id
   AND c.name = :name
"""

# It has room again when the use that is claims_max before the next one is a period old.
RATE = """
SELECT r.name,
       (SELECT u.at_ms + r.period_ms
          FROM rate_uses u
         WHERE u.key_seq = r.key_seq
           AND u.number = r.uses + 1 - r.claims_max) AS opens_at_ms
  FROM rate_keys r
 WHERE r.tenant_id = :tenant_id
   AND r.application_id = :application_id
   AND r.name = :name
"""


def workload(tx: Tx, caller: Caller, workload_id: str) -> Row:
    """The row of a workload the caller may see, as WORKLOAD gives it.

    Refuses WORKLOAD_NOT_FOUND, alike for one of another tenant and a made-up one.
    """
    row = tx.row(WORKLOAD, {"workload_id": workload_id})
    if row is None or not caller.may_see(row["tenant_id"]):
        raise principals.not_found("WORKLOAD_NOT_FOUND")
    return row


def policy_of(work: Row) -> Placement:
    """The placement a workload was created or edited with."""
    return decode(work["placement"], type=Placement)


def read(
    tx: Tx, work: Row, policy: Placement, now: Now, worker_id: str | None = None
) -> choosing.Inputs:
    """Everything that decides who may take the work: of each worker, or of one alone.

    `work` is a row of WORKLOAD, `policy` its own placement, narrowed or not. Changes nothing.
    """
    owner = {"tenant_id": work["tenant_id"], "application_id": work["application_id"]}
    if worker_id is None:
        rows = tx.rows(WORKERS, {**owner, "rows": WORKERS_MAX})
    else:
        rows = tx.rows(WORKER, {"worker_id": worker_id})
    unread = 0
    if worker_id is None and len(rows) == WORKERS_MAX:
        unread = int(tx.rows(COUNT, owner)[0]["workers"]) - WORKERS_MAX
    pool = None
    if policy.pool_id is not None:
        pool = tx.row(POOL, {**owner, "pool_id": policy.pool_id})
    return choosing.Inputs(
        work=_work(work),
        policy=policy,
        workers=tuple(_seen(row) for row in rows),
        lease_ms=now.lease_ms,
        wall_ms=now.wall_ms,
        pool=None if pool is None else membership.rule_of(pool),
        hold=_hold(tx, work, owner, policy),
        ceiling=_ceiling(pool),
        concurrency=_concurrency(tx, work, owner),
        rate=_rate(tx, work, owner),
        unread=unread,
    )


def _work(row: Row) -> choosing.Work:
    return choosing.Work(
        workload_id=row["workload_id"],
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        definition_id=row["definition_id"],
        definition_revision=row["definition_revision"],
        capability_snapshot=tuple(decode(row["capability_snapshot"])),
        resources=decode(row["resources"]),
    )


def _seen(row: Row) -> choosing.Seen:
    return choosing.Seen(
        worker_id=row["worker_id"],
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        lifecycle=row["lifecycle"],
        health=row["health"],
        concurrency=row["concurrency"],
        active=row["active"],
        last_seen_at_ms=row["last_seen_at_ms"],
        heartbeat_timeout_ms=row["heartbeat_timeout_ms"],
        authority_live=row["authority_live"],
        authority_unsettled=row["authority_unsettled"],
        authority_expires_at_ms=row["authority_expires_at_ms"],
        granted_capabilities=tuple(decode(row["granted_capabilities"])),
        workload_kinds=tuple(decode(row["workload_kinds"])),
        resource_profile=decode(row["resource_profile"]),
        labels=decode(row["labels"]),
        drain_at_ms=row["drain_at_ms"],
        quarantined_at_ms=row["quarantined_at_ms"],
        quarantined_until_at_ms=row["quarantined_until_at_ms"],
    )


def _hold(tx: Tx, work: Row, owner: Mapping[str, str], policy: Placement) -> placement.Hold | None:
    """The hold that touches the work, or the pool that only the narrowing names."""
    standing = holds.of_application(tx, owner["tenant_id"], owner["application_id"], None)
    found = holds.touching(work, standing)
    if found is None and policy.pool_id is not None:
        found = standing.pools.get(policy.pool_id)
    return found


def _ceiling(pool: Row | None) -> choosing.Limit | None:
    if pool is None or pool["max_concurrency"] is None:
        return None
    return choosing.Limit(pool["pool_id"], pool["active"], pool["max_concurrency"])


def _concurrency(tx: Tx, work: Row, owner: Mapping[str, str]) -> choosing.Limit | None:
    row = _key(tx, CONCURRENCY, work["concurrency"], owner)
    return None if row is None else choosing.Limit(row["name"], row["active"], row["claims_max"])


def _rate(tx: Tx, work: Row, owner: Mapping[str, str]) -> choosing.Rate | None:
    row = _key(tx, RATE, work["rate"], owner)
    return None if row is None else choosing.Rate(row["name"], row["opens_at_ms"])


def _key(tx: Tx, sql: str, asked: str | None, owner: Mapping[str, str]) -> Row | None:
    if asked is None:
        return None
    told: dict[str, Any] = decode(asked)
    return tx.row(sql, {**owner, "name": told["key"]})
