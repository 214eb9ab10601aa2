"""The daemon calls itself as anybody calls it: the same gate, door and permits, and a hang-up."""

import asyncio
from typing import Any

import pytest

from feltd.api.stack import build
from feltd.daemon.inside import Inside
from feltd.worker.client import AsyncClient
from feltd.worker.refusal import Refusal, Unreachable
from tests.api.transport.kit import ROUTES, Seen, World, door

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Ground:
    """An application of every kind of route, and a client inside it."""

    def __init__(self) -> None:
        self.world = World()
        self.stop = asyncio.Event()
        self.stack = build(
            ROUTES, app=self.world, authenticate=door, stop=self.stop, observer=Seen(self.world)
        )
        self.client = AsyncClient(
            "http://localhost", "good", inside=Inside(self.stack), patience_ms=0
        )

    async def call(self, method: str, path: str, body: Any = None, **how: Any) -> Any:
        return await self.client.call(method, path, body, **how)


@pytest.fixture
async def ground() -> Ground:
    return Ground()


async def test_an_answer_comes_back_whole(ground: Ground) -> None:
    told = await ground.call("POST", "/v1/echo", {"name": "a", "input": {"ä": [1, None]}})
    assert told["input"] == {"ä": [1, None]}
    large = await ground.call("POST", "/v1/echo", {"name": "a", "input": "x" * 300_000})
    assert len(large["input"]) == 300_000


async def test_refusals_and_the_door_are_those_of_every_call(ground: Ground) -> None:
    for call, code in (
        (ground.call("GET", "/v1/none"), "ROUTE_NOT_FOUND"),
        (ground.call("POST", "/v1/echo", {"nam": "a"}), "WORKLOAD_INVALID"),
        (ground.call("POST", "/v1/beat", bearer="bad"), "UNAUTHENTICATED"),
    ):
        with pytest.raises(Refusal) as refused:
            await call
        assert refused.value.code == code


async def test_a_name_with_a_slash_stays_one_name(ground: Ground) -> None:
    assert (await ground.call("GET", "/v1/workers/a%2Fb"))["id"] == "a/b"


async def test_who_gives_up_is_a_client_that_went_away(ground: Ground) -> None:
    waiting = asyncio.create_task(
        ground.call("POST", "/v1/poll", query={"wait_ms": 30_000}, wait_ms=30_000)
    )
    await _until(lambda: ground.world.polls)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    held = asyncio.create_task(ground.call("POST", "/v1/hold"))
    await _until(lambda: ground.world.entered)
    held.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held
    await _until(lambda: ground.world.dropped)
    assert ground.world.claims == [], "nothing was taken for nobody"
    assert ground.stack.admission.in_flight == 0


async def test_an_answer_that_is_late_is_silence(ground: Ground) -> None:
    with pytest.raises(Unreachable):
        await ground.call("GET", "/v1/hold", answer_s=0.05)


async def test_a_stop_ends_its_polls_too(ground: Ground) -> None:
    waiting = asyncio.create_task(
        ground.call("POST", "/v1/poll", query={"wait_ms": 30_000}, wait_ms=30_000)
    )
    await _until(lambda: ground.world.polls)
    ground.stop.set()
    assert (await waiting)["why"] == "stop"


async def _until(true: Any) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - the world tells nobody
            await asyncio.sleep(0.005)
