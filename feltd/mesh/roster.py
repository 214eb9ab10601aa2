"""Workers as people and autoscalers look at them: one, or a page. Only reads.

A page walks the workers newest registration first and keeps those that match; what is asked of
live claims (BUSY) is counted from their rows.
"""

from collections.abc import Callable
from typing import Annotated

from msgspec import Meta, Struct, structs

from feltd.clock import Now
from feltd.identity import principals
from feltd.identity.pages import fill
from feltd.mesh import lifecycle, membership, placement, pools, workers
from feltd.model.base import Ask, Caller, Name
from feltd.model.page import PageAsk as KeysetAsk
from feltd.model.worker import RECENT_MAX, EndedClaim, Health, Lifecycle, Worker
from feltd.store.tx import Row, Tx

PAGE = """
SELECT k.worker_id, k.tenant_id, k.application_id, k.name, k.runtime, k.version, k.process_id,
       k.incarnation, k.content_version, k.capability_version, k.declared_capabilities,
       k.granted_capabilities, k.workload_kinds, k.resource_profile, k.labels, k.concurrency,
       k.health, k.lifecycle, k.offline_reason, k.heartbeat_interval_ms, k.heartbeat_timeout_ms,
       k.registered_at_ms, k.last_seen_at_ms, k.clock_skew_ms, k.authorization_grant_id,
       k.authority_live, k.authority_unsettled, k.authority_expires_at_ms, k.drain_by,
       k.drain_reason, k.drain_at_ms, k.drain_until, k.no_renew_after_at_ms, k.reported,
       k.removed_at_ms, k.quarantined_by, k.quarantine_reason, k.quarantined_at_ms,
       k.quarantined_until_at_ms
  FROM workers k
 WHERE (k.registered_at_ms, k.worker_id) < (:at_ms, :id)
 ORDER BY k.registered_at_ms DESC, k.worker_id DESC
 LIMIT :rows
"""

PAGE_OF_TENANT = """
SELECT k.worker_id, k.tenant_id, k.application_id, k.name, k.runtime, k.version, k.process_id,
       k.incarnation, k.content_version, k.capability_version, k.declared_capabilities,
       k.granted_capabilities, k.workload_kinds, k.resource_profile, k.labels, k.concurrency,
       k.health, k.lifecycle, k.offline_reason, k.heartbeat_interval_ms, k.heartbeat_timeout_ms,
       k.registered_at_ms, k.last_seen_at_ms, k.clock_skew_ms, k.authorization_grant_id,
       k.authority_live, k.authority_unsettled, k.authority_expires_at_ms, k.drain_by,
       k.drain_reason, k.drain_at_ms, k.drain_until, k.no_renew_after_at_ms, k.reported,
       k.removed_at_ms, k.quarantined_by, k.quarantine_reason, k.quarantined_at_ms,
       k.quarantined_until_at_ms
  FROM workers k
 WHERE k.tenant_id = :tenant_id
   AND (k.registered_at_ms, k.worker_id) < (:at_ms, :id)
 ORDER BY k.registered_at_ms DESC, k.worker_id DESC
 LIMIT :rows
"""

RECENT = """
SELECT c.fencing_token, c.workload_id, w.definition_id, c.number, c.issued_at_ms,
       c.started_at_ms, c.ended_at_ms, c.end_kind, c.end_state, c.failure_message
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE c.worker_id = :worker_id
   AND c.ended_at_ms IS NOT NULL
 ORDER BY c.fencing_token DESC
 LIMIT :recent
"""


class Filter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`GET /v1/workers`; every member narrows, `label` (key=value) may come several times.

    `pool_id` keeps the members of a pool of the tenant that is named, or the caller's only one.
    """

    tenant_id: Name | None = None
    application_id: Name | None = None
    lifecycle: Lifecycle | None = None
    health: Health | None = None
    pool_id: Name | None = None
    label: list[str] = []
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: str | None = None


class PageAsk(Struct, frozen=True, kw_only=True):
    """A filter, its labels taken apart, its one tenant, and where the page before ended."""

    filter: Filter
    tenant_id: str | None = None
    labels: dict[str, str] = {}
    after: tuple[int, str] | None = None


class Page(Struct, frozen=True, kw_only=True):
    """`after` is where the next page begins, None at the end."""

    items: list[Worker]
    after: tuple[int, str] | None = None


class Look(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`GET /v1/workers/{id}`; `recent` ended claims are shown with it."""

    recent: Annotated[int, Meta(ge=1, le=RECENT_MAX)] | None = None


def get(tx: Tx, ask: Ask[Look], now: Now) -> Worker:
    """One worker of the caller's tenants, on request with the claims it ended last.

    A worker's key sees its own row, others need workers:read (FORBIDDEN). Refuses
    WORKER_NOT_FOUND.
    """
    if ask.caller.worker_id != ask.id:
        principals.require_scope(ask.caller, "workers:read")
    row = workers.lookup(tx, ask.caller, ask.id)
    found = workers.shown(tx, row)
    if ask.body.recent is None:
        return found
    recent = tx.rows(RECENT, {"worker_id": ask.id, "recent": ask.body.recent})
    return structs.replace(found, recent=[_ended(claim) for claim in recent])


def page(tx: Tx, ask: Ask[PageAsk], now: Now) -> Page:
    """Workers of the caller's tenants, newest registration first, without the removed ones.

    Reads at most 20,000 rows to fill a page. Refuses WORKER_POOL_NOT_FOUND where it is asked for
    the members of a pool that is none of the tenant's.
    """
    wanted = ask.body
    matches = _matcher(ask.caller, wanted)
    belongs = _belonging(tx, wanted)
    tenants = ask.caller.tenants
    tenant_id = wanted.tenant_id or (tenants[0] if len(tenants) == 1 else "*")

    def keep(row: Row) -> Worker | None:
        if not matches(row) or not belongs(row):
            return None
        claims = workers.live_claims(tx, row["worker_id"])
        if wanted.filter.lifecycle not in (None, lifecycle.shown(row, len(claims))):
            return None
        return workers.show(row, claims)

    def read(place: dict[str, object]) -> list[Row]:
        if tenant_id == "*":
            return tx.rows(PAGE, place)
        return tx.rows(PAGE_OF_TENANT, place | {"tenant_id": tenant_id})

    place = KeysetAsk(limit=wanted.filter.limit, after=wanted.after)
    found = fill(read, keep, place, "registered_at_ms", "worker_id")
    return Page(items=list(found.items), after=found.after)


def _matcher(caller: Caller, wanted: PageAsk) -> Callable[[Row], bool]:
    """Whether a row passes everything that its own columns decide."""
    asked = wanted.filter
    # BUSY is stored as READY.
    stored = "READY" if asked.lifecycle == "BUSY" else asked.lifecycle

    def matches(row: Row) -> bool:
        return (
            row["removed_at_ms"] is None
            and caller.may_see(row["tenant_id"])
            and wanted.tenant_id in (None, row["tenant_id"])
            and asked.application_id in (None, row["application_id"])
            and stored in (None, row["lifecycle"])
            and asked.health in (None, row["health"])
            and (not wanted.labels or wanted.labels.items() <= workers.labels_of(row).items())
        )

    return matches


def _belonging(tx: Tx, wanted: PageAsk) -> Callable[[Row], bool]:
    """Whether a row is a member of the pool that is asked for; of none, every row is."""
    if wanted.filter.pool_id is None:
        return lambda row: True
    pool = pools.known(tx, wanted.tenant_id or "", wanted.filter.pool_id)
    application_id, rule = pool["application_id"], membership.rule_of(pool)

    def belongs(row: Row) -> bool:
        return application_id in (None, row["application_id"]) and placement.member(
            placement.of_worker(row), rule
        )

    return belongs


def _ended(claim: Row) -> EndedClaim:
    return EndedClaim(
        claim_id=f"claim_{claim['fencing_token']}",
        workload_id=claim["workload_id"],
        definition_id=claim["definition_id"],
        attempt_number=claim["number"],
        issued_at_ms=claim["issued_at_ms"],
        ended_at_ms=claim["ended_at_ms"],
        end=claim["end_kind"],
        state=claim["end_state"],
        started_at_ms=claim["started_at_ms"],
        message=claim["failure_message"],
    )
