"""What a handler is given and what it gives back, and how it waits without holding a permit.

A handler is `async def verb(request: Request) -> Reply`. The body is already read, the caller
known, the permit taken. A handler never sees ASGI messages and never catches `ClientGone`.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from starlette.datastructures import Headers

from feltd.api import wire
from feltd.api.admission import Admission, Parking, Permit

if TYPE_CHECKING:
    from feltd.api.routes import Route

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

#: Extensions of the scope that only feltd's own server sets; see server.py.
LOCAL = "feltd.local"
ON_GONE = "feltd.on_gone"
CUT = "feltd.cut"
#: Answers for how many seconds in all the daemon has kept waiting what this client had sent.
HELD = "feltd.held"
#: In the scope: how many seconds of the call were the wait of long polls.
PARKED_S = "feltd.parked_s"

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_JSON = (b"content-type", b"application/json")


class ClientGone(Exception):
    """The client went away: nobody is left to answer, and nothing more may be taken for it."""


class Reply:
    """A whole answer: `status`, `body` bytes, raw `headers` with content-length in them."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        self.body = body
        self.headers = headers


def reply(status: int, answer: object = None, headers: Mapping[str, str] | None = None) -> Reply:
    """`answer` as deterministic JSON; 204 and 304 carry no body."""
    if status in (204, 304):
        body, raw = b"", []
    else:
        body = wire.encode(answer)
        raw = [_JSON, (b"content-length", b"%d" % len(body))]
    if headers:
        raw += [(name.lower().encode(), text.encode("latin-1")) for name, text in headers.items()]
    return Reply(status, body, raw)


def text_reply(status: int, body: bytes, media_type: str) -> Reply:
    """A whole answer that is not JSON."""
    length = b"%d" % len(body)
    return Reply(
        status, body, [(b"content-type", media_type.encode()), (b"content-length", length)]
    )


def traceparent(scope: Scope) -> str | None:
    """The W3C trace header of a call, if it is well formed."""
    for name, text in scope["headers"]:
        if name == b"traceparent":
            return bytes(text).decode() if _TRACEPARENT.fullmatch(text) else None
    return None


class Gone:
    """Whether the client went away; set at most once, never unset."""

    __slots__ = ("_callbacks", "_gone")

    def __init__(self) -> None:
        self._gone = False
        self._callbacks: list[Callable[[], object]] = []

    def is_set(self) -> bool:
        """Whether it went."""
        return self._gone

    def set(self) -> None:
        """Tell everybody who asked; harmless when repeated."""
        if not self._gone:
            self._gone = True
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback()

    def when(self, callback: Callable[[], object]) -> None:
        """Call `callback` once when the client goes, at once if it already went."""
        if self._gone:
            callback()
        else:
            self._callbacks.append(callback)


class Polls:
    """The long polls parked now, so that a stopping daemon can wake all of them at once."""

    def __init__(self, stop: asyncio.Event) -> None:
        """`stop` is the daemon's: once it is set every wait ends with "stop", also later ones."""
        self.stop = stop
        self._parked: set[Parked] = set()
        self._watcher: asyncio.Task[None] | None = None

    def enter(self, poll: "Parked") -> None:
        """A poll begins to wait."""
        self._parked.add(poll)
        if self.stop.is_set():
            poll.wake("stop")
        elif self._watcher is None or self._watcher.done():
            # One task for all polls: a task for each would cost 2 kB apiece.
            self._watcher = asyncio.get_running_loop().create_task(self._wait_for_stop())

    def leave(self, poll: "Parked") -> None:
        """A poll ended."""
        self._parked.discard(poll)
        if not self._parked and self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    async def _wait_for_stop(self) -> None:
        await self.stop.wait()
        for poll in tuple(self._parked):
            poll.wake("stop")


class Parked:
    """One long poll while it waits: `with request.parked() as poll: why = await poll.wait(ms)`.

    Inside the block no permit is held. `wake(reason)` may be called by anybody on the event loop,
    before or during the wait; the first reason counts. One wait for each block.
    """

    __slots__ = ("_parked_at_s", "_parking", "_polls", "_reason", "_request", "_waiter")

    def __init__(self, request: "Request", polls: Polls) -> None:
        self._request = request
        self._polls = polls
        self._parking: Parking | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._reason: str | None = None

    def wake(self, reason: str) -> None:
        """End the wait with `reason`; only the first call counts."""
        if self._reason is None:
            self._reason = reason
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    async def wait(self, wait_ms: int) -> str:
        """The reason of the first wake, "timeout" after `wait_ms`, "stop" when the daemon stops.

        Raises ClientGone when the client went away: let it pass, so that nothing is claimed for
        nobody.
        """
        loop = asyncio.get_running_loop()
        if self._reason is None:
            self._waiter = loop.create_future()
            timer = loop.call_later(wait_ms / 1000, self.wake, "timeout")
            try:
                await self._waiter
            finally:
                timer.cancel()
        if self._request.gone.is_set():
            raise ClientGone
        return self._reason or "timeout"

    def _client_gone(self) -> None:
        self.wake("gone")

    def __enter__(self) -> Self:
        self._parked_at_s = time.perf_counter()
        self._parking = self._request.permit.parked()
        self._parking.__enter__()
        self._polls.enter(self)
        self._request.gone.when(self._client_gone)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._polls.leave(self)
        scope = self._request.scope
        scope[PARKED_S] = scope.get(PARKED_S, 0.0) + time.perf_counter() - self._parked_at_s
        if self._parking is not None:
            self._parking.__exit__(kind, raised, trace)


class Request:
    """One call, as its handler sees it."""

    __slots__ = (
        "_admission",
        "_gone",
        "_polls",
        "_watcher",
        "app",
        "body",
        "by_cookie",
        "caller",
        "deadline_ms",
        "path_params",
        "permit",
        "receive",
        "request_id",
        "route",
        "scope",
    )

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        route: "Route",
        path_params: dict[str, str],
        *,
        app: Any,
        admission: Admission,
        polls: Polls,
        deadline_ms: int,
    ) -> None:
        self.scope = scope
        self.receive = receive
        self.route = route
        #: The named segments of the path, percent-decoded, not yet checked.
        self.path_params = path_params
        #: The daemon's context object; this room does not look into it.
        self.app = app
        #: Who asks: set by the door before the body is read, None on open routes.
        self.caller: Any = None
        #: The session that a cookie brought, where nothing else said who asks. See api/cookies.
        self.by_cookie: str | None = None
        self.body = b""
        self.request_id: str = scope.get("feltd.request_id", "")
        #: What a handler gives to `writer.submit(deadline_ms=…)`; time at work only.
        self.deadline_ms = deadline_ms
        self.permit: Permit = admission.exempt()
        self._admission = admission
        self._polls = polls
        self._gone: Gone | None = None
        self._watcher: asyncio.Task[None] | None = None

    def again(self, scope: Scope, route: "Route") -> "Request":
        """Another call of the same client to the same daemon, about the same object."""
        return Request(
            scope,
            self.receive,
            route,
            self.path_params,
            app=self.app,
            admission=self._admission,
            polls=self._polls,
            deadline_ms=self.deadline_ms,
        )

    @property
    def headers(self) -> Headers:
        """The headers, case aside."""
        return Headers(scope=self.scope)

    def header(self, name: bytes) -> str | None:
        """The first header of a lower-case name."""
        for key, text in self.scope["headers"]:
            if key == name:
                return bytes(text).decode("latin-1")
        return None

    @property
    def query_string(self) -> bytes:
        """The raw query."""
        return bytes(self.scope["query_string"])

    @property
    def keep_alive(self) -> bool:
        """Whether the route keeps leases alive: the writer's lane, and the last to be shed."""
        return self.route.admission == "keep_alive"

    @property
    def local(self) -> bool:
        """Whether the call came in by the daemon's own socket: the local operator."""
        return bool(self.scope.get("extensions", {}).get(LOCAL, False))

    @property
    def client_address(self) -> str:
        """Whose call it is: the peer's address, behind a trusted proxy the address it names.

        Empty on a Unix socket.
        """
        client = self.scope.get("client")
        return str(client[0]) if client else ""

    @property
    def scheme(self) -> str:
        """`https` or `http`, as the client sent it: a trusted proxy says so by its header."""
        return "https" if self.scope.get("scheme") in ("https", "wss") else "http"

    @property
    def traceparent(self) -> str | None:
        """The W3C trace header, if it is well formed."""
        return traceparent(self.scope)

    def decode(self, shape: type[T]) -> T:
        """The body as one Struct; refuses the route's own `invalid_code`. See wire.decode."""
        return wire.decode(self.body, shape, self.route.invalid_code)

    def query(self, shape: type[T]) -> T:
        """The query as one Struct. See wire.query."""
        return wire.query(self.scope, shape)

    @property
    def tenant(self) -> str:
        """The caller's one tenant, whose share and turns the call takes; '' when it has several."""
        tenants: tuple[str, ...] = getattr(self.caller, "tenants", ())
        return tenants[0] if len(tenants) == 1 else ""

    def alone(self, for_s: float) -> bool:
        """Whether no caller of another tenant has called for this long."""
        return self._admission.alone(self.tenant, for_s)

    @property
    def crowded(self) -> bool:
        """Whether an ordinary call would be shed now: skip the claim part of an exchange."""
        return self._admission.crowded(self.tenant)

    def admit(self, *, keep_alive: bool) -> None:
        """Take the permit in a handler of an `admission="handler"` route, once it knows the class.

        Repeating changes nothing. Refuses SERVICE_OVERLOADED.
        """
        if self.route.admission == "handler" and not self.permit.counted:
            self.permit = self._admission.take(keep_alive=keep_alive, tenant=self.tenant)

    def parked(self) -> Parked:
        """The context in which a long poll waits. See Parked."""
        return Parked(self, self._polls)

    @property
    def gone(self) -> Gone:
        """Whether the client went away. Ask only after the body was read (a handler's always is).

        Feltd's server tells it without a task; behind another transport the first use starts the
        one task that listens on receive().
        """
        if self._gone is None:
            self._gone = Gone()
            on_gone = self.scope.get("extensions", {}).get(ON_GONE)
            if on_gone is not None:
                on_gone(self._gone.set)
            else:
                self._watcher = asyncio.get_running_loop().create_task(self._listen(self._gone))
        return self._gone

    async def _listen(self, gone: Gone) -> None:
        with suppress(Exception):
            while (await self.receive())["type"] != "http.disconnect":
                pass
        gone.set()

    def finish(self) -> None:
        """Give back the permit and stop listening; the dispatch calls it whatever happened."""
        self.permit.release()
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None
