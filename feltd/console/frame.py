"""What every page is made with: render a template, read a form, answer an act by going elsewhere.

The frame knows no noun. It sets the headers that keep a page harmless (no script, no style, no
frame and no connection but the daemon's own) on everything it writes.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import jinja2
import msgspec
from jinja2.nodes import Block

import feltd
from feltd.api import cookies, wire
from feltd.api.door import WHOLE_DAEMON
from feltd.api.request import Reply, Request
from feltd.console import flash, nav, static, words
from feltd.errors import Refused
from feltd.identity import roles
from feltd.identity.roles import EVERY
from feltd.model.base import Caller, Name

S = TypeVar("S")

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", CSP.encode()),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)
#: Blocks that the base has a place for: they hold the parts and are none.
WHOLE_BLOCKS = frozenset({"title", "head", "main"})
#: Fields of a form, and of a page's query, that are the frame's and no page's.
FORM_TOKEN, PART = "form_token", "part"

#: A list of 250 rows takes 30 ms to write: on the loop eight readers would keep every heartbeat
#: waiting for a quarter of a second. One thread, so that pages cost each other and nobody else.
_WRITING = ThreadPoolExecutor(1, thread_name_prefix="feltd-pages")


async def page(request: Request, name: str, *, status: int = 200, **values: Any) -> Reply:
    """`write` beside the loop: what a handler answers with."""
    work = partial(write, request, name, status=status, **values)
    return await asyncio.get_running_loop().run_in_executor(_WRITING, work)


def write(request: Request, name: str, *, status: int = 200, **values: Any) -> Reply:
    """templates/<name>.html with `values`, as a whole answer.

    With `?part=<block>` only the block of that name is written, for a page that refreshes itself.
    Templates also see caller, may(scope), form_token, path, url, now_ms, places, said, and the
    macros of parts.html as `p`. Refuses ROUTE_NOT_FOUND for a part that the page does not have.
    """
    values = _globals(request) | values
    extra: list[tuple[bytes, bytes]] = []
    wanted = part(request)
    if wanted is None:
        values["said"], extra = flash.take(request)
    body = _written(name, values, wanted)
    return Reply(status, body, [*HEADERS, (b"content-length", b"%d" % len(body)), *extra])


def form(request: Request, shape: type[S]) -> S:
    """The form that was sent as one frozen Struct; an empty field is an absent one.

    Numbers and booleans are read from their texts, a tuple member collects repeated fields.
    Refuses REQUEST_INVALID with the pointer `/<field>`.
    """
    return wire.fields(_filled(wire.query_pairs(request.body)), shape)


def query(request: Request, shape: type[S]) -> S:
    """The query of a page as one frozen Struct, in the same way; `part` is left to the frame."""
    return wire.fields(_filled(wire.query_pairs(request.query_string)), shape)


def done(request: Request, to: str, said: str) -> Reply:
    """Go to a path of the console, where `said` is told once. The answer to an act."""
    if not is_local(to):
        raise ValueError(f"{to} is no path of the console")
    return go(to, [flash.put(request, to, said)])


def go(to: str, extra: Sequence[tuple[bytes, bytes]] = ()) -> Reply:
    """See another page: 303, so that a reload repeats no act."""
    headers = [*HEADERS, (b"location", to.encode("latin-1")), (b"content-length", b"0"), *extra]
    return Reply(303, b"", headers)


def is_local(to: str) -> bool:
    """Whether a path stays within the console: what came in a query may name any place."""
    inside = to == "/console" or to.startswith(("/console/", "/console?"))
    return inside and to.isascii() and to.isprintable() and "\\" not in to and " " not in to


def tenant_filter(request: Request) -> str | None:
    """The one tenant a page is asked for (`?tenant_id=`), None for all of the caller's.

    Refuses REQUEST_INVALID for what is no name, FORBIDDEN for a tenant that is not the caller's.
    """
    named = [text for field, text in wire.query_pairs(request.query_string) if field == "tenant_id"]
    text = named[-1] if named else ""
    if not text:
        return None
    try:
        msgspec.convert(text, Name)
    except msgspec.ValidationError:
        raise wire.invalid("REQUEST_INVALID", "/tenant_id", "names no tenant") from None
    if not request.caller.may_see(text):
        raise Refused("FORBIDDEN", "the tenant is not one of yours")
    return text


def may(caller: Caller, scope: str, tenant_id: str | None = None) -> bool:
    """Whether a caller may do what a scope stands for, in a tenant, or (None) in any of his.

    For what a page offers; whether he may is found out where he does it.
    """
    if caller.roles is None:
        return caller.holds(scope) and (tenant_id is None or caller.may_see(tenant_id))
    if scope in WHOLE_DAEMON:
        tenants = [EVERY]
    else:
        tenants = list(caller.roles) if tenant_id is None else [tenant_id]
    return any(scope in roles.scopes_in(caller.roles, one) for one in tenants)


def link(path: str, query: dict[str, Any], **changed: Any) -> str:
    """A path with a query, some of it changed; None and '' leave it."""
    pairs = [(key, text) for key, text in (query | changed).items() if text not in (None, "", ())]
    return f"{path}?{urlencode(pairs, doseq=True)}" if pairs else path


def refusal(request: Request | None, **values: Any) -> bytes:
    """The page of a refusal; whoever asked is unknown where no route was found."""
    # Where nobody is known, he who reads this may well be logged in: no word of a login.
    known = _globals(request) if request is not None else dict(_STRANGER)
    if known["caller"] is None and values["code"] != "UNAUTHENTICATED":
        known["open_door"] = True
    return _written("refused", known | values, None)


def _written(name: str, values: dict[str, Any], part: str | None) -> bytes:
    """A template, or one block of it, as bytes."""
    template = _environment().get_template(f"{name}.html")
    values["p"] = _environment().get_template("parts.html").make_module(values)
    if part is None:
        return template.render(values).encode()
    if part not in _blocks(name):
        raise Refused("ROUTE_NOT_FOUND", "this page has no such part")
    block: Callable[..., Any] = template.blocks[part]
    return "".join(block(template.new_context(values))).encode()


def _filled(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(field, text) for field, text in pairs if text and field not in (FORM_TOKEN, PART)]


def part(request: Request) -> str | None:
    """The one block of the page that is asked for; None: the whole page."""
    named = [text for field, text in wire.query_pairs(request.query_string) if field == PART]
    return named[-1] if named else None


#: What a template sees where nobody is known.
_STRANGER: dict[str, Any] = {
    "caller": None,
    "may": lambda scope, tenant_id=None: False,
    "form_token": "",
    "path": "",
    "query": [],
    "url": "/console",
    "now_ms": 0,
    "places": [],
    "said": "",
    "request_id": "",
    "open_door": False,
    "names": {},
}


def _globals(request: Request) -> dict[str, Any]:
    caller: Caller | None = request.caller
    path = _path(request)
    kept = _filled(wire.query_pairs(request.query_string))
    known: dict[str, Any] = {}
    if caller is not None:
        known = {"caller": caller, "may": partial(may, caller)}
        if caller.session_id is not None:
            known["form_token"] = cookies.form_token(request.app.keyring, caller.session_id)
    return (
        _STRANGER
        | known
        | {
            "path": path,
            "query": kept,
            "url": f"{path}?{urlencode(kept)}" if kept else path,
            "now_ms": request.app.clock.now().lease_ms,
            "places": _places(caller, path),
            "request_id": request.request_id,
            "open_door": request.app.config.no_auth,
        }
    )


def _path(request: Request) -> str:
    """The path as it was sent, escapes and all: it goes into links."""
    raw: bytes = request.scope.get("raw_path") or b""
    return raw.decode("latin-1") if raw else quote(str(request.scope["path"]))


def _places(caller: Caller | None, path: str) -> list[tuple[str, list[tuple[nav.Place, bool]]]]:
    """The navigation of a caller: what he may see, and whether he is there."""
    if caller is None:
        return []
    groups = []
    for heading, places in nav.PLACES:
        shown = [
            (place, nav.lies_under(path, place)) for place in places if may(caller, place.scope)
        ]
        if shown:
            groups.append((heading, shown))
    return groups


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("feltd.console", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals |= {
        "version": feltd.__version__,
        "asset": static.address,
        "link": link,
        "iso": words.iso,
        "words": words,
    }
    made.filters |= {"stretches": words.stretches, "labelled": words.labelled}
    return made


@cache
def _blocks(name: str) -> frozenset[str]:
    """The blocks a template has itself: those of the base are no parts of it."""
    source, _, _ = _loader().get_source(_environment(), f"{name}.html")
    names = {block.name for block in _environment().parse(source).find_all(Block)}
    return frozenset(names - WHOLE_BLOCKS)


def _loader() -> jinja2.BaseLoader:
    loader = _environment().loader
    assert loader is not None
    return loader
