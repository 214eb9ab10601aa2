"""Grants over HTTP: issued, shown, listed, changed, revoked."""

from typing import Any

from msgspec import Struct, convert

from feltd.api import fresh, wire
from feltd.api.door import tenant_filter
from feltd.api.repeats import submit_once
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.clock import Now
from feltd.identity import grants
from feltd.mesh import authority
from feltd.model.base import Ask
from feltd.model.grant import (
    GrantAnswer,
    GrantPage,
    IssueGrant,
    Regranted,
    RegrantedAnswer,
    ReplaceGrant,
    RevokeGrant,
)
from feltd.model.page import LIMIT_DEFAULT, Limit, PageAsk
from feltd.store.tx import Tx


class ListGrants(Struct, frozen=True, kw_only=True):
    """The query of a list."""

    limit: Limit = LIMIT_DEFAULT
    cursor: str | None = None
    tenant_id: str | None = None


async def issue_grant(request: Request) -> Reply:
    """A child may also be made by its parent's subject; see grants.issue."""
    body = request.decode(IssueGrant)
    ask = Ask(caller=request.caller, body=body, fresh=fresh.grant_id())
    # A token is made again from the row, so only the grant is kept for a repeat.
    done = await submit_once(
        request, grants.issue, ask, tenant=body.tenant_id, again=grants.issue_again
    )
    token = grants.token_of(request.app.keyring, done.answer)
    return reply(done.status, GrantAnswer(grant=done.answer, token=token))


async def list_grants(request: Request) -> Reply:
    """Newest first, without tokens; see grants.page."""
    query = request.query(ListGrants)
    tenant_id = tenant_filter(request)
    secret = request.app.keyring.cursor_secret
    bound = ["grants", sorted(request.caller.tenants), tenant_id]
    after = None
    if query.cursor is not None:
        at_ms, grant_id = wire.open_cursor(secret, bound, query.cursor)
        after = (at_ms, grant_id)
    ask = Ask(
        caller=request.caller,
        body=PageAsk(tenant_id=tenant_id, limit=query.limit, after=after),
    )
    page = await request.app.readers.read(grants.page, ask)
    cursor = wire.seal_cursor(secret, bound, page.after) if page.after else None
    return reply(200, GrantPage(items=page.items, next_cursor=cursor))


async def show_grant(request: Request) -> Reply:
    """With its token, made again from the row; see grants.show."""
    ask = Ask(caller=request.caller, body=None, id=request.path_params["id"])
    grant = await request.app.readers.read(grants.show, ask)
    token = grants.token_of(request.app.keyring, grant)
    return reply(200, GrantAnswer(grant=grant, token=token))


async def replace_grant(request: Request) -> Reply:
    """Claims that exceed what is left end; see authority.replace_grant."""
    ask = _ask(request, request.decode(ReplaceGrant))
    done = await request.app.writer.submit(
        authority.replace_grant, ask, deadline_ms=request.deadline_ms
    )
    return await _regranted(request, ask, done)


async def revoke_grant(request: Request) -> Reply:
    """Claims under it end, keys bound to it too; see authority.revoke_grant."""
    ask = _ask(request, request.decode(RevokeGrant))
    done = await submit_once(request, authority.revoke_grant, ask, again=_revoked_before)
    return await _regranted(request, ask, done.answer)


def _revoked_before(tx: Tx, ask: Ask[Any], now: Now, kept: Any) -> Regranted:
    return convert(kept, Regranted)


def _ask(request: Request, body: object) -> Ask[Any]:
    return Ask(
        caller=request.caller,
        body=body,
        id=request.path_params["id"],
        limits=request.app.config,
    )


async def _regranted(request: Request, ask: Ask[Any], done: Regranted) -> Reply:
    grant = await request.app.readers.read(grants.show, ask)
    return reply(
        200,
        RegrantedAnswer(
            grant=grant,
            token=grants.token_of(request.app.keyring, grant),
            fenced_claims=done.fenced_claims,
            remaining=done.remaining,
        ),
    )


_EXAMPLE = {
    "subject": {"kind": "service", "id": "registrar"},
    "tenant_id": "acme",
    "application_id": "docs",
    "capabilities": ["worker:register", "worker:capability:documents.extract"],
    "resources": [{"kind": "RESOURCE_PREFIX", "uri": "flow://docs/workers/*"}],
    "expires_at_ms": 1_924_992_000_000,
}

ROUTES = (
    Route(
        method="POST",
        path="/v1/grants",
        operation="issue_grant",
        tag="grant",
        handler=issue_grant,
        summary="Issue a grant (grants:issue), or a child of one's own (its parent's subject)",
        auth="any",
        scope=grants.SCOPE,
        body=IssueGrant,
        answer=GrantAnswer,
        status=201,
        invalid_code="GRANT_INVALID",
        example=_EXAMPLE,
        responses={403: "The caller may not issue it, or the parent is not live"},
    ),
    Route(
        method="GET",
        path="/v1/grants",
        operation="list_grants",
        tag="grant",
        handler=list_grants,
        summary="Grants of the caller's tenants, newest first",
        scope=grants.SCOPE,
        query=ListGrants,
        answer=GrantPage,
    ),
    Route(
        method="GET",
        path="/v1/grants/{id}",
        operation="show_grant",
        tag="grant",
        handler=show_grant,
        summary="A grant with its token (grants:issue; a child also its parent's subject)",
        auth="any",
        scope=grants.SCOPE,
        answer=GrantAnswer,
        responses={404: "No such grant"},
    ),
    Route(
        method="PUT",
        path="/v1/grants/{id}",
        operation="replace_grant",
        tag="grant",
        handler=replace_grant,
        summary="Replace what a grant allows and when it ends; claims that exceed it end",
        auth="any",
        scope=grants.SCOPE,
        body=ReplaceGrant,
        answer=RegrantedAnswer,
        invalid_code="GRANT_INVALID",
        example={
            "capabilities": _EXAMPLE["capabilities"],
            "resources": _EXAMPLE["resources"],
            "expires_at_ms": 1_956_528_000_000,
        },
        responses={403: "It was revoked, or is not the caller's", 404: "No such grant"},
    ),
    Route(
        method="POST",
        path="/v1/grants/{id}/revoke",
        operation="revoke_grant",
        tag="grant",
        handler=revoke_grant,
        summary="Revoke a grant and all below it for ever; claims and keys under it end",
        auth="any",
        scope=grants.SCOPE,
        body=RevokeGrant,
        answer=RegrantedAnswer,
        example={"reason": "the contract ended"},
        responses={404: "No such grant"},
    ),
)
