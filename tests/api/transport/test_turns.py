"""Large pieces go on one by one: small calls slip through, and nobody is late for others' sake."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from feltd.api import turns
from feltd.api.turns import SMALL_PIECE_BYTES, Turns
from tests.api.transport.kit import House, Talk, request, serving

JSON = {"Content_Type": "application/json"}
LARGE = 64 * 1024
UPLOADERS = 32


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Line:
    """Who waits for turns, and who had one, in order."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.went: list[str] = []

    async def take(self, name: str, address: str) -> None:
        await self.turns.take(address, LARGE)
        self.went.append(name)


def test_addresses_take_turns_however_many_connections_one_has() -> None:
    async def story() -> list[str]:
        line = Line()
        async with asyncio.TaskGroup() as pieces:
            for number in range(6):
                pieces.create_task(line.take(f"loud-{number}", "10.0.0.1"))
            pieces.create_task(line.take("quiet", "10.0.0.2"))
        return line.went

    went = asyncio.run(story())
    # The first went at once, the second was the next of the round already.
    assert went[:3] == ["loud-0", "loud-1", "quiet"]
    assert went[3:] == [f"loud-{number}" for number in range(2, 6)]


def test_a_small_piece_waits_for_nobody() -> None:
    async def story() -> None:
        line = Line()
        await line.take("first", "a")
        waiting = asyncio.create_task(line.take("second", "a"))
        await settle()
        await line.turns.take("a", SMALL_PIECE_BYTES)
        assert line.went == ["first"]
        await waiting

    asyncio.run(story())


def test_whoever_stops_waiting_leaves_his_turn_to_the_next() -> None:
    async def story() -> list[str]:
        line = Line()
        names = ("first", "left-0", "left-1", "last")
        waits = [asyncio.create_task(line.take(name, "a")) for name in names]
        await settle()
        waits[1].cancel()
        waits[2].cancel()
        await asyncio.wait(waits)
        # Nothing is left taken: the next goes when the rest is over.
        await line.take("after", "b")
        return line.went

    assert asyncio.run(story()) == ["first", "last", "after"]


def test_a_turn_that_was_given_to_one_who_leaves_is_not_lost() -> None:
    async def story() -> list[str]:
        line = Line()
        await line.take("first", "a")
        leaving = asyncio.create_task(line.take("leaves", "a"))
        await settle()
        line.turns._next()
        leaving.cancel()  # between the turn and its waking
        with suppress(asyncio.CancelledError):
            await leaving
        await line.take("after", "a")
        return line.went

    assert asyncio.run(story()) == ["first", "after"]


def test_no_round_of_the_loop_lets_two_through_even_while_stopping() -> None:
    async def story() -> None:
        line = Line()
        waits = [asyncio.create_task(line.take(str(number), "a")) for number in range(20)]
        await settle()
        line.turns.end_rests()
        before = len(line.went)
        while len(line.went) < len(waits):
            await asyncio.sleep(0)
            assert len(line.went) <= before + 1
            before = len(line.went)
        await asyncio.wait(waits)

    asyncio.run(story())


# -- the same on real connections ------------------------------------------------------------


@contextmanager
def slowly(monkeypatch: pytest.MonkeyPatch, bytes_a_s: int) -> Iterator[None]:
    """Uploads rest for so long that whatever comes beside them is sure to come in between."""
    with monkeypatch.context() as patched:
        patched.setattr(turns, "LARGE_BYTES_A_S", bytes_a_s)
        yield


def uploading(house: House, body_bytes: int) -> Talk:
    """A client that has begun to send a large body and goes on by itself."""
    talk = house.connect()
    body = b'{"name": "%s"}' % (b"a" * (body_bytes - 12))
    message = request("POST", "/v1/echo", Content_Length=str(len(body)), **JSON) + body

    def send() -> None:
        with suppress(OSError):
            talk.sock.sendall(message)

    threading.Thread(target=send, daemon=True).start()
    return talk


@contextmanager
def endless_uploads(house: House) -> Iterator[None]:
    """Meanwhile as many clients upload large bodies, one after the other."""
    over = threading.Event()
    body = b'{"name": "%s"}' % (b"a" * 500_000)
    message = request("POST", "/v1/echo", Content_Length=str(len(body)), **JSON) + body

    def upload() -> None:
        talk = house.connect()
        while not over.is_set():
            assert talk.send(message).answer().status == 201
        talk.close()

    with ThreadPoolExecutor(UPLOADERS) as pool:
        uploads = [pool.submit(upload) for _ in range(UPLOADERS)]
        try:
            yield
        finally:
            over.set()
    for one in uploads:
        one.result()


def test_a_small_call_is_served_while_many_upload_large_bodies(loop_kind: str) -> None:
    """Counted in pieces, at the daemon's own pace: few go on between its coming and its answer."""
    with serving(loop_kind) as house:
        pieces: list[int] = []
        between: list[int] = []
        take, enter = house.server._house._turns.take, house.server._house.enter

        async def watched(address: str, received_bytes: int) -> None:
            await take(address, received_bytes)
            pieces.append(received_bytes)

        def entering(*of_line: Any, **named: Any) -> bool:
            between.append(-len(pieces))
            return enter(*of_line, **named)

        house.server._house._turns.take = watched  # type: ignore[method-assign]
        with endless_uploads(house):
            house.eventually(lambda: len(pieces) > 2 * UPLOADERS)
            house.server._house.enter = entering  # type: ignore[method-assign]
            for _ in range(5):
                assert house.call("POST", "/v1/beat").status == 200
                between[-1] += house.do(lambda: len(pieces))

        # Without turns each connection's piece would have gone before it, some twice.
        assert sorted(between)[2] < UPLOADERS / 2, between


def test_a_body_is_not_late_because_others_upload(
    loop_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sent all of its body at once is refused for nobody else's bodies."""
    stack = {"body_deadline_ms": 200}
    with slowly(monkeypatch, 512 * 1024), serving(loop_kind, stack=stack) as house:
        clients = [uploading(house, 256 * 1024) for _ in range(3)]

        assert [client.answer().status for client in clients] == [201] * 3


def test_a_client_that_stalls_is_late_whoever_else_uploads(
    loop_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = {"body_deadline_ms": 300}
    with slowly(monkeypatch, 512 * 1024), serving(loop_kind, stack=stack) as house:
        busy = uploading(house, 1 << 20)
        stalled = house.connect()
        head = request("POST", "/v1/echo", Content_Length="200000", **JSON)
        stalled.send(head + b" " * LARGE)

        assert stalled.answer().code == "REQUEST_TIMEOUT"
        stalled.close()
        busy.close()


def test_a_head_is_not_late_because_others_upload(
    loop_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came whole, with its body, and waits for its turn longer than a head may take."""
    with slowly(monkeypatch, 32 * 1024), serving(loop_kind, head_deadline_ms=200) as house:
        first, second = uploading(house, 30_000), uploading(house, 30_000)

        assert [first.answer().status, second.answer().status] == [201, 201]


def test_what_waits_when_the_daemon_stops_is_answered(
    loop_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a minute of rests lies before the last of them; the stop ends all rests."""
    with slowly(monkeypatch, 16 * 1024), serving(loop_kind) as house:
        clients = [uploading(house, 30_000) for _ in range(16)]
        house.eventually(lambda: sum(map(len, house.server._house._turns._by_address.values())) > 8)
        house.do(house.stop_event.set)

        assert [client.answer().status for client in clients] == [201] * 16
        assert house.hard_exits == 0


def test_an_unfinished_head_is_closed_when_the_daemon_stops(
    loop_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for its turn when the others were closed; nothing of it is at work."""
    with slowly(monkeypatch, 16 * 1024), serving(loop_kind, graceful_ms=60_000) as house:
        busy = uploading(house, 30_000)
        half = house.connect().send(b"GET /health HTTP/1.1\r\nX-Long: " + b"a" * 12_000)
        house.eventually(lambda: bool(house.server._house._turns._by_address))
        house.do(house.stop_event.set)

        assert half.ended()
        assert busy.answer().status == 201
