"""Keys and signing keys: what each may do, when it ends, and which workers stop with it.

A key is ended here, never made: its secret would stand on a page. Nothing of a signing key is
shown but its name.
"""

from msgspec import Struct

from feltd.api.request import Reply, Request
from feltd.api.routes import Route
from feltd.console import asked, frame
from feltd.identity import keys
from feltd.mesh import stops
from feltd.model.base import Name
from feltd.model.page import LIMIT_DEFAULT, Limit, PageAsk

PLACE = "/console/keys"
#: What ends within this is marked.
SOON_MS = 7 * 86_400_000


class KeysQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose keys, and from where on."""

    tenant_id: Name | None = None
    limit: Limit = LIMIT_DEFAULT
    cursor: str | None = None


class NoFields(Struct, frozen=True, forbid_unknown_fields=True):
    """A form that says nothing but what it is for."""


async def keys_page(request: Request) -> Reply:
    """GET /console/keys: newest first, ended ones too."""
    query = frame.query(request, KeysQuery)
    tenant_id = frame.tenant_filter(request)
    place = asked.opened(request, tenant_id, query.cursor)
    after = None if place is None else (place[0], place[1])
    wanted = PageAsk(tenant_id=tenant_id, limit=query.limit, after=after)
    found = await asked.read(request, keys.page, wanted)
    live = tuple(key.key_id for key in found.items if key.revoked_at_ms is None)
    return await frame.page(
        request,
        "keys",
        keys=found.items,
        names=await asked.names(request, (key.worker_id for key in found.items)),
        stops=await asked.read(request, stops.with_keys, live),
        next_cursor=asked.sealed(request, tenant_id, found.after),
        asked=query,
        soon_ms=SOON_MS,
        wall_ms=request.app.clock.now().wall_ms,
    )


async def revoke_key(request: Request) -> Reply:
    """POST /console/keys/{id}/revoke: it and every key obtained through it end."""
    frame.form(request, NoFields)
    await asked.act(request, keys.revoke)
    return frame.done(request, PLACE, f"The key {request.path_params['id']} has ended.")


async def signing_page(request: Request) -> Reply:
    """GET /console/signing-keys: which sign, which still prove, and for how many workers."""
    keyring = request.app.keyring
    kids = keyring.kids
    return await frame.page(
        request,
        "signing",
        active=keyring.kid,
        verifying=[kid for kid in kids if kid != keyring.kid],
        retired=sorted(keyring.retired),
        workers=await asked.read(request, stops.with_kids, (*kids, *sorted(keyring.retired))),
    )


ROUTES = (
    Route(
        method="GET",
        path=PLACE,
        operation="keys_page",
        tag="console",
        handler=keys_page,
        summary="Keys",
        scope=keys.SCOPE,
        query=KeysQuery,
        page=True,
    ),
    Route(
        method="POST",
        path=PLACE + "/{id}/revoke",
        operation="console_revoke_key",
        tag="console",
        handler=revoke_key,
        summary="End a key",
        scope=keys.SCOPE,
        page=True,
    ),
    Route(
        method="GET",
        path="/console/signing-keys",
        operation="signing_keys_page",
        tag="console",
        handler=signing_page,
        summary="Signing keys",
        scope=keys.SCOPE,
        page=True,
    ),
)
