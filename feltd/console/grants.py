"""Grants: what each allows, when it ends, which workers stop with it; extended and revoked here.

Tokens are not shown: whoever needs one asks the API for it, where the answer is his alone.
"""

from typing import Literal

from msgspec import Struct, structs, to_builtins

from feltd.api.request import Reply, Request
from feltd.api.routes import Route
from feltd.console import asked, frame
from feltd.console.keys import SOON_MS
from feltd.identity import grants
from feltd.mesh import authority, stops
from feltd.model.base import Name, Sentence
from feltd.model.grant import ExtendGrant, RevokeGrant
from feltd.model.page import LIMIT_DEFAULT, Limit, PageAsk

PLACE = "/console/grants"
#: How long from now a grant may be extended by the page, ms; the API takes any instant.
LASTS_MS = {"30d": 2_592_000_000, "90d": 7_776_000_000, "365d": 31_536_000_000}


class GrantsQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose grants, and from where on."""

    tenant_id: Name | None = None
    limit: Limit = LIMIT_DEFAULT
    cursor: str | None = None


class WhyForm(Struct, frozen=True, forbid_unknown_fields=True):
    """Why a grant is revoked."""

    reason: Sentence | None = None


class ExtendForm(Struct, frozen=True, forbid_unknown_fields=True):
    """For how long from now a grant shall go on."""

    lasts: Literal["30d", "90d", "365d"]


async def grants_page(request: Request) -> Reply:
    """GET /console/grants: newest first, ended ones too."""
    query = frame.query(request, GrantsQuery)
    tenant_id = frame.tenant_filter(request)
    place = asked.opened(request, tenant_id, query.cursor)
    after = None if place is None else (place[0], place[1])
    wanted = PageAsk(tenant_id=tenant_id, limit=query.limit, after=after)
    found = await asked.read(request, grants.page, wanted)
    live = tuple(grant.id for grant in found.items if grant.chain_live)
    return await frame.page(
        request,
        "grants",
        grants=found.items,
        stops=await asked.read(request, stops.with_grants, live),
        next_cursor=asked.sealed(request, tenant_id, found.after),
        asked=query,
        soon_ms=SOON_MS,
        wall_ms=request.app.clock.now().wall_ms,
    )


async def grant_page(request: Request) -> Reply:
    """GET /console/grants/{id}: all of a grant but its token. Refuses GRANT_NOT_FOUND."""
    grant = await asked.read(request, grants.show)
    found = await asked.read(request, stops.with_grants, (grant.id,))
    return await frame.page(
        request,
        "grant",
        grant=grant,
        stops=found[grant.id],
        constraints=to_builtins(structs.asdict(grant.constraints)),
        soon_ms=SOON_MS,
        wall_ms=request.app.clock.now().wall_ms,
    )


async def extend_grant(request: Request) -> Reply:
    """POST /console/grants/{id}/extend: it allows what it did, until later. Ends no claim."""
    told = frame.form(request, ExtendForm)
    until_ms = request.app.clock.now().wall_ms + LASTS_MS[told.lasts]
    await asked.act(request, authority.extend_grant, ExtendGrant(expires_at_ms=until_ms))
    return frame.done(request, f"{PLACE}/{request.path_params['id']}", "The grant ends later now.")


async def revoke_grant(request: Request) -> Reply:
    """POST /console/grants/{id}/revoke: it and all below it end for ever."""
    told = frame.form(request, WhyForm)
    done = await asked.act(request, authority.revoke_grant, RevokeGrant(reason=told.reason))
    ended = len(done.fenced_claims)
    left = f", {done.remaining:,} follow" if done.remaining else ""
    claims = "claim has" if ended == 1 else "claims have"
    said = f"The grant is revoked; {ended:,} {claims} ended{left}."
    return frame.done(request, f"{PLACE}/{request.path_params['id']}", said)


ROUTES = (
    Route(
        method="GET",
        path=PLACE,
        operation="grants_page",
        tag="console",
        handler=grants_page,
        summary="Grants",
        scope=grants.SCOPE,
        query=GrantsQuery,
        page=True,
    ),
    Route(
        method="GET",
        path=PLACE + "/{id}",
        operation="grant_page",
        tag="console",
        handler=grant_page,
        summary="One grant",
        scope=grants.SCOPE,
        page=True,
    ),
    Route(
        method="POST",
        path=PLACE + "/{id}/extend",
        operation="console_extend_grant",
        tag="console",
        handler=extend_grant,
        summary="Let a grant end later",
        scope=grants.SCOPE,
        page=True,
    ),
    Route(
        method="POST",
        path=PLACE + "/{id}/revoke",
        operation="console_revoke_grant",
        tag="console",
        handler=revoke_grant,
        summary="Revoke a grant",
        scope=grants.SCOPE,
        page=True,
    ),
)
