"""How a page asks and acts: the rules of the API, as the same caller, with the same cursors.

Reading goes to the readers, acting to the writer; nothing here knows a noun.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from feltd.api import wire
from feltd.api.request import Request
from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity.principals import OPEN_TENANT
from feltd.mesh import workers
from feltd.model.base import Ask, Caller
from feltd.store.tx import Tx

#: Of one page so many workers are named; the others stand there by their ids.
NAMES_MAX = 100

Rule = Callable[[Tx, Ask[Any], Now], Any]


def ask(
    request: Request, body: object = None, *, id: str | None = None, fresh: str = ""
) -> Ask[Any]:
    """The command of a page: its caller, and the `id` of its path unless another is named."""
    return Ask(
        caller=request.caller,
        body=body,
        id=request.path_params.get("id", "") if id is None else id,
        fresh=fresh,
        limits=request.app.config,
    )


async def read(request: Request, rule: Rule, body: object = None, *, id: str | None = None) -> Any:
    """What a rule shows the caller, on one state of the database."""
    return await request.app.readers.read(rule, ask(request, body, id=id))


async def act(
    request: Request,
    rule: Rule,
    body: object = None,
    *,
    id: str | None = None,
    fresh: str = "",
    tenant: str = "",
) -> Any:
    """Have a rule change something; answers once it is stored."""
    return await request.app.writer.submit(
        rule,
        ask(request, body, id=id, fresh=fresh),
        keep_alive=request.keep_alive,
        tenant=tenant or request.tenant,
        deadline_ms=request.deadline_ms,
    )


async def names(request: Request, ids: Iterable[str | None]) -> dict[str, str]:
    """What people call these workers, by id; who is unknown, removed or another's is left out."""
    sought = tuple(sorted({id for id in ids if id is not None}))[:NAMES_MAX]
    if not sought:
        return {}
    found: dict[str, str] = await request.app.readers.read(_names, ask(request, sought, id=""))
    return found


def _names(tx: Tx, ask: Ask[tuple[str, ...]], now: Now) -> dict[str, str]:
    rows = {id: workers.find(tx, id) for id in ask.body}
    return {
        id: row["name"]
        for id, row in rows.items()
        if row is not None and row["removed_at_ms"] is None and ask.caller.may_see(row["tenant_id"])
    }


def tenant_meant(request: Request, named: str | None) -> str:
    """The tenant an act is about: the one that is named, else the caller's only one.

    Refuses REQUEST_INVALID where the caller has several, FORBIDDEN for one that is not his.
    """
    caller: Caller = request.caller
    if named:
        if not caller.may_see(named):
            raise Refused("FORBIDDEN", "the tenant is not one of yours")
        return named
    if caller.open:
        return OPEN_TENANT
    if len(caller.tenants) != 1 or caller.tenants == ("*",):
        raise wire.invalid("REQUEST_INVALID", "/tenant_id", "is required: you have several")
    return caller.tenants[0]


def opened(request: Request, bound: object, cursor: str | None) -> list[Any] | None:
    """The place a cursor of a list stands for. Refuses REQUEST_MALFORMED for any other text."""
    if cursor is None:
        return None
    return wire.open_cursor(request.app.keyring.cursor_secret, _of(request, bound), cursor)


def sealed(request: Request, bound: object, place: Sequence[object] | None) -> str | None:
    """The cursor for a place of this list of this caller; None at its end."""
    if place is None:
        return None
    return wire.seal_cursor(request.app.keyring.cursor_secret, _of(request, bound), place)


def pair(field: str, text: str) -> tuple[str, str]:
    """A label as it is typed: key=value. Refuses REQUEST_INVALID."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise wire.invalid("REQUEST_INVALID", f"/{field}", "is key=value")
    return key.strip(), value.strip()


def words(text: str | None) -> tuple[str, ...]:
    """What was typed in a field of several words, parted by spaces, commas or lines."""
    return tuple((text or "").replace(",", " ").split())


def _of(request: Request, bound: object) -> list[object]:
    return ["console", str(request.route.operation), sorted(request.caller.tenants), bound]
