"""Pools over HTTP: made, listed, shown, changed, deleted. Keyed by tenant and id.

A handler decodes, finds the tenant, submits one rule and replies; members are counted on a reader,
never on the writer.
"""

from typing import Any

from msgspec import Struct

from feltd.api import wire
from feltd.api.door import tenant_filter, tenant_of
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.clock import Now
from feltd.mesh import membership, pools
from feltd.model.base import Ask, Name
from feltd.model.page import LIMIT_DEFAULT, Limit, PageAsk
from feltd.model.pool import NewPool, Pool, PoolPage
from feltd.store.tx import Tx


class ListPools(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query of a list."""

    limit: Limit = LIMIT_DEFAULT
    cursor: str | None = None
    tenant_id: Name | None = None


class OfTenant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query of a call on one pool."""

    tenant_id: Name | None = None


async def create_pool(request: Request) -> Reply:
    """Repeating it with the same members is harmless; see pools.create."""
    body = request.decode(NewPool)
    pool, created = await _submit(request, pools.create, body)
    return reply(201 if created else 200, await _counted(request, pool))


async def replace_pool(request: Request) -> Reply:
    """See pools.replace."""
    pool = await _submit(request, pools.replace, request.decode(NewPool))
    return reply(200, await _counted(request, pool))


async def delete_pool(request: Request) -> Reply:
    """See pools.delete."""
    request.query(OfTenant)
    await _submit(request, pools.delete, None)
    return reply(204)


async def show_pool(request: Request) -> Reply:
    """See pools.get."""
    request.query(OfTenant)
    return reply(200, await request.app.readers.read(pools.get, _ask(request, None)))


async def list_pools(request: Request) -> Reply:
    """Newest first; see pools.page."""
    query = request.query(ListPools)
    tenant_id = tenant_filter(request)
    secret = request.app.keyring.cursor_secret
    bound = ["pools", sorted(request.caller.tenants), tenant_id]
    after = None
    if query.cursor is not None:
        at_ms, place = wire.open_cursor(secret, bound, query.cursor)
        after = (at_ms, place)
    body = PageAsk(tenant_id=tenant_id, limit=query.limit, after=after)
    page = await request.app.readers.read(pools.page, Ask(caller=request.caller, body=body))
    cursor = wire.seal_cursor(secret, bound, page.after) if page.after else None
    return reply(200, PoolPage(items=page.items, next_cursor=cursor))


def _ask(request: Request, body: NewPool | None) -> Ask[pools.OfTenant]:
    return Ask(
        caller=request.caller,
        body=pools.OfTenant(tenant_id=tenant_of(request, body), body=body),
        id=request.path_params.get("id", ""),
        limits=request.app.config,
    )


async def _submit(request: Request, rule: Any, body: NewPool | None) -> Any:
    ask = _ask(request, body)
    return await request.app.writer.submit(
        rule, ask, tenant=ask.body.tenant_id, deadline_ms=request.deadline_ms
    )


async def _counted(request: Request, pool: Pool) -> Pool:
    counted: Pool = await request.app.readers.read(_members, pool)
    return counted


def _members(tx: Tx, pool: Pool, now: Now) -> Pool:
    return membership.counted(tx, [pool], now)[0]


_EXAMPLE: dict[str, Any] = {
    "pool_id": "gpu",
    "tenant_id": "acme",
    "name": "machines with a GPU",
    "application_id": "docs",
    "capabilities": ["documents.extract"],
    "required_labels": {"zone": "a"},
    "max_concurrency": 8,
}
_GONE = {404: "No such pool"}
_NAMED = "No such pool, or a listed worker is none of the tenant and application"

ROUTES = (
    Route(
        method="POST",
        path="/v1/pools",
        operation="create_pool",
        tag="pool",
        handler=create_pool,
        summary="Make a pool of workers with a ceiling",
        scope=pools.WRITE,
        body=NewPool,
        answer=Pool,
        status=201,
        invalid_code="WORKER_INVALID",
        example=_EXAMPLE,
        responses={200: "It stands so already", 404: _NAMED, 409: "The id names another pool"},
    ),
    Route(
        method="GET",
        path="/v1/pools",
        operation="list_pools",
        tag="pool",
        handler=list_pools,
        summary="List pools, newest first",
        scope="workers:read",
        query=ListPools,
        answer=PoolPage,
    ),
    Route(
        method="GET",
        path="/v1/pools/{id}",
        operation="show_pool",
        tag="pool",
        handler=show_pool,
        summary="Show a pool, its members and its live claims counted",
        scope="workers:read",
        query=OfTenant,
        answer=Pool,
        responses=_GONE,
    ),
    Route(
        method="PUT",
        path="/v1/pools/{id}",
        operation="replace_pool",
        tag="pool",
        handler=replace_pool,
        summary="Change who is in a pool and its ceiling, for new claims",
        scope=pools.WRITE,
        body=NewPool,
        answer=Pool,
        invalid_code="WORKER_INVALID",
        example={"pool_id": "gpu", "name": "machines with a GPU", "max_concurrency": 16},
        responses={404: _NAMED},
    ),
    Route(
        method="DELETE",
        path="/v1/pools/{id}",
        operation="delete_pool",
        tag="pool",
        handler=delete_pool,
        summary="Delete a pool; work that names it waits until it is made again",
        scope=pools.WRITE,
        query=OfTenant,
        status=204,
        responses=_GONE,
    ),
)
