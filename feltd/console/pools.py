"""Pools: which workers may run what, and how much at once; made, changed and deleted here.

A form holds all of a pool, as the wire does: what is not in it is not in the pool any more.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert

from feltd.api import wire
from feltd.api.request import Reply, Request
from feltd.api.routes import Route
from feltd.console import asked, frame
from feltd.mesh import pools, roster
from feltd.model.base import Name
from feltd.model.page import LIMIT_DEFAULT, Limit, PageAsk
from feltd.model.pool import NewPool, Pool

READ = "workers:read"
PLACE = "/console/pools"
#: Members that a pool's page names.
MEMBERS_SHOWN = 100

#: A pool whose listed workers are all gone has nobody; it must not open to all by a small change.
LISTED = {
    "name": "listed",
    "label": "nobody but those, also when none is named",
    "type": "checkbox",
    "value": True,
}

#: Lists are typed as words; what they hold is checked as the wire checks it.
Typed = Annotated[str, Meta(max_length=40_000)]


class PoolsQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose pools, and from where on."""

    tenant_id: Name | None = None
    limit: Limit = LIMIT_DEFAULT
    cursor: str | None = None


class PoolForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A pool as it is typed."""

    pool_id: str = ""
    name: str = ""
    tenant_id: Name | None = None
    application_id: str | None = None
    capabilities: Typed | None = None
    required_labels: Typed | None = None
    worker_ids: Typed | None = None
    max_concurrency: int | None = None
    listed: bool = False


class OfTenant(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose pool; a pool is keyed by its tenant."""

    tenant_id: Name | None = None


async def pools_page(request: Request) -> Reply:
    """GET /console/pools: newest first."""
    query = frame.query(request, PoolsQuery)
    tenant_id = frame.tenant_filter(request)
    place = asked.opened(request, tenant_id, query.cursor)
    after = None if place is None else (place[0], place[1])
    wanted = PageAsk(tenant_id=tenant_id, limit=query.limit, after=after)
    found = await asked.read(request, pools.page, wanted)
    return await frame.page(
        request,
        "pools",
        pools=found.items,
        next_cursor=asked.sealed(request, tenant_id, found.after),
        asked=query,
        fields=_fields(None, tenants=request.caller.tenants),
    )


async def pool_page(request: Request) -> Reply:
    """GET /console/pools/{id}: one pool and who is in it. Refuses WORKER_POOL_NOT_FOUND."""
    query = frame.query(request, OfTenant)
    tenant_id = asked.tenant_meant(request, query.tenant_id)
    pool = await asked.read(request, pools.get, pools.OfTenant(tenant_id=tenant_id))
    wanted = roster.PageAsk(
        filter=roster.Filter(pool_id=pool.pool_id, limit=MEMBERS_SHOWN), tenant_id=tenant_id
    )
    members = await asked.read(request, roster.page, wanted)
    return await frame.page(
        request, "pool", pool=pool, members=members.items, fields=_fields(pool, tenants=())
    )


async def create_pool(request: Request) -> Reply:
    """POST /console/pools."""
    body = _body(frame.form(request, PoolForm))
    pool, created = await _act(request, pools.create, body, body.tenant_id, id="")
    said = f"The pool {pool.pool_id} {'was made' if created else 'stands so already'}."
    return frame.done(request, _of(pool), said)


async def replace_pool(request: Request) -> Reply:
    """POST /console/pools/{id}/replace: what the form holds is the pool from now on."""
    body = _body(frame.form(request, PoolForm), request.path_params["id"])
    pool = await _act(request, pools.replace, body, body.tenant_id)
    return frame.done(request, _of(pool), f"The pool {pool.pool_id} is changed.")


async def delete_pool(request: Request) -> Reply:
    """POST /console/pools/{id}/delete."""
    told = frame.form(request, OfTenant)
    await _act(request, pools.delete, None, told.tenant_id)
    return frame.done(request, PLACE, f"The pool {request.path_params['id']} is deleted.")


async def _act(
    request: Request, rule: Any, body: NewPool | None, named: str | None, id: str | None = None
) -> Any:
    tenant_id = asked.tenant_meant(request, named)
    told = pools.OfTenant(tenant_id=tenant_id, body=body)
    return await asked.act(request, rule, told, id=id, tenant=tenant_id)


def _of(pool: Pool) -> str:
    return frame.link(f"{PLACE}/{pool.pool_id}", {"tenant_id": pool.tenant_id})


def _body(form: PoolForm, pool_id: str | None = None) -> NewPool:
    """The pool a form describes. Refuses REQUEST_INVALID for what does not fit."""
    labels = asked.words(form.required_labels)
    members: dict[str, Any] = {
        "pool_id": pool_id or form.pool_id,
        "name": form.name or pool_id or form.pool_id,
        "tenant_id": form.tenant_id,
        "application_id": form.application_id,
        "capabilities": asked.words(form.capabilities),
        "required_labels": dict(asked.pair("required_labels", text) for text in labels),
        "worker_ids": asked.words(form.worker_ids),
        "listed": True if form.listed else None,
        "max_concurrency": form.max_concurrency,
    }
    try:
        return convert(members, NewPool)
    except ValidationError as unfit:
        raise wire.invalid("REQUEST_INVALID", "", str(unfit)) from None


def _fields(pool: Pool | None, tenants: tuple[str, ...]) -> list[dict[str, Any]]:
    """The fields of the form of a new pool, or of one that stands."""
    fields: list[dict[str, Any]] = []
    if pool is None:
        fields.append({"name": "pool_id", "label": "Id", "required": True, "autocomplete": "off"})
        if len(tenants) != 1 or "*" in tenants:
            fields.append({"name": "tenant_id", "label": "Tenant", "required": True})
    else:
        fields.append({"name": "tenant_id", "type": "hidden", "value": pool.tenant_id})
    labels = () if pool is None else sorted(pool.required_labels.items())
    return [
        *fields,
        {"name": "name", "label": "Name", "value": None if pool is None else pool.name},
        {
            "name": "application_id",
            "label": "Application",
            "value": None if pool is None else pool.application_id,
            "hint": "empty: every application of the tenant",
        },
        {
            "name": "max_concurrency",
            "label": "Ceiling",
            "type": "number",
            "min": 1,
            "value": None if pool is None else pool.max_concurrency,
            "hint": "live claims at once; empty: none",
        },
        {
            "name": "capabilities",
            "label": "Capabilities its members have",
            "type": "textarea",
            "rows": 2,
            "value": "" if pool is None else "\n".join(pool.capabilities),
            "hint": "one a line",
        },
        {
            "name": "required_labels",
            "label": "Labels its members have",
            "type": "textarea",
            "rows": 2,
            "value": "\n".join(f"{key}={text}" for key, text in labels),
            "hint": "key=value, one a line",
        },
        {
            "name": "worker_ids",
            "label": "Only these workers",
            "type": "textarea",
            "rows": 2,
            "value": "" if pool is None else "\n".join(pool.worker_ids),
            "hint": "ids, one a line; empty: whoever meets the rest",
        },
        *([LISTED] if pool is not None and pool.listed else []),
    ]


ROUTES = (
    Route(
        method="GET",
        path=PLACE,
        operation="pools_page",
        tag="console",
        handler=pools_page,
        summary="Pools",
        scope=READ,
        query=PoolsQuery,
        page=True,
    ),
    Route(
        method="GET",
        path=PLACE + "/{id}",
        operation="pool_page",
        tag="console",
        handler=pool_page,
        summary="One pool",
        scope=READ,
        query=OfTenant,
        page=True,
    ),
    Route(
        method="POST",
        path=PLACE,
        operation="console_create_pool",
        tag="console",
        handler=create_pool,
        summary="Make a pool",
        scope=pools.WRITE,
        page=True,
    ),
    Route(
        method="POST",
        path=PLACE + "/{id}/replace",
        operation="console_replace_pool",
        tag="console",
        handler=replace_pool,
        summary="Change a pool",
        scope=pools.WRITE,
        page=True,
    ),
    Route(
        method="POST",
        path=PLACE + "/{id}/delete",
        operation="console_delete_pool",
        tag="console",
        handler=delete_pool,
        summary="Delete a pool",
        scope=pools.WRITE,
        page=True,
    ),
)
