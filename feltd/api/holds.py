"""Holds over HTTP: placed, listed, lifted.

A handler decodes, finds whose work is meant, submits one rule and replies.
"""

from typing import Any

from msgspec import Struct, structs

from feltd.api import fresh, wire
from feltd.api.door import tenant_filter, tenant_of
from feltd.api.repeats import submit_once
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.mesh import holds
from feltd.mesh.generation import EVERYBODY
from feltd.model.base import Ask, Name
from feltd.model.hold import Hold, HoldPage, NewHold
from feltd.model.page import LIMIT_DEFAULT, Limit, PageAsk


class ListHolds(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query of a list."""

    limit: Limit = LIMIT_DEFAULT
    cursor: str | None = None
    tenant_id: Name | None = None


class OfTenant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query of a call on one hold."""

    tenant_id: Name | None = None


async def place_hold(request: Request) -> Reply:
    """See holds.place."""
    body = request.decode(NewHold)
    tenant_id = EVERYBODY if body.scope == "all" else _tenant(request, body)
    ask = Ask(
        caller=request.caller,
        body=holds.Placing(tenant_id=tenant_id, hold=body),
        fresh=fresh.hold_id(),
    )
    done = await submit_once(request, holds.place, ask, tenant=tenant_id)
    return reply(done.status, done.answer)


async def list_holds(request: Request) -> Reply:
    """Newest first; see holds.page."""
    query = request.query(ListHolds)
    tenant_id = tenant_filter(request)
    secret = request.app.keyring.cursor_secret
    bound = ["holds", sorted(request.caller.tenants), tenant_id]
    after = None
    if query.cursor is not None:
        at_ms, hold_id = wire.open_cursor(secret, bound, query.cursor)
        after = (at_ms, hold_id)
    body = PageAsk(tenant_id=tenant_id, limit=query.limit, after=after)
    page = await request.app.readers.read(holds.page, Ask(caller=request.caller, body=body))
    cursor = wire.seal_cursor(secret, bound, page.after) if page.after else None
    return reply(200, HoldPage(items=page.items, next_cursor=cursor))


async def lift_hold(request: Request) -> Reply:
    """A key of every tenant need not say whose hold it is: ids are not reused. See holds.lift."""
    request.query(OfTenant)
    tenant_id = tenant_filter(request)
    if tenant_id is None:
        tenant_id = "" if EVERYBODY in request.caller.tenants else tenant_of(request)
    ask = Ask(caller=request.caller, body=tenant_id, id=request.path_params["id"])
    await request.app.writer.submit(
        holds.lift, ask, tenant=tenant_id, deadline_ms=request.deadline_ms
    )
    return reply(204)


def _tenant(request: Request, body: NewHold) -> str:
    """The tenant of a hold; scope tenant may name it as its value."""
    if body.scope == "tenant" and body.tenant_id is None and body.value is not None:
        body = structs.replace(body, tenant_id=body.value)
    return tenant_of(request, body)


_EXAMPLE: dict[str, Any] = {
    "scope": "definition",
    "value": "documents.extract",
    "tenant_id": "acme",
    "reason": "the parser loses pages, a new release comes",
}

ROUTES = (
    Route(
        method="POST",
        path="/v1/holds",
        operation="place_hold",
        tag="hold",
        handler=place_hold,
        summary="Keep work from being claimed; what runs goes on",
        scope=holds.SCOPE,
        body=NewHold,
        answer=Hold,
        status=201,
        example=_EXAMPLE,
        responses={404: "No such pool"},
    ),
    Route(
        method="GET",
        path="/v1/holds",
        operation="list_holds",
        tag="hold",
        handler=list_holds,
        summary="Holds that stand, newest first",
        scope=holds.SCOPE,
        query=ListHolds,
        answer=HoldPage,
    ),
    Route(
        method="DELETE",
        path="/v1/holds/{id}",
        operation="lift_hold",
        tag="hold",
        handler=lift_hold,
        summary="Lift a hold; waiting workers look for work at once",
        scope=holds.SCOPE,
        query=OfTenant,
        status=204,
        responses={404: "No such hold"},
    ),
)
