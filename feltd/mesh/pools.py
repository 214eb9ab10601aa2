"""Pools: named sets of workers that work can ask for, with a ceiling on how much runs at once.

Everything a pool says is enforced where work is placed and again where it is claimed; a change
holds from its commit on, for new claims only. A deleted pool leaves its work waiting; its row stays
while live claims are counted in it. A worker of another tenant or application is no worker here.
"""

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct
from msgspec.json import decode, encode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import audit, principals
from feltd.identity.pages import fill
from feltd.mesh import events, gates, generation, membership, placement
from feltd.model.base import Ask
from feltd.model.page import Page, PageAsk
from feltd.model.pool import NewPool, Pool
from feltd.store.tx import Row, Tx

WRITE = "pools:write"

#: Pools of a tenant. A change of one has the writer read all of them again, each with up to 256
#: ids: so many take it some 25 ms, half of what one operation may take.
POOLS_MAX = 256

BY_ID = """
SELECT p.tenant_id, p.pool_id, p.application_id, p.name, p.capabilities, p.required_labels,
       p.worker_ids, p.listed, p.max_concurrency, p.active, p.created_at_ms, p.deleted_at_ms
  FROM pools p
 WHERE p.tenant_id = :tenant_id
   AND p.pool_id = :pool_id
"""

OF_APPLICATION = """
SELECT p.pool_id, p.capabilities, p.required_labels, p.worker_ids, p.listed
  FROM pools p
 WHERE p.tenant_id = :tenant_id
   AND (p.application_id IS NULL OR p.application_id = :application_id)
   AND p.deleted_at_ms IS NULL
 ORDER BY p.pool_id
"""

COUNT = """
SELECT count(*) AS pools
  FROM pools p
 WHERE p.tenant_id = :tenant_id
   AND p.deleted_at_ms IS NULL
"""

MAKE = """
INSERT INTO pools (tenant_id, pool_id, application_id, name, capabilities, required_labels,
                   worker_ids, listed, max_concurrency, created_at_ms, updated_at_ms)
VALUES (:tenant_id, :pool_id, :application_id, :name, :capabilities, :required_labels,
        :worker_ids, :listed, :max_concurrency, :now_ms, :now_ms)
ON CONFLICT (tenant_id, pool_id) DO UPDATE
   SET application_id = excluded.application_id,
       name = excluded.name,
       capabilities = excluded.capabilities,
       required_labels = excluded.required_labels,
       worker_ids = excluded.worker_ids,
       listed = excluded.listed,
       max_concurrency = excluded.max_concurrency,
       created_at_ms = excluded.created_at_ms,
       updated_at_ms = excluded.updated_at_ms,
       deleted_at_ms = NULL
 WHERE pools.deleted_at_ms IS NOT NULL
"""

CHANGE = """
UPDATE pools
   SET application_id = :application_id,
       name = :name,
       capabilities = :capabilities,
       required_labels = :required_labels,
       worker_ids = :worker_ids,
       listed = :listed,
       max_concurrency = :max_concurrency,
       updated_at_ms = :now_ms
 WHERE tenant_id = :tenant_id
   AND pool_id = :pool_id
   AND deleted_at_ms IS NULL
"""

DELETE = """
UPDATE pools
   SET deleted_at_ms = :now_ms,
       updated_at_ms = :now_ms
 WHERE tenant_id = :tenant_id
   AND pool_id = :pool_id
   AND deleted_at_ms IS NULL
"""

# What was deleted is remembered so that a repeat is told from a made-up id, the newest of it.
FORGET = """
DELETE FROM pools
 WHERE tenant_id = :tenant_id
   AND deleted_at_ms IS NOT NULL
   AND active = 0
   AND pool_id NOT IN (SELECT p.pool_id
                         FROM pools p
                        WHERE p.tenant_id = :tenant_id
                          AND p.deleted_at_ms IS NOT NULL
                        ORDER BY p.deleted_at_ms DESC, p.pool_id
                        LIMIT :kept)
"""

PAGE = """
SELECT p.tenant_id, p.pool_id, p.application_id, p.name, p.capabilities, p.required_labels,
       p.worker_ids, p.listed, p.max_concurrency, p.active, p.created_at_ms, p.deleted_at_ms,
       p.tenant_id || '/' || p.pool_id AS place
  FROM pools p
 WHERE (:tenant_id = '*' OR p.tenant_id = :tenant_id)
   AND p.deleted_at_ms IS NULL
   AND (p.created_at_ms, p.tenant_id || '/' || p.pool_id) < (:at_ms, :id)
 ORDER BY p.created_at_ms DESC, p.tenant_id || '/' || p.pool_id DESC
 LIMIT :rows
"""

EXISTS = """
SELECT p.pool_id
  FROM pools p
 WHERE p.tenant_id = :tenant_id
   AND p.pool_id = :pool_id
   AND (p.application_id IS NULL OR p.application_id = :application_id)
   AND p.deleted_at_ms IS NULL
"""

WORKER_OF = """
SELECT k.worker_id
  FROM workers k
 WHERE k.worker_id = :worker_id
   AND k.tenant_id = :tenant_id
   AND (:application_id IS NULL OR k.application_id = :application_id)
   AND k.removed_at_ms IS NULL
"""


class OfTenant(Struct, frozen=True):
    """A body and the tenant it is about, as the handler found it."""

    tenant_id: str
    body: Any = None


def create(tx: Tx, ask: Ask[OfTenant], now: Now) -> tuple[Pool, bool]:
    """Make a pool; the pool, its members not yet counted, and whether it is new.

    Repeating with the same members changes nothing. Refuses WORKER_POOL_EXISTS where the id names
    another, WORKER_NOT_FOUND for a listed worker that is none of the tenant and application,
    WORKER_INVALID beyond POOLS_MAX pools.
    """
    _confirm(tx, ask, now)
    tenant_id, body = ask.body.tenant_id, ask.body.body
    said = _columns(body)
    row = _find(tx, tenant_id, body.pool_id)
    if row is not None:
        if any(row[name] != said[name] for name in said):
            raise Refused("WORKER_POOL_EXISTS", "worker pool exists")
        return _of(row), False
    _require_workers(tx, tenant_id, body)
    _require_room(tx, tenant_id)
    key = {"tenant_id": tenant_id, "pool_id": body.pool_id}
    tx.change(MAKE, {**key, **said, "now_ms": now.lease_ms})
    tx.change(FORGET, {"tenant_id": tenant_id, "kept": POOLS_MAX})
    _tell(tx, ask, now, "pool_create", body.pool_id, {body.application_id})
    return _of(known(tx, tenant_id, body.pool_id)), True


def replace(tx: Tx, ask: Ask[OfTenant], now: Now) -> Pool:
    """Put other members in place of those of the pool `ask.id`; it is answered as by `create`.

    Live claims go on, new ones meet what stands then. Repeating changes nothing. Refuses
    WORKER_POOL_NOT_FOUND, WORKER_NOT_FOUND and WORKER_INVALID as `create` does, the latter also
    for a body of another pool.
    """
    _confirm(tx, ask, now)
    tenant_id, body = ask.body.tenant_id, ask.body.body
    row = known(tx, tenant_id, ask.id)
    if body.pool_id != ask.id:
        raise _invalid("/pool_id", "is not the pool of the path")
    said = _columns(body)
    if all(row[name] == said[name] for name in said):
        return _of(row)
    _require_workers(tx, tenant_id, body)
    key = {"tenant_id": tenant_id, "pool_id": ask.id}
    tx.change(CHANGE, {**key, **said, "now_ms": now.lease_ms})
    touched = {row["application_id"], body.application_id}
    _tell(tx, ask, now, "pool_replace", ask.id, touched)
    return _of(known(tx, tenant_id, ask.id))


def delete(tx: Tx, ask: Ask[OfTenant], now: Now) -> None:
    """Take a pool away: its live claims go on, its waiting work waits until it is made again.

    Repeating changes nothing. Refuses WORKER_POOL_NOT_FOUND for one that never was.
    """
    _confirm(tx, ask, now)
    tenant_id = ask.body.tenant_id
    key = {"tenant_id": tenant_id, "pool_id": ask.id}
    row = tx.row(BY_ID, key)
    if row is None:
        raise principals.not_found("WORKER_POOL_NOT_FOUND")
    if not tx.change(DELETE, {**key, "now_ms": now.lease_ms}):
        return
    tx.change(FORGET, {"tenant_id": tenant_id, "kept": POOLS_MAX})
    _tell(tx, ask, now, "pool_delete", ask.id, {row["application_id"]})


def get(tx: Tx, ask: Ask[OfTenant], now: Now) -> Pool:
    """One pool of the tenant. Refuses WORKER_POOL_NOT_FOUND."""
    found = _of(known(tx, ask.body.tenant_id, ask.id))
    return membership.counted(tx, [found], now)[0]


def page(tx: Tx, ask: Ask[PageAsk], now: Now) -> Page[Pool]:
    """Pools of the caller's tenants, newest first."""
    tenants = ask.caller.tenants
    tenant_id = ask.body.tenant_id or (tenants[0] if len(tenants) == 1 else "*")

    def read(place: dict[str, object]) -> list[Row]:
        return tx.rows(PAGE, {**place, "tenant_id": tenant_id})

    def keep(row: Row) -> Pool | None:
        return _of(row) if ask.caller.may_see(row["tenant_id"]) else None

    found = fill(read, keep, ask.body, "created_at_ms", "place")
    return Page(items=membership.counted(tx, found.items, now), after=found.after)


def require(tx: Tx, tenant_id: str, application_id: str, pool_id: str) -> None:
    """Refuse WORKER_POOL_NOT_FOUND unless work of this application may name the pool.

    One of another tenant or application answers exactly as a made-up one.
    """
    named = {"tenant_id": tenant_id, "application_id": application_id, "pool_id": pool_id}
    if tx.row(EXISTS, named) is None:
        raise principals.not_found("WORKER_POOL_NOT_FOUND")


def known(tx: Tx, tenant_id: str, pool_id: str) -> Row:
    """The row of a pool of the tenant. Refuses WORKER_POOL_NOT_FOUND."""
    row = _find(tx, tenant_id, pool_id)
    if row is None:
        raise principals.not_found("WORKER_POOL_NOT_FOUND")
    return row


def of_application(
    tx: Tx, tenant_id: str, application_id: str, gate_generation: int | None
) -> Mapping[str, placement.Pool]:
    """The pools that work of an application may name, by id.

    `gate_generation` is its own as this transaction read it: while that stays, nothing is read
    again. None (it has no row yet) remembers nothing.
    """
    key = ("pools", tenant_id, application_id)
    known: tuple[int, Mapping[str, placement.Pool]] | None = tx.memo.get(key)
    if known is not None and known[0] == gate_generation:
        return known[1]
    owner = {"tenant_id": tenant_id, "application_id": application_id}
    found = {row["pool_id"]: membership.rule_of(row) for row in tx.rows(OF_APPLICATION, owner)}
    if gate_generation is not None:
        tx.memo[key] = gate_generation, found
    return found


def listing(tx: Tx, worker: Row) -> tuple[str, ...]:
    """The ids of the pools that list a worker; `worker` has the gate_generation beside its row."""
    owner = (worker["tenant_id"], worker["application_id"], worker["gate_generation"])
    return tuple(
        pool.pool_id
        for pool in of_application(tx, *owner).values()
        if pool.worker_ids and worker["worker_id"] in pool.worker_ids
    )


def _confirm(tx: Tx, ask: Ask[OfTenant], now: Now) -> None:
    principals.confirm(tx, ask.caller, now)
    principals.require_scope(ask.caller, WRITE)
    principals.require_tenant(ask.caller, ask.body.tenant_id, "WORKER_POOL_NOT_FOUND")


def _find(tx: Tx, tenant_id: str, pool_id: str) -> Row | None:
    row = tx.row(BY_ID, {"tenant_id": tenant_id, "pool_id": pool_id})
    return None if row is None or row["deleted_at_ms"] is not None else row


def _require_workers(tx: Tx, tenant_id: str, body: NewPool) -> None:
    scope = {"tenant_id": tenant_id, "application_id": body.application_id}
    for place, worker_id in enumerate(body.worker_ids):
        if tx.row(WORKER_OF, {**scope, "worker_id": worker_id}) is None:
            raise Refused(
                "WORKER_NOT_FOUND",
                worker_id,
                next="fix_request",
                errors=[{"pointer": f"/worker_ids/{place}", "detail": "no such worker"}],
            )


def _require_room(tx: Tx, tenant_id: str) -> None:
    used = tx.rows(COUNT, {"tenant_id": tenant_id})[0]["pools"]
    if used >= POOLS_MAX:
        raise Refused(
            "WORKER_INVALID",
            f"the tenant has {used} pools, {POOLS_MAX} are allowed: delete one first",
            limit=POOLS_MAX,
            used=used,
        )


def _columns(body: NewPool) -> dict[str, object]:
    """What a body says, as its row holds it."""
    listed = bool(body.worker_ids) if body.listed is None else body.listed
    if body.worker_ids and not listed:
        raise _invalid("/listed", "cannot be false where worker_ids names workers")
    return {
        "application_id": body.application_id,
        "name": body.name,
        "capabilities": _text(sorted(set(body.capabilities))),
        "required_labels": _text(body.required_labels),
        "worker_ids": _text(sorted(set(body.worker_ids))),
        "listed": int(listed),
        "max_concurrency": body.max_concurrency,
    }


def _tell(
    tx: Tx,
    ask: Ask[OfTenant],
    now: Now,
    verb: str,
    pool_id: str,
    applications: Collection[str | None],
) -> None:
    """Open or close it, have every application that can name it look again, and write it down."""
    tenant_id, actor = ask.body.tenant_id, str(ask.caller.subject)
    gates.pool_changed(tx, tenant_id, pool_id)
    touched = (None,) if None in applications else sorted(filter(None, applications))
    for application_id in touched:
        generation.touch(tx, tenant_id, application_id)
    events.tell(tx, now, verb, tenant_id=tenant_id, application_id=touched[-1], actor=actor)
    audit.act(tx, now, actor, verb, f"{tenant_id}/{pool_id}", body=encode(ask.body.body))


def _of(row: Row) -> Pool:
    return Pool(
        pool_id=row["pool_id"],
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        name=row["name"],
        capabilities=decode(row["capabilities"], type=tuple[str, ...]),
        required_labels=decode(row["required_labels"]),
        worker_ids=decode(row["worker_ids"], type=tuple[str, ...]),
        listed=bool(row["listed"]),
        max_concurrency=row["max_concurrency"],
        created_at_ms=row["created_at_ms"],
        members=0,
        active=row["active"],
    )


def _invalid(pointer: str, detail: str) -> Refused:
    return Refused(
        "WORKER_INVALID",
        f"{pointer}: {detail}",
        errors=[{"pointer": pointer, "detail": detail}],
    )


def _text(value: object) -> str:
    return encode(value, order="deterministic").decode()
