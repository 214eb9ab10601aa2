"""The outermost layer: what is wrong with a request before anybody looks at what it wants.

It names every call (X-Request-Id), refuses requests that two readers could understand in two
ways, answers preflights, and is the last resort: whatever goes wrong inside becomes an answer
here, once. It knows no route, no key and no row.
"""

import asyncio
import itertools
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import structlog

from feltd.api import problems, wire
from feltd.api.admission import Observer
from feltd.api.calllog import CallLog, members
from feltd.api.cors import Origins
from feltd.api.forwarded import Proxies
from feltd.api.request import ClientGone, Message, Receive, Scope, Send
from feltd.errors import Refused

App = Callable[[Scope, Receive, Send], Awaitable[None]]

PROTOCOL = b"1"
URL_BYTES_MAX = 8 * 1024
HEADER_BYTES_MAX = 16 * 1024
#: In the scope of a call of the console: what writes a refusal as a page.
PAGE = "feltd.page"
#: What metrics call a request that reached no route.
UNROUTED = "unrouted"

#: Headers that say who asks for what: of two, a proxy and the daemon could each believe another.
ONCE = {
    b"authorization": "Authorization",
    b"x-feltd-tenant": "X-Feltd-Tenant",
    b"idempotency-key": "Idempotency-Key",
}

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_HOST = re.compile(rb"(?P<name>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_LOOPBACK = re.compile(rb"localhost|127(?:\.[0-9]{1,3}){3}|\[::1\]")
#: The refusals after which the rest of the connection cannot be trusted, or is not worth reading.
_CLOSING = frozenset({"REQUEST_TOO_LARGE", "REQUEST_TIMEOUT"})

log = structlog.get_logger("feltd.api")


class Head:
    """What the gate read from the headers, for the layers inside."""

    __slots__ = (
        "chunked",
        "close",
        "content_length",
        "content_type",
        "origin",
        "preflight",
        "request_id",
    )

    def __init__(self, request_id: bytes) -> None:
        self.request_id = request_id
        self.content_length: int | None = None
        self.content_type: bytes | None = None
        self.chunked = False
        self.origin: bytes | None = None
        self.preflight = False
        self.close = False

    @property
    def has_body(self) -> bool:
        """Whether a body follows the head."""
        return self.chunked or bool(self.content_length)


class Answer:
    """The `send` of the layers inside: adds what every answer carries and sees its status."""

    __slots__ = ("_extra", "_send", "head", "status")

    def __init__(self, send: Send, head: Head, extra: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._extra = extra
        self.head = head
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.accept"):
            self.status = message.get("status", 101)
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-request-id", self.head.request_id),
                (b"feltd-protocol", PROTOCOL),
                *self._extra,
            ]
            if self.head.close:
                message["headers"].append((b"connection", b"close"))
        await self._send(message)


class Gate:
    """An ASGI application around another."""

    def __init__(
        self,
        inner: App,
        observer: Observer,
        allowed_origins: Iterable[str] = (),
        *,
        loopback_only: bool = False,
        proxies: Proxies | None = None,
    ) -> None:
        """`loopback_only` (--no-auth): Host must be a loopback name, Origin absent or allowed."""
        self._proxies = proxies or Proxies()
        self._inner = inner
        self._observer = observer
        self.calls = CallLog()
        self._origins = Origins(allowed_origins)
        self._loopback_only = loopback_only
        # A name for each call, unique over restarts, without a system call apiece.
        self._run = secrets.token_hex(6).encode()
        self._numbers = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        head = Head(b"%s-%x" % (self._run, next(self._numbers)))
        answer = Answer(send, head, [])
        scope["feltd.head"] = head
        scope["feltd.operation"] = UNROUTED
        self._proxies.resolve(scope)
        brought_from = None
        started_s = time.perf_counter()
        try:
            self._check(scope, head, answer)
            brought_from = self._proxies.enter(scope)
            if head.preflight and scope["type"] == "http":
                await self._preflight(head, answer)
            else:
                await self._inner(scope, receive, answer)
        except ClientGone:
            log.debug("client went away", operation=scope["feltd.operation"])
        except Refused as refused:
            await self._refuse(scope, refused, answer, send)
        except asyncio.CancelledError:
            # A stop that ran out of time, and nothing else, cancels a call from outside.
            await self._refuse(scope, problems.cut_short(scope.get("method")), answer, send)
            raise
        except Exception:
            log.error("request failed", **members(scope), exc_info=True)
            await self._refuse(scope, problems.internal(), answer, send)
        finally:
            self._proxies.leave(brought_from)
            elapsed_s = time.perf_counter() - started_s
            if answer.status:
                self._observer.answered(scope["feltd.operation"], answer.status, elapsed_s)
                self.calls.ended(scope, answer.status, elapsed_s)

    def _check(self, scope: Scope, head: Head, answer: Answer) -> None:
        try:
            read_head(scope, head)
        finally:
            scope["feltd.request_id"] = head.request_id.decode()
            answer._extra = self._origins.headers(head.origin)
        if self._loopback_only:
            _check_loopback(scope, head, self._origins)

    async def _preflight(self, head: Head, answer: Answer) -> None:
        headers = self._origins.preflight(head.origin or b"")
        await answer({"type": "http.response.start", "status": 204, "headers": headers})
        await answer({"type": "http.response.body", "body": b""})

    async def _refuse(self, scope: Scope, refused: Refused, answer: Answer, send: Send) -> None:
        if answer.status:
            return  # it already began; the server cuts what is not whole
        if refused.code in _CLOSING:
            answer.head.close = True
        page: Callable[[Refused], problems.Rendered] | None = scope.get(PAGE)
        try:
            if page is not None:
                status, body, headers = page(refused)
            else:
                status, body, headers = problems.render(refused, scope["feltd.request_id"])
        except Exception:
            log.error("refusal cannot be written", code=refused.code, exc_info=True)
            refused = problems.internal()
            status, body, headers = problems.render(refused, scope["feltd.request_id"])
        self._observer.refused(scope["feltd.operation"], refused)
        self.calls.refused(scope, refused)
        if scope["type"] == "websocket":
            headers += [
                (b"x-request-id", answer.head.request_id),
                (b"feltd-protocol", PROTOCOL),
            ]
            await _refuse_websocket(scope, send, status, body, headers)
            self.calls.ended(scope, status, 0.0)
            return
        await answer({"type": "http.response.start", "status": status, "headers": headers})
        await answer({"type": "http.response.body", "body": body})


def read_head(scope: Scope, head: Head) -> None:
    """Fill `head`, and refuse what must not be served, before anything is authenticated.

    After a refusal for the shape of the request `head.close` is set: the connection ends, because
    what follows on it may be part of the same deceit.
    """
    seen = dict.fromkeys((*ONCE, b"host", b"transfer-encoding"), 0)
    host = encoding = protocol = asked_method = None
    header_bytes = 0
    for name, value in scope["headers"]:
        header_bytes += len(name) + len(value) + 4
        if name in seen:
            seen[name] += 1
            if name == b"host":
                host = value
        elif name == b"content-length":
            head.content_length = int(value)
        elif name == b"content-type":
            head.content_type = value
        elif name == b"content-encoding":
            encoding = value
        elif name == b"feltd-protocol":
            protocol = value if protocol in (None, value) else b"several"
        elif name == b"x-request-id":
            if _REQUEST_ID.fullmatch(value):
                head.request_id = value
        elif name == b"origin":
            head.origin = value
        elif name == b"access-control-request-method":
            asked_method = value
    head.chunked = seen[b"transfer-encoding"] > 0
    method = scope.get("method", "GET")
    head.preflight = method == "OPTIONS" and None not in (head.origin, asked_method)
    head.close = True
    _check_sizes(scope, header_bytes)
    if method in ("CONNECT", "TRACE"):
        raise Refused("METHOD_NOT_ALLOWED", f"{method} is not served here", allow="GET, POST")
    if head.chunked and head.content_length is not None:
        raise _malformed("Content-Length and Transfer-Encoding came together")
    for name, title in ONCE.items():
        if seen[name] > 1:
            raise _malformed(f"more than one {title} header")
    if seen[b"host"] != 1 or host is None or not _HOST.fullmatch(host):
        raise _malformed("the request needs one valid Host header")
    if not scope["path"].startswith("/") and (method, scope["path"]) != ("OPTIONS", "*"):
        raise _malformed("the request target must be a path")
    if scope["query_string"]:
        _check_no_token(scope["query_string"])
    head.close = False
    if protocol is not None and protocol != PROTOCOL:
        raise Refused("PROTOCOL_UNSUPPORTED", "this daemon speaks Feltd-Protocol 1", supported=[1])
    if encoding is not None and encoding.strip().lower() not in (b"", b"identity"):
        raise Refused("MEDIA_TYPE_UNSUPPORTED", "a compressed body is not taken")


def _check_sizes(scope: Scope, header_bytes: int) -> None:
    url_bytes = len(scope.get("raw_path") or scope["path"]) + 1 + len(scope["query_string"])
    if url_bytes > URL_BYTES_MAX:
        raise Refused(
            "REQUEST_TOO_LARGE",
            f"the URL is longer than {URL_BYTES_MAX} bytes",
            limit=URL_BYTES_MAX,
        )
    if header_bytes > HEADER_BYTES_MAX:
        raise Refused(
            "REQUEST_TOO_LARGE",
            f"the headers are longer than {HEADER_BYTES_MAX} bytes",
            limit=HEADER_BYTES_MAX,
        )


def _check_no_token(query_string: bytes) -> None:
    # URLs end in logs and histories: a key in one is refused even when it would be valid.
    if b"token" not in query_string and b"%" not in query_string:
        return
    if any(name == "token" for name, _ in wire.query_pairs(query_string)):
        raise _malformed("send the key in the Authorization header, not in the URL")


def _check_loopback(scope: Scope, head: Head, origins: Origins) -> None:
    # Without keys a web page that points its own name at 127.0.0.1 would be a caller like any.
    host = next(value for name, value in scope["headers"] if name == b"host")
    named = _HOST.fullmatch(host)
    if named is None or not _LOOPBACK.fullmatch(named["name"].lower()):
        head.close = True
        raise _malformed("without authentication the Host must be a loopback name")
    # The console's own forms name the origin they came from: the daemon's, at that loopback name.
    own = scope["path"].startswith("/console") and head.origin == (
        scope.get("scheme", "http").encode() + b"://" + host
    )
    if head.origin is not None and not own and not origins.holds(head.origin):
        raise Refused("FORBIDDEN", "without authentication the Origin must be an allowed one")


def _malformed(detail: str) -> Refused:
    return Refused("REQUEST_MALFORMED", detail)


async def _refuse_websocket(
    scope: Scope, send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    extensions: Any = scope.get("extensions") or {}
    if "websocket.http.response" not in extensions:
        await send({"type": "websocket.close", "code": 1008})
        return
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})
