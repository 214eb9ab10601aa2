"""One call, straight through: route, door, body, permit, handler, answer.

The order is the point: what is cheap and what a stranger may cost us comes before the permit,
and the permit is back before the answer is written, so no slow client ever holds one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import unquote

from msgspec import Struct

from feltd.api import cookies, problems, wire
from feltd.api.admission import Admission
from feltd.api.bodies import Bodies, check_form, check_media_type
from feltd.api.gate import PAGE, App, Head
from feltd.api.request import HELD, ON_GONE, ClientGone, Polls, Receive, Reply, Request, Scope, Send
from feltd.api.routes import Routes
from feltd.errors import Refused

#: The door: sets `request.caller` or raises Refused. Asked for every route but `auth="none"`.
Authenticate = Callable[[Request], Awaitable[None]]
#: A refusal as a page for people: status, body, headers. The request is None where no route was.
RefusedPage = Callable[[Scope, Request | None, Refused], problems.Rendered]

_READS = ("GET", "HEAD")
#: Under it people are answered in HTML, also where there is no page.
CONSOLE = "/console"


class OnlyTenant(Struct, frozen=True):
    """The query of a route that declares none: a tenant may always be named in it.

    What a probe of health or metrics adds to its URL is no reason to refuse it.
    """

    tenant_id: str | None = None


class Dispatch:
    """The ASGI application behind the gate."""

    def __init__(
        self,
        table: Routes,
        *,
        app: Any,
        admission: Admission,
        bodies: Bodies,
        polls: Polls,
        authenticate: Authenticate,
        request_deadline_ms: int,
        lifespan: App,
        refused_page: RefusedPage | None = None,
    ) -> None:
        self.table = table
        self._app = app
        self._admission = admission
        self._bodies = bodies
        self._polls = polls
        self._authenticate = authenticate
        self._deadline_ms = request_deadline_ms
        self._lifespan = lifespan
        self._refused_page = refused_page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._lifespan(scope, receive, send)
            else:
                await self._socket(scope, receive, send)
            return
        method = scope["method"]
        if method == "OPTIONS":
            await self._options(scope, send)
            return
        page = self._refused_page
        if page is not None and scope["path"].startswith(CONSOLE):
            scope[PAGE] = partial(page, scope, None)
        request = self._request(scope, receive)
        route = request.route
        if page is not None and route.page:
            scope[PAGE] = partial(page, scope, request)
        try:
            answer = await self._work(request, scope["feltd.head"], cancel=method not in _READS)
        except Refused as refused:
            raise problems.of_noun(refused, route.tag) from refused.__cause__
        finally:
            request.finish()
        if isinstance(answer, Reply):
            headers = answer.headers
            if request.by_cookie is not None and not route.page:
                headers = [*headers, *cookies.UNKEPT]
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            await send({"type": "http.response.body", "body": answer.body})
        else:
            scope["feltd.streamed"] = True
            await answer(scope, receive, send)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A WebSocket, for as long as both sides want it; its route asks the door when it can."""
        scope["method"] = "GET"
        request = self._request(scope, receive)
        if request.route.socket is None:
            raise Refused("ROUTE_NOT_FOUND", "there is no WebSocket at this path")
        try:
            await request.route.socket(request, send, self._authenticate)
        except Refused as refused:
            raise problems.of_noun(refused, request.route.tag) from refused.__cause__
        finally:
            request.finish()

    def _request(self, scope: Scope, receive: Receive) -> Request:
        route, path_params = self.table.find(scope["method"], scope["path"], _segments(scope))
        scope["feltd.operation"] = route.operation
        return Request(
            scope,
            receive,
            route,
            path_params,
            app=self._app,
            admission=self._admission,
            polls=self._polls,
            deadline_ms=self._deadline_ms,
        )

    async def _work(self, request: Request, head: Head, *, cancel: bool) -> Any:
        """Everything up to the answer. When the client goes, a change not yet begun is dropped."""
        route = request.route
        if route.auth != "none":
            await self._authenticate(request)
            request.scope["feltd.caller"] = request.caller
        checked = route.query is None and not route.page and route.admission != "exempt"
        if checked and request.query_string:
            request.query(OnlyTenant)
        if head.has_body:
            (check_form if route.page else check_media_type)(head.content_type)
            request.body = await self._bodies.read(
                request.receive,
                head.content_length,
                route.body_bytes_max,
                keep_alive=route.keep_alive,
                held_s=request.scope.get("extensions", {}).get(HELD, float),
            )
            if route.body is None and not route.page:
                wire.decode(request.body, wire.Members, route.invalid_code)
        if request.by_cookie is not None:
            cookies.refuse_unmeant(request, request.by_cookie)
        if route.admission == "keep_alive" or route.admission == "ordinary":
            request.permit = self._admission.take(
                keep_alive=route.keep_alive, tenant=request.tenant
            )
        on_gone = request.scope.get("extensions", {}).get(ON_GONE) if cancel else None
        if on_gone is None:
            return await route.handler(request)
        work = _Work()
        on_gone(work.cancel)
        try:
            return await route.handler(request)
        except asyncio.CancelledError:
            if not work.dropped or work.task is None:
                raise
            work.task.uncancel()
            raise ClientGone from None
        finally:
            work.task = None

    async def _options(self, scope: Scope, send: Send) -> None:
        path = scope["path"]
        allowed = self.table.methods(path, _segments(scope))
        if path != "*" and not allowed:
            raise Refused("ROUTE_NOT_FOUND", "there is no such path")
        text = ", ".join(allowed) or "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
        headers = [(b"allow", text.encode())]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def _segments(scope: Scope) -> list[str] | None:
    """The segments of a path that holds escapes, each decoded by itself; else None.

    A server decodes the path as a whole: a slash inside a name would then part it, and bytes that
    are no text would make different names the same. Refuses REQUEST_MALFORMED for those.
    """
    raw: bytes = scope.get("raw_path") or b""
    if b"%" not in raw:
        return None
    try:
        return [unquote(part, errors="strict") for part in raw.decode("latin-1").split("/")]
    except UnicodeDecodeError:
        raise Refused("REQUEST_MALFORMED", "the path is no UTF-8") from None


class _Work:
    """The handler's task while it may still be dropped for a client that went away."""

    __slots__ = ("dropped", "task")

    def __init__(self) -> None:
        self.task = asyncio.current_task()
        self.dropped = False

    def cancel(self) -> None:
        if self.task is not None:
            self.dropped = True
            self.task.cancel()
