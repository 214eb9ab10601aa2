"""Long polls: no permit while they wait, and nothing is taken for a client that left (BC-101)."""

import asyncio

import pytest

from feltd.api.request import ClientGone, Polls
from tests.api.transport.kit import House, Talk, request, serving

POLL = request("POST", "/v1/poll?wait_ms=30000")
LOOK = request("GET", "/v1/poll?wait_ms=30000")


def waiting(house: House, count: int = 1) -> None:
    house.eventually(lambda: house.stack.admission.long_polls == count)


def nothing_held(house: House) -> None:
    house.eventually(
        lambda: (
            house.stack.admission.long_polls == 0
            and house.stack.admission.in_flight == 0
            and not house.stack.polls._parked
        )
    )


def test_a_poll_that_nothing_wakes_ends_by_its_own_time(house: House) -> None:
    assert house.call("POST", "/v1/poll?wait_ms=20").json == {"why": "timeout"}
    nothing_held(house)


def test_the_first_reason_to_wake_counts(house: House) -> None:
    talk = house.connect().send(POLL)
    waiting(house)
    house.do(lambda: [house.world.polls[-1].wake(why) for why in ("ready", "drain")])

    assert talk.answer().json == {"why": "ready"}
    nothing_held(house)


@pytest.mark.parametrize("message", [POLL, LOOK])
@pytest.mark.parametrize("leave", [Talk.close, Talk.reset])
def test_nothing_is_claimed_for_a_client_that_left(
    loop_kind: str, message: bytes, leave: object
) -> None:
    """BC-101: through the whole stack, from the first poll on."""
    with serving(loop_kind) as house:
        talk = house.connect().send(message)
        waiting(house)
        leave(talk)  # type: ignore[operator]
        nothing_held(house)
        house.do(lambda: house.world.polls[-1].wake("ready"))
        house.eventually(lambda: house.server.connections == 0)
        assert house.world.claims == []


def test_a_poll_holds_its_connection_for_the_next_call(house: House) -> None:
    talk = house.connect().send(POLL)
    waiting(house)
    house.do(lambda: house.world.polls[-1].wake("ready"))
    assert talk.answer().json == {"why": "ready"}
    assert talk.send(request("GET", "/health")).answer().status == 200


def test_two_hundred_idle_polls_hold_no_permit() -> None:
    with serving(stack={"max_in_flight": 4}) as house:
        talks = [house.connect().send(POLL) for _ in range(3)]
        for count in range(4, 201):
            waiting(house, count - 1)  # each is admitted by a permit it gives back at once
            talks.append(house.connect().send(POLL))
        waiting(house, 200)

        assert house.do(lambda: house.stack.admission.in_flight) == 0
        assert house.call("POST", "/v1/echo", b'{"name": "a"}').status == 201

        # All end at once: nobody is refused at the end of a poll, though only 4 are permitted.
        house.do(lambda: [poll.wake("ready") for poll in house.world.polls])
        assert [talk.answer().json for talk in talks] == [{"why": "ready"}] * 200
        nothing_held(house)


def test_a_change_for_a_client_that_left_is_dropped_and_a_read_runs_on(loop_kind: str) -> None:
    with serving(loop_kind) as house:
        change = house.connect().send(request("POST", "/v1/hold"))
        read = house.connect().send(request("GET", "/v1/hold"))
        house.eventually(lambda: house.world.entered == 2)
        assert house.do(lambda: house.stack.admission.in_flight) == 2
        change.close()
        read.close()

        house.eventually(lambda: house.stack.admission.in_flight == 1)
        assert house.world.dropped == 1
        house.do(house.world.release.set)
        nothing_held(house)
        house.eventually(lambda: house.server.connections == 0)


@pytest.mark.anyio
async def test_behind_another_transport_one_listener_tells_that_the_client_left() -> None:
    """BC-101: one watcher of receive() for each poll, after the body was read."""
    with serving() as house:
        stack = house.stack
        received: asyncio.Queue[dict[str, object]] = asyncio.Queue()
        sent: list[object] = []

        async def send(message: object) -> None:
            sent.append(message)

        async def run() -> None:
            scope = {
                "type": "http",
                "method": "POST",
                "path": "/v1/poll",
                "query_string": b"wait_ms=30000",
                "headers": [(b"host", b"a"), (b"authorization", b"Bearer good")],
            }
            call = asyncio.ensure_future(stack(scope, received.get, send))
            await received.put({"type": "http.request", "body": b"", "more_body": False})
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(stack.polls._parked) == 1
            await received.put({"type": "http.disconnect"})
            await call
            await asyncio.sleep(0)
            assert sum("Request._listen" in repr(task) for task in asyncio.all_tasks()) == 0

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), house.loop))
        assert sent == []
        assert house.world.claims == []


@pytest.mark.anyio
async def test_a_poll_that_begins_after_the_stop_does_not_wait() -> None:
    stop = asyncio.Event()
    stop.set()
    reasons: list[str] = []

    class Poll:
        def wake(self, reason: str) -> None:
            reasons.append(reason)

    Polls(stop).enter(Poll())  # type: ignore[arg-type]
    assert reasons == ["stop"]


def test_the_exception_of_a_gone_client_is_no_refusal() -> None:
    assert not issubclass(ClientGone, (OSError, ValueError, RuntimeError))
