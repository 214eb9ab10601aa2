"""What a stream does about slow, silent and stubborn clients, over the real server."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from feltd.api import stream
from feltd.api.events import Pages
from feltd.api.polls import Polls
from feltd.api.request import Request
from feltd.api.routes import Route
from feltd.api.server import Server, ServerSettings
from feltd.api.stack import build
from feltd.api.stream import Piece, Stream, Streams, frame
from feltd.errors import Refused
from feltd.model.base import Caller, Subject
from feltd.model.event import Event, Events, Following
from tests.api.transport.kit import House, Talk

PAD = "x" * 60_000
#: Of what nobody takes, the kernel's buffers hold some megabytes and feltd one piece.
UNREAD_PIECES_MAX = 400


class Numbers:
    """A feed of the numbers up to `head`, `padded` to a size; `slow` holds each read."""

    topics = (("numbers", "all"),)

    def __init__(self, world: "World") -> None:
        self._world = world

    async def read(self, after: int | None) -> Piece:
        world, after = self._world, after or 0
        world.reads += 1
        head = world.head
        await world.slow.wait()
        if world.endless:
            return Piece(frame(after + 1, PAD), after + 1, True)
        shown = range(after + 1, min(head, after + 10) + 1)
        more = head > after + 10
        return Piece(b"".join(frame(n, n) for n in shown), after + 10 if more else head, more)


class World:
    """What the handlers share with the test, and the daemon's parts that a stream needs."""

    def __init__(self, stop: asyncio.Event) -> None:
        self.streams = Streams(stop)
        self.polls = Polls()
        self.door = self
        self.head = 0
        self.reads = 0
        self.endless = False
        self.slow = asyncio.Event()
        self.slow.set()
        self.ended = False

    async def authenticate(self, request: Request) -> None:
        if self.ended:
            raise Refused("UNAUTHENTICATED", "the key was revoked")
        request.caller = Caller(Subject("service", "somebody"), key_id="k")

    def grow(self, count: int) -> None:
        """So many numbers more, each told as a commit tells it."""
        for _ in range(count):
            self.head += 1
            self.polls.told("numbers", "all")


async def follow(request: Request) -> Stream:
    return Stream(request, Numbers(request.app), stream.resumed(request, 0))


ROUTES = (
    Route(
        method="GET",
        path="/numbers",
        operation="follow",
        tag="test",
        handler=follow,
        summary="…",
        auth="any",
    ),
)


class Listening(House):
    """A server of one feed."""

    world: World  # type: ignore[assignment]

    async def _serve(self) -> None:
        self.stop_event = asyncio.Event()
        self.world = World(self.stop_event)
        self.stack = build(
            ROUTES, app=self.world, authenticate=self.world.authenticate, stop=self.stop_event
        )
        settings = ServerSettings(port=0, graceful_ms=600_000, drain_deadline_ms=self.drain_ms)
        self.server = Server(
            self.stack, settings, stop=self.stop_event, hard_exit=self._note_hard_exit
        )

        def ready(url: str) -> None:
            self.url = url
            self._ready.set()

        await self.server.serve(ready)

    drain_ms = 600_000

    def listen(self, *, last: int = 0) -> Talk:
        """A client, its small buffer soon full."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
        sock.connect(("127.0.0.1", self.port))
        talk = Talk(sock)
        lines = f"GET /numbers HTTP/1.1\r\nHost: 127.0.0.1\r\nLast-Event-ID: {last}\r\n\r\n"
        return talk.send(lines.encode())


@contextmanager
def listening(kind: str, drain_ms: int = 600_000) -> Iterator[Listening]:
    house = Listening(kind, {}, {})
    house.drain_ms = drain_ms
    house.start()
    try:
        yield house
    finally:
        house.stop()


@pytest.fixture
def house(loop_kind: str) -> Iterator[Listening]:
    with listening(loop_kind) as running:
        yield running


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def hear(talk: Talk, text: bytes) -> None:
    """Read on until some text came."""
    talk._until(text)


def test_a_quiet_stream_is_heard_and_its_number_moves_on(
    house: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a reader of a quiet tenant does not fall below what is kept."""
    monkeypatch.setattr(stream, "BEAT_S", 0.01)
    talk = house.listen()
    hear(talk, b": quiet\nid: 0\n\n")
    house.do(lambda: setattr(house.world, "head", 7))
    hear(talk, b"id: 7\n")
    talk.close()


def test_what_comes_while_a_stream_reads_is_not_lost(house: Listening) -> None:
    talk = house.listen()
    hear(talk, b"retry: ")
    house.do(house.world.slow.clear)
    house.do(lambda: house.world.grow(1))
    house.eventually(lambda: house.world.reads == 2)
    house.do(lambda: house.world.grow(1))
    house.do(house.world.slow.set)

    hear(talk, b"id: 2\ndata: 2\n\n")
    talk.close()


def test_many_commits_at_once_are_few_reads(house: Listening) -> None:
    talk = house.listen()
    hear(talk, b"retry: ")
    house.do(lambda: house.world.grow(1_000))

    hear(talk, b"id: 1000\ndata: 1000\n\n")
    assert house.do(lambda: house.world.reads) <= 1_000 / 10 + 3
    talk.close()


def test_a_client_that_takes_nothing_costs_one_piece_and_is_cut(loop_kind: str) -> None:
    with listening(loop_kind, drain_ms=300) as house:
        house.do(lambda: setattr(house.world, "endless", True))
        talk = house.listen()
        house.eventually(lambda: house.world.reads > 0)

        house.eventually(lambda: house.world.streams.open == 0)
        assert house.do(lambda: house.world.reads) < UNREAD_PIECES_MAX
        talk.close()


def test_a_key_that_ends_also_ends_a_stream_that_nobody_takes(house: Listening) -> None:
    """The line has ten minutes of patience, the key has none."""
    house.do(lambda: setattr(house.world, "endless", True))
    talk = house.listen()
    house.eventually(lambda: house.world.reads > 0)
    house.do(lambda: setattr(house.world, "ended", True))
    house.do(lambda: house.world.polls.told("key", "k"))

    house.eventually(lambda: house.world.streams.open == 0)
    talk.close()


def test_a_stop_does_not_wait_for_clients_that_take_nothing(loop_kind: str) -> None:
    house = Listening(loop_kind, {}, {}).start()
    house.do(lambda: setattr(house.world, "endless", True))
    talks = [house.listen() for _ in range(5)]
    house.eventually(lambda: house.world.streams.open == 5)

    house.stop()

    assert house.hard_exits == 0
    for talk in talks:
        talk.close()


def test_a_stopping_daemon_opens_no_stream(house: Listening) -> None:
    talk = house.listen()
    hear(talk, b"retry: ")
    house.loop.call_soon_threadsafe(house.stop_event.set)

    hear(talk, b"event: end\n")
    hear(talk, b"the daemon is stopping")
    with pytest.raises(Refused) as refused:
        house.world.streams.enter(Somebody())  # type: ignore[arg-type]
    assert refused.value.code == "SERVICE_OVERLOADED"
    talk.close()


class Somebody:
    key_id = ""


class Counted:
    """Readers that count, and hold a read until they are told."""

    def __init__(self) -> None:
        self.reads = 0
        self.head = 0
        self.go = asyncio.Event()

    async def read(self, rule: Any, cmd: Following) -> Events:
        self.reads += 1
        head = self.head
        await self.go.wait()
        items = [
            Event(seq=n, at_ms=0, kind="create") for n in range((cmd.after or 0) + 1, head + 1)
        ]
        return Events(items, head, 1)


async def settle() -> None:
    """Let everybody come as far as he comes."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_readers_of_one_place_share_a_read_but_never_one_from_before_a_commit() -> None:
    async def story() -> None:
        readers, polls = Counted(), Polls()
        pages = Pages(readers, polls)  # type: ignore[arg-type]
        here, elsewhere = Following(("t",), 0), Following(("u",), 0)
        crowd = [asyncio.ensure_future(pages.read(here)) for _ in range(50)]
        crowd.append(asyncio.ensure_future(pages.read(elsewhere)))
        await settle()
        readers.head = 1
        polls.told("events", "*")
        late = asyncio.ensure_future(pages.read(here))
        await settle()
        readers.go.set()

        assert {(await one).events.head for one in crowd} == {0}
        assert (await late).events.head == 1
        assert readers.reads == 3

    asyncio.run(story())


def test_whoever_gives_up_does_not_end_the_read_of_others() -> None:
    async def story() -> None:
        readers = Counted()
        pages = Pages(readers, Polls())  # type: ignore[arg-type]
        one, other = (asyncio.ensure_future(pages.read(Following(("t",), 0))) for _ in range(2))
        await settle()
        one.cancel()
        await settle()
        readers.go.set()

        assert (await other).events.head == 0
        assert readers.reads == 1

    asyncio.run(story())
