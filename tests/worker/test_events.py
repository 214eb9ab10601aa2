"""The feed through the SDK: one event after another, whatever becomes of the line."""

import asyncio

import pytest

from feltd.worker import AsyncClient, Client, Refusal
from feltd.worker.feed import PAGE
from tests.daemon.running import Daemon
from tests.worker.crew import Crew
from tests.worker.lossy import LOSE, PASS, SHED, Wire


def test_events_come_one_by_one_over_many_pages(crew: Crew) -> None:
    with Client(crew.daemon.url, crew.daemon.key) as client:
        head = client.call("GET", "/v1/events", query={"limit": 1})["head"]
        body = {"tenant_id": "t", "application_id": crew.application, "definition_id": "extract"}
        body["authorization_grant"] = crew.submitting()
        made = [one for _ in range(2) for one in client.create_batch([body] * (PAGE - 1))]

        found = list(client.events(head, follow=False))

        assert [event["workload_id"] for event in found] == [one["workload_id"] for one in made]
        # Whoever keeps the number goes on from there.
        assert list(client.events(found[9]["seq"], follow=False)) == found[10:]


def test_a_follower_mends_lost_and_refused_answers_by_itself(crew: Crew) -> None:
    def judge(_line: str, number: int) -> str:
        return (PASS, LOSE, SHED)[number % 3]

    with Client(crew.daemon.url, crew.daemon.key) as client:
        head = client.call("GET", "/v1/events", query={"limit": 1})["head"]
    with Wire(crew.daemon.url, judge) as wire, Client(wire.url, crew.daemon.key) as client:
        feed = client.events(head)
        for _ in range(6):
            assert crew.work("extract") == next(feed)["workload_id"]
        assert wire.lost


def test_a_follower_waits_at_the_end_and_can_be_told_to_stop(crew: Crew) -> None:
    async def story() -> str:
        async with AsyncClient(crew.daemon.url, crew.daemon.key) as client:
            head = (await client.call("GET", "/v1/events", query={"limit": 1}))["head"]
            feed = client.events(head)
            waiting = asyncio.ensure_future(anext(feed))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            job = await asyncio.to_thread(crew.work, "extract")
            event = await waiting
            while event.get("workload_id") != job:
                event = await anext(feed)
            await feed.aclose()
            return str(event["kind"])

    assert asyncio.run(story()) == "create"


def test_a_follower_behind_what_is_kept_is_told_and_not_moved_on(own: Daemon) -> None:
    with Client(own.url, own.key) as client, pytest.raises(Refusal) as refused:
        next(client.events(4_711))
    assert refused.value.code == "EVENTS_COMPACTED"
    assert refused.value.next == "ask_operator"
