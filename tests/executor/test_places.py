"""Places for processes: no tenant takes all of them, and who waits takes turns."""

import asyncio

import pytest

from feltd.executor.places import Places

pytestmark = pytest.mark.anyio


async def begun(places: Places, *tenants: str) -> tuple[list[str], list[asyncio.Task[None]]]:
    """One program of each named tenant, in this order; who runs, and all of them."""
    running: list[str] = []

    async def program(tenant_id: str) -> None:
        async with places.share(tenant_id):
            running.append(tenant_id)
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(program(one)) for one in tenants]
    await settled()
    return running, tasks


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await settled()


async def test_a_loud_tenant_leaves_places_to_others() -> None:
    running, tasks = await begun(Places(4, 2), *["loud"] * 10, "calm", "other")
    assert running == ["loud", "loud", "calm", "other"]
    await end(*tasks)


async def test_who_waits_takes_turns() -> None:
    running, tasks = await begun(Places(1, 1), "a", "a", "a", "a", "b", "c")
    for place in range(4):
        await end(tasks[(0, 1, 4, 5)[place]])
    assert running == ["a", "a", "b", "c", "a"]
    await end(*tasks[2:4])


async def test_a_wait_that_is_given_up_takes_nothing() -> None:
    places = Places(1, 1)
    running, tasks = await begun(places, "a", "a", "b")
    await end(tasks[1])
    await end(tasks[0])
    assert running == ["a", "b"]
    await end(tasks[2])
    assert (await begun(places, "c"))[0] == ["c"]


async def test_a_place_that_comes_as_the_wait_is_given_up_goes_on_to_the_next() -> None:
    places = Places(1, 1)
    running, tasks = await begun(places, "a", "b", "c")
    tasks[0].cancel()
    await asyncio.sleep(0)  # it is b's now, who has not heard
    tasks[1].cancel()
    await settled()
    assert running == ["a", "c"]
    await end(tasks[2])
    assert (await begun(places, "d"))[0] == ["d"]
