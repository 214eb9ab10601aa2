"""A small application of every kind of route, served by the real server on a real socket.

The server runs on its own event loop in a thread; tests talk to it with plain blocking sockets, so
what a test sends is exactly what it says.
"""

import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import uvloop
from msgspec import Meta, Struct

from feltd.api.reference import ROUTES as REFERENCE
from feltd.api.request import Reply, Request, reply, text_reply
from feltd.api.routes import Route
from feltd.api.server import Server, ServerSettings
from feltd.api.stack import StackSettings, build
from feltd.errors import Refused

#: No test may hang longer than this on a socket.
PATIENCE_S = 20.0

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}

Small = Annotated[int, Meta(ge=0, le=1_000)]


class Job(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    size: Small = 0
    input: Any = None


class PollQuery(Struct, frozen=True, forbid_unknown_fields=True):
    wait_ms: Annotated[int, Meta(ge=0, le=30_000)] = 0


class LargeQuery(Struct, frozen=True, forbid_unknown_fields=True):
    bytes: Annotated[int, Meta(ge=0, le=64 * 1024 * 1024)] = 0


class ItemsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    label: list[str] = []
    strict: bool = False


class World:
    """What the handlers share with the test: made on the server's loop."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.entered = 0
        self.dropped = 0
        self.claims: list[str] = []
        self.polls: list[Any] = []
        self.shed: list[tuple[str, bool]] = []
        self.answered: list[tuple[str, int]] = []
        self.refusals: list[tuple[str, str]] = []


class Seen:
    """An Observer that remembers."""

    def __init__(self, world: World) -> None:
        self._world = world

    def shed(self, reason: str, keep_alive: bool) -> None:
        self._world.shed.append((reason, keep_alive))

    def answered(self, operation: str, status: int, seconds: float) -> None:
        self._world.answered.append((operation, status))

    def refused(self, operation: str, refused: Refused) -> None:
        self._world.refusals.append((operation, refused.code))


async def health(request: Request) -> Reply:
    return reply(200, {"status": "healthy", "local": request.local})


async def echo(request: Request) -> Reply:
    return reply(201, request.decode(Job))


async def hold(request: Request) -> Reply:
    """At work until the test says so."""
    world: World = request.app
    world.entered += 1
    try:
        await world.release.wait()
    except asyncio.CancelledError:
        world.dropped += 1
        raise
    return reply(200, {"done": True})


async def beat(request: Request) -> Reply:
    return reply(200, {"heard": True})


async def poll(request: Request) -> Reply:
    """A long poll that claims something when it ends, unless the client left."""
    world: World = request.app
    with request.parked() as parked:
        world.polls.append(parked)
        why = await parked.wait(request.query(PollQuery).wait_ms)
    world.claims.append(why)
    return reply(200, {"why": why})


async def mixed(request: Request) -> Reply:
    """An exchange: the body says whether it keeps anything alive."""
    keeps = request.decode(Job).name == "renew"
    crowded = request.crowded
    request.admit(keep_alive=keeps)
    return reply(200, {"crowded": crowded, "in_flight": request._admission.in_flight})


async def large(request: Request) -> Reply:
    return text_reply(200, b"x" * request.query(LargeQuery).bytes, "application/octet-stream")


async def fault(request: Request) -> Reply:
    raise RuntimeError("the password is hunter2")


async def overloaded(request: Request) -> Reply:
    raise Refused("OUTCOME_UNKNOWN", "the call ran past its deadline", committed="unknown")


async def unwritable(request: Request) -> Reply:
    raise Refused("WORKLOAD_NOT_READY", "it is not waiting", reasons=object())


async def worker(request: Request) -> Reply:
    return reply(200, request.path_params)


async def all_workers(request: Request) -> Reply:
    return reply(200, {"all": True})


async def items(request: Request) -> Reply:
    return reply(200, request.query(ItemsQuery))


async def empty(request: Request) -> Reply:
    return reply(204)


async def door(request: Request) -> None:
    authorization = request.header(b"authorization")
    if authorization != "Bearer good" and not request.local:
        raise Refused("UNAUTHENTICATED", "no valid key came with the request")
    request.caller = "somebody"


def _route(method: str, path: str, handler: Any, **more: Any) -> Route:
    more = {"auth": "any", "operation": handler.__name__, "tag": "test", "summary": "…"} | more
    return Route(method=method, path=path, handler=handler, **more)


ROUTES = (
    _route("GET", "/health", health, auth="none", admission="exempt", also=("/v1/health",)),
    _route(
        "POST",
        "/v1/echo",
        echo,
        body=Job,
        answer=Job,
        status=201,
        invalid_code="WORKLOAD_INVALID",
        example={"name": "a"},
    ),
    _route("POST", "/v1/hold", hold),
    _route("GET", "/v1/hold", hold, operation="watch"),
    _route("POST", "/v1/beat", beat, admission="keep_alive"),
    _route("POST", "/v1/poll", poll, query=PollQuery),
    _route("GET", "/v1/poll", poll, query=PollQuery, operation="look"),
    _route("POST", "/v1/mixed", mixed, body=Job, admission="handler"),
    _route("GET", "/v1/large", large, query=LargeQuery),
    _route("POST", "/v1/fault", fault),
    _route("POST", "/v1/unknown", overloaded),
    _route("POST", "/v1/unwritable", unwritable),
    _route("GET", "/v1/workers/{id}", worker),
    _route("GET", "/v1/workers/all", all_workers),
    _route("DELETE", "/v1/workers/{id}", empty),
    _route("GET", "/v1/items", items, query=ItemsQuery),
    *REFERENCE,
)


class Answer:
    """One HTTP answer as it came."""

    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = status
        self.all_headers = headers
        self.headers = dict(headers)
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["code"])


class Closed(Exception):
    """The server ended the connection before an answer was whole."""


class Talk:
    """One connection, byte by byte."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE_S)
        self.sock = sock
        self.received = b""

    def send(self, message: bytes) -> "Talk":
        self.sock.sendall(message)
        return self

    def answer(self, *, head_only: bool = False) -> Answer:
        """The next answer; interim ones (100) are passed over."""
        while True:
            head = self._until(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            status = int(lines[0].split()[1])
            pairs = [line.split(": ", 1) for line in lines[1:] if line]
            headers = [(name.lower(), text) for name, text in pairs]
            if status >= 200:
                break
        known = dict(headers)
        if head_only or status in (204, 304):
            body = b""
        elif known.get("transfer-encoding") == "chunked":
            body = self._chunks()
        else:
            body = self._exactly(int(known["content-length"]))
        return Answer(status, headers, body)

    def ended(self) -> bool:
        """Whether the server closes, having sent nothing more."""
        try:
            return self.received == b"" and self.sock.recv(65536) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        """Go away with a RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()

    def _more(self) -> None:
        try:
            received = self.sock.recv(65536)
        except ConnectionError as error:
            raise Closed from error
        if not received:
            raise Closed
        self.received += received

    def _until(self, mark: bytes) -> bytes:
        while mark not in self.received:
            self._more()
        found, self.received = self.received.split(mark, 1)
        return found

    def _exactly(self, count: int) -> bytes:
        pieces, left = [self.received[:count]], count - len(self.received)
        self.received = self.received[count:]
        while left > 0:
            piece = self.sock.recv(min(left, 1 << 20))
            if not piece:
                raise Closed
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self._until(b"\r\n"), 16):
            while len(self.received) < size + 2:
                self._more()
            body += self.received[:size]
            self.received = self.received[size + 2 :]
        return body


class House:
    """The running server."""

    def __init__(
        self, loop_kind: str, server: dict[str, Any], stack: dict[str, Any], app: Any = None
    ) -> None:
        self.loop_kind = loop_kind
        self._app = app
        self._server_settings = ServerSettings(**({"port": 0} | server))
        self._stack_settings = StackSettings(**stack)
        self._ready = threading.Event()
        self.problem: BaseException | None = None
        self.url = ""
        self.hard_exits = 0
        self._thread = threading.Thread(target=self._run, name="house", daemon=True)

    def start(self) -> "House":
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        if self.problem is not None:
            raise self.problem
        return self

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=LOOPS[self.loop_kind]) as runner:
            self.loop = runner.get_loop()
            try:
                runner.run(self._serve())
            except BaseException as problem:
                self.problem = problem
            finally:
                self._ready.set()

    async def _serve(self) -> None:
        self.stop_event = asyncio.Event()
        self.world = World()
        self.stack = build(
            ROUTES,
            app=self.world,
            authenticate=door,
            stop=self.stop_event,
            settings=self._stack_settings,
            observer=Seen(self.world),
        )
        self.server = Server(
            self._app or self.stack,
            self._server_settings,
            stop=self.stop_event,
            hard_exit=self._note_hard_exit,
        )

        def ready(url: str) -> None:
            self.url = url
            self._ready.set()

        await self.server.serve(ready)

    def _note_hard_exit(self) -> None:
        self.hard_exits += 1

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def do(self, action: Callable[[], Any]) -> Any:
        """Run `action` on the server's loop and answer what it answers."""

        async def run() -> Any:
            return action()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(PATIENCE_S)

    def eventually(self, holds: Callable[[], bool]) -> None:
        """Wait until something is so; a test that waits here forever fails by name."""
        ends_s = time.monotonic() + PATIENCE_S
        while not self.do(holds):
            assert time.monotonic() < ends_s, "it never came to hold"
            time.sleep(0.01)

    def connect(self, *, tls: ssl.SSLContext | None = None) -> Talk:
        sock: socket.socket = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            sock = tls.wrap_socket(sock, server_hostname="localhost")
        return Talk(sock)

    def connect_local(self) -> Talk:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self._server_settings.local_path or "")
        return Talk(sock)

    def call(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """One call on a connection of its own."""
        talk = self.connect()
        try:
            talk.send(request(method, path, body, **headers))
            return talk.answer(head_only=method == "HEAD")
        finally:
            talk.close()

    def stop(self) -> None:
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.stop_event.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the server did not stop"


def request(method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
    """A proper request; a header given as "" is left out, `_` in its name stands for `-`."""
    lines = {"Host": "127.0.0.1", "Authorization": "Bearer good"}
    if body is not None:
        lines |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    lines |= {name.replace("_", "-"): text for name, text in headers.items()}
    head = f"{method} {path} HTTP/1.1\r\n"
    head += "".join(f"{name}: {text}\r\n" for name, text in lines.items() if text != "")
    return head.encode("latin-1") + b"\r\n" + (body or b"")


@contextmanager
def serving(
    loop_kind: str = "asyncio", *, stack: Any = None, app: Any = None, **server: Any
) -> Iterator[House]:
    """A running house; keywords are ServerSettings, `stack` those of StackSettings.

    `app` is served in the place of the stack.
    """
    house = House(loop_kind, server, stack or {}, app).start()
    try:
        yield house
    finally:
        with suppress(RuntimeError):  # the loop may have ended by itself
            house.loop.call_soon_threadsafe(house.world.release.set)
        house.stop()
    if house.problem is not None:
        raise house.problem
