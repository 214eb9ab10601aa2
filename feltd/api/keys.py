"""Keys over HTTP: made, listed, rotated, revoked, and who the caller is."""

from msgspec import Struct

from feltd.api import fresh, wire
from feltd.api.door import tenant_filter
from feltd.api.repeats import submit_once
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.identity import keys
from feltd.model.base import Ask
from feltd.model.key import CreateKey, KeyMade, KeyPage, Me, RotateKey
from feltd.model.page import LIMIT_DEFAULT, Limit, PageAsk


class ListKeys(Struct, frozen=True, kw_only=True):
    """The query of a list."""

    limit: Limit = LIMIT_DEFAULT
    cursor: str | None = None
    tenant_id: str | None = None


async def create_key(request: Request) -> Reply:
    """The secret stands in this answer only; see keys.create."""
    ask = Ask(
        caller=request.caller,
        body=request.decode(CreateKey),
        fresh=fresh.key_material(),
        limits=request.app.config,
    )
    done = await submit_once(request, keys.create, ask, public=keys.public, again=keys.create_again)
    return reply(done.status, done.answer, {"Cache-Control": "no-store"})


async def list_keys(request: Request) -> Reply:
    """Newest first, without secrets; see keys.page."""
    query = request.query(ListKeys)
    tenant_id = tenant_filter(request)
    secret = request.app.keyring.cursor_secret
    bound = ["keys", sorted(request.caller.tenants), tenant_id]
    after = None
    if query.cursor is not None:
        at_ms, key_id = wire.open_cursor(secret, bound, query.cursor)
        after = (at_ms, key_id)
    ask = Ask(
        caller=request.caller,
        body=PageAsk(tenant_id=tenant_id, limit=query.limit, after=after),
    )
    page = await request.app.readers.read(keys.page, ask)
    cursor = wire.seal_cursor(secret, bound, page.after) if page.after else None
    return reply(200, KeyPage(items=page.items, next_cursor=cursor))


async def revoke_key(request: Request) -> Reply:
    """Takes every key obtained through it along; see keys.revoke."""
    ask = Ask(caller=request.caller, body=None, id=request.path_params["id"])
    await request.app.writer.submit(keys.revoke, ask, deadline_ms=request.deadline_ms)
    return reply(204)


async def rotate_key(request: Request) -> Reply:
    """The successor's secret stands in this answer only; see keys.rotate."""
    ask = Ask(
        caller=request.caller,
        body=request.decode(RotateKey),
        id=request.path_params["id"],
        fresh=fresh.key_material(),
    )
    done = await submit_once(request, keys.rotate, ask, public=keys.public, again=keys.rotate_again)
    return reply(done.status, done.answer, {"Cache-Control": "no-store"})


async def auth_me(request: Request) -> Reply:
    """Who asks, and what the grant allows that the key is bound to."""
    ask = Ask(caller=request.caller, body=None)
    return reply(200, await request.app.readers.read(keys.me, ask))


ROUTES = (
    Route(
        method="POST",
        path="/v1/keys",
        operation="create_key",
        tag="key",
        handler=create_key,
        summary="Make a key within what the caller holds; its secret is shown this once",
        scope=keys.SCOPE,
        body=CreateKey,
        answer=KeyMade,
        status=201,
        example={"name": "nightly import", "scopes": ["workloads:create", "workloads:read"]},
        responses={403: "The key would hold more than the caller's"},
    ),
    Route(
        method="GET",
        path="/v1/keys",
        operation="list_keys",
        tag="key",
        handler=list_keys,
        summary="Keys of the caller's tenants, newest first, without secrets",
        scope=keys.SCOPE,
        query=ListKeys,
        answer=KeyPage,
    ),
    Route(
        method="DELETE",
        path="/v1/keys/{id}",
        operation="revoke_key",
        tag="key",
        handler=revoke_key,
        summary="End a key and every key obtained through it",
        scope=keys.SCOPE,
        status=204,
        responses={404: "No such key"},
    ),
    Route(
        method="POST",
        path="/v1/keys/{id}/rotate",
        operation="rotate_key",
        tag="key",
        handler=rotate_key,
        summary="Replace a key; the old one goes on for overlap_ms",
        scope=keys.SCOPE,
        body=RotateKey,
        answer=KeyMade,
        status=201,
        example={"overlap_ms": 3_600_000},
        responses={404: "No such key"},
    ),
    Route(
        method="GET",
        path="/v1/auth/me",
        operation="auth_me",
        tag="key",
        handler=auth_me,
        summary="Who the caller is, and what its bound grant allows",
        auth="any",
        answer=Me,
    ),
)
