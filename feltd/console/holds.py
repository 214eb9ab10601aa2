"""Holds: what is kept from being claimed, by whom and why; placed and lifted here."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, ValidationError, convert

from feltd.api import fresh, wire
from feltd.api.request import Reply, Request
from feltd.api.routes import Route
from feltd.console import asked, frame
from feltd.mesh import holds
from feltd.mesh.generation import EVERYBODY
from feltd.model.base import Name, Sentence
from feltd.model.hold import NewHold, Scope
from feltd.model.page import LIMIT_DEFAULT, Limit, PageAsk

PLACE = "/console/holds"
#: How long a hold may be chosen to last, ms; "" is until somebody lifts it.
LASTS_MS = {"10m": 600_000, "1h": 3_600_000, "8h": 28_800_000, "1d": 86_400_000}


class HoldsQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose holds, and from where on."""

    tenant_id: Name | None = None
    limit: Limit = LIMIT_DEFAULT
    cursor: str | None = None


class HoldForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A hold as it is typed."""

    scope: Scope
    reason: Annotated[Sentence, Meta(min_length=1)] | None = None
    value: str | None = None
    tenant_id: Name | None = None
    lasts: Literal["10m", "1h", "8h", "1d"] | None = None


class LiftForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose hold is lifted; ids are not used again, so a caller of all tenants need not say."""

    tenant_id: Name | None = None


async def holds_page(request: Request) -> Reply:
    """GET /console/holds: those that stand, newest first."""
    query = frame.query(request, HoldsQuery)
    tenant_id = frame.tenant_filter(request)
    place = asked.opened(request, tenant_id, query.cursor)
    after = None if place is None else (place[0], place[1])
    wanted = PageAsk(tenant_id=tenant_id, limit=query.limit, after=after)
    found = await asked.read(request, holds.page, wanted)
    tenants = request.caller.tenants
    return await frame.page(
        request,
        "holds",
        holds=found.items,
        next_cursor=asked.sealed(request, tenant_id, found.after),
        asked=query,
        several=len(tenants) != 1 or "*" in tenants,
        everybody="*" in tenants,
    )


async def place_hold(request: Request) -> Reply:
    """POST /console/holds."""
    told = frame.form(request, HoldForm)
    if told.reason is None:
        raise wire.invalid("REQUEST_INVALID", "/reason", "is required: others will ask why")
    tenant_id = EVERYBODY
    if told.scope != "all":
        named = told.tenant_id or (told.value if told.scope == "tenant" else None)
        tenant_id = asked.tenant_meant(request, named)
    until_at_ms = None
    if told.lasts is not None:
        until_at_ms = request.app.clock.now().wall_ms + LASTS_MS[told.lasts]
    try:
        hold = convert(
            {
                "scope": told.scope,
                "reason": told.reason,
                "value": told.value,
                "tenant_id": told.tenant_id,
                "until_at_ms": until_at_ms,
            },
            NewHold,
        )
    except ValidationError as unfit:
        raise wire.invalid("REQUEST_INVALID", "", str(unfit)) from None
    body = holds.Placing(tenant_id=tenant_id, hold=hold)
    placed = await asked.act(
        request, holds.place, body, id="", fresh=fresh.hold_id(), tenant=tenant_id
    )
    what = placed.scope if placed.value is None else f"{placed.scope} {placed.value}"
    return frame.done(request, PLACE, f"Held: {what}. What runs goes on.")


async def lift_hold(request: Request) -> Reply:
    """POST /console/holds/{id}/lift."""
    told = frame.form(request, LiftForm)
    tenant_id = told.tenant_id
    if tenant_id is None:
        everybody = EVERYBODY in request.caller.tenants
        tenant_id = "" if everybody else asked.tenant_meant(request, None)
    await asked.act(request, holds.lift, tenant_id, tenant=tenant_id)
    return frame.done(request, PLACE, "The hold is lifted: workers look for work at once.")


ROUTES = (
    Route(
        method="GET",
        path=PLACE,
        operation="holds_page",
        tag="console",
        handler=holds_page,
        summary="Holds",
        scope=holds.SCOPE,
        query=HoldsQuery,
        page=True,
    ),
    Route(
        method="POST",
        path=PLACE,
        operation="console_hold",
        tag="console",
        handler=place_hold,
        summary="Keep work from being claimed",
        scope=holds.SCOPE,
        page=True,
    ),
    Route(
        method="POST",
        path=PLACE + "/{id}/lift",
        operation="console_lift",
        tag="console",
        handler=lift_hold,
        summary="Lift a hold",
        scope=holds.SCOPE,
        page=True,
    ),
)
