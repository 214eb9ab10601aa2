"""Hundreds who follow a log cost nothing while nothing is logged: they are told and do not ask."""

import asyncio
from types import SimpleNamespace

import pytest

from feltd.api import workloads
from feltd.api.admission import Admission
from feltd.api.polls import Polls
from feltd.api.request import ON_GONE, Request
from feltd.api.request import Polls as Parking
from feltd.errors import Refused
from feltd.model.base import Caller, Subject

pytestmark = pytest.mark.anyio

(LOGS,) = (route for route in workloads.ROUTES if route.operation == "list_workload_logs")


class Follower:
    """One reader of the log of `workload_1`, and how often it has looked."""

    def __init__(self, polls: Polls, stop: asyncio.Event) -> None:
        self.looks = 0
        self.door_asked = 0
        self.lines = False
        door = SimpleNamespace(authenticate=self._authenticate)
        self._request = Request(
            {"type": "http", "headers": [], "extensions": {ON_GONE: lambda callback: None}},
            self._receive,
            LOGS,
            {},
            app=SimpleNamespace(door=door),
            admission=Admission(4),
            polls=Parking(stop),
            deadline_ms=1_000,
        )
        self._request.caller = Caller(Subject("service", "s"), key_id="key-1")
        self._polls = polls

    async def wait(self) -> str:
        return await self._polls.until(
            self._request, "workload_1", 60_000, self._there, "workload", "log"
        )

    async def _there(self) -> bool:
        self.looks += 1
        return self.lines

    async def _authenticate(self, request: Request) -> None:
        self.door_asked += 1
        raise Refused("UNAUTHENTICATED", "the key was revoked")

    async def _receive(self) -> dict[str, str]:
        raise AssertionError("nobody reads a body here")


@pytest.mark.parametrize("topic", ["log", "workload"])
async def test_a_follower_looks_once_and_then_waits_to_be_told(topic: str) -> None:
    polls, stop = Polls(), asyncio.Event()
    follower = Follower(polls, stop)
    waiting = asyncio.create_task(follower.wait())
    await asyncio.sleep(0.05)
    polls.told(topic, "workload_2")
    await asyncio.sleep(0.05)

    assert not waiting.done()
    assert follower.looks == 1
    polls.told(topic, "workload_1")
    assert await waiting == "told"
    assert follower.looks == 1


async def test_lines_that_came_before_it_watched_are_found() -> None:
    follower = Follower(Polls(), asyncio.Event())
    follower.lines = True

    assert await follower.wait() == "there"


async def test_a_stop_wakes_it() -> None:
    stop = asyncio.Event()
    follower = Follower(Polls(), stop)
    waiting = asyncio.create_task(follower.wait())
    await asyncio.sleep(0)
    stop.set()

    assert await waiting == "stop"


async def test_a_key_that_ends_meanwhile_is_refused_as_at_the_door() -> None:
    polls = Polls()
    follower = Follower(polls, asyncio.Event())
    waiting = asyncio.create_task(follower.wait())
    await asyncio.sleep(0.01)
    polls.told("key", "key-1")

    with pytest.raises(Refused):
        await waiting
    assert follower.door_asked == 1


def test_a_lost_telling_is_looked_for_seldom() -> None:
    assert workloads.LOGS_AGAIN_MS >= 5_000
