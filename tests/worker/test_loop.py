"""The loop in this process, beside a real daemon: what it does about each thing that comes next."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from feltd.worker import AsyncClient, AsyncContext, Fenced
from feltd.worker.desk import Desk
from feltd.worker.loop import Loop
from feltd.worker.session import Session, Settings, Stopped
from tests.worker.crew import Crew

pytestmark = pytest.mark.anyio


async def echo(ctx: AsyncContext) -> Any:
    return ctx.input


async def off(call: Callable[..., Any], *arguments: Any) -> Any:
    """A blocking call of the story, beside the loop."""
    return await asyncio.to_thread(call, *arguments)


class Running:
    """A registered session and its loop, in this process."""

    def __init__(self, crew: Crew, **settings: Any) -> None:
        self.crew = crew
        settings = {"name": "here", "kinds": ("echo",), "heartbeat_interval_ms": 1_000} | settings
        settings["heartbeat_timeout_ms"] = 3_000
        self.client = AsyncClient(crew.daemon.url, crew.key)
        self.session = Session(self.client, Settings(**settings))

    async def __aenter__(self) -> "Running":
        await self.session.begin()
        return self

    def begin(self) -> None:
        self.loop = Loop(self.session, {"echo": echo}, grace_ms=2_000)
        self.task = asyncio.create_task(self.loop.run())

    async def end(self) -> Stopped:
        self.loop.leave()
        return await self.task

    async def __aexit__(self, *_ended: object) -> None:
        await self.client.close()


async def test_a_clock_that_is_an_hour_off_is_corrected_by_the_daemons(crew: Crew) -> None:
    """BC-022: the beat is refused with both times, the worker lives and corrects itself."""
    async with Running(crew) as here:
        here.session._clock_ms = 3_600_000
        here.begin()
        job = await off(crew.work, "echo", 1)
        done = await off(crew.final, job)
        stopped = await here.end()

    assert done["state"] == "COMPLETED"
    assert abs(here.session._clock_ms) < 5_000
    assert stopped.code == 0


async def test_a_claim_this_process_never_heard_of_is_given_back(crew: Crew) -> None:
    """The answer of a pull was lost for good: the beat names the claim, nothing here runs it."""
    async with Running(crew) as here:
        await here.session.beat([], 0)
        job = await off(crew.work, "echo", 1)
        worker_id, bearer = here.session.worker_id, here.session.key
        lost = await here.client.pull(worker_id, {"lease_ms": 60_000}, bearer=bearer)
        assert len(lost["claims"]) == 1
        here.begin()
        done = await off(crew.final, job)
        await here.end()

    assert done["state"] == "COMPLETED"
    assert await off(crew.ends, job) == ["released", "completed"]


def regrant(crew: Crew, *capabilities: str) -> None:
    """Change what the workers of the crew may do."""
    grant = crew.client.grant(crew.grant_id)["grant"]
    kept = {name: grant[name] for name in ("resources", "constraints", "expires_at_ms")}
    named = [f"worker:capability:{one}" for one in capabilities]
    crew.client.replace_grant(crew.grant_id, capabilities=["worker:register", *named], **kept)


async def test_a_narrowed_grant_is_taken_up_by_registering_again(crew: Crew) -> None:
    await off(regrant, crew, "extract", "translate")
    async with Running(crew) as here:
        here.begin()
        assert (await off(crew.ready, "here"))["granted_capabilities"] == ["extract", "translate"]
        before = here.session.capability_version
        await off(regrant, crew, "extract")
        job = await off(crew.work, "echo", 1)
        done = await off(crew.final, job)
        await off(crew.ready, "here")
        stopped = await here.end()

    assert done["state"] == "COMPLETED"
    assert here.session.capability_version > before
    after = await off(crew.worker, "here")
    assert (after["granted_capabilities"], after["incarnation"]) == (["extract"], 1)
    assert stopped.code == 0


async def test_a_removed_worker_registers_again_as_a_new_incarnation(crew: Crew) -> None:
    async with Running(crew) as here:
        here.begin()
        await off(crew.ready, "here")
        await off(crew.client.remove_worker, here.session.worker_id)
        job = await off(crew.work, "echo", 1)
        done = await off(crew.final, job)
        after = await off(crew.ready, "here")
        stopped = await here.end()

    assert done["state"] == "COMPLETED"
    assert after["incarnation"] == 2
    assert stopped.code == 0


async def test_two_hundred_small_pieces_share_their_calls(crew: Crew) -> None:
    """Outcomes travel with the next claim: far fewer calls than one for each verb."""
    async with Running(crew, concurrency=16) as here:
        calls = 0
        send = here.client.transport.send

        async def counted(call: Any) -> Any:
            nonlocal calls
            calls += 1
            return await send(call)

        here.client.transport.send = counted  # type: ignore[method-assign]
        jobs = [await off(crew.work, "echo", n) for n in range(200)]
        here.begin()
        done = [await off(crew.final, job) for job in jobs]
        await here.end()

    assert [one["result"]["output"] for one in done] == list(range(200))
    assert calls < 200


@pytest.mark.parametrize("how", ["the grant is revoked", "the claim is evicted"])
async def test_a_handler_whose_checkpoint_comes_too_late_has_not_failed(
    crew: Crew, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Its work is over, and not by its fault: no failure is told and no advice is given."""
    begun, go = asyncio.Event(), asyncio.Event()
    met: list[BaseException] = []

    async def slow(ctx: AsyncContext) -> None:
        begun.set()
        await go.wait()
        try:
            await ctx.checkpoint({"half": True})
        except BaseException as error:
            met.append(error)
            raise

    caplog.set_level("INFO")
    ends: list[Stopped] = []
    async with Running(crew) as here:
        await here.session.beat([], 0)
        job = await off(crew.work, "echo", 1)
        wanted = {"lease_ms": 60_000, "start": True}
        bearer = here.session.key
        got = await here.client.pull(here.session.worker_id, wanted, bearer=bearer)
        desk = Desk(here.session, {"echo": slow}, ends.append)
        [claim] = got["claims"]
        desk.begin(claim)
        await begun.wait()
        if how == "the grant is revoked":
            await off(crew.client.revoke_grant, crew.grant_id)
        else:
            await off(lambda: crew.client.evict(claim["claim_id"], reason="stuck"))
        go.set()
        await asyncio.gather(*desk.slots)

    assert [type(one) for one in met] == [Fenced]
    assert (len(desk.courier), desk.held, ends) == (0, {}, [])
    said = [line.message for line in caplog.records if line.name == "feltd.worker"]
    assert any(line.startswith("lost claim_") for line in said)
    assert not any("failed" in line or "hint" in line for line in said)
    assert await off(crew.state, job) == "READY"
