"""In whose name a schedule makes work: its grant decides at each instant, and nothing else."""

from collections.abc import Iterator
from typing import Any

import pytest

from feltd.identity import keys
from feltd.model.base import Ask
from feltd.state import runs, schedules
from feltd.state.standing import OnTrigger
from tests.state.triggers.world import DAY_MS, Shop

HOUR_MS = 3_600_000


@pytest.fixture
def shop() -> Iterator[Shop]:
    world = Shop()
    yield world
    world.close()


def hourly(shop: Shop, trigger_id: str = "hourly", **members: Any) -> None:
    timing = {"kind": "schedule", "every_ms": HOUR_MS, "capability_snapshot": ["docs.extract"]}
    none = {"source_collection": None, "change_kind": None}
    shop.define(trigger_id, **none, **timing, **members)


def hour(shop: Shop) -> None:
    """An hour goes by, and a minute in which what failed is tried again."""
    for ms in (HOUR_MS, *[1_000] * 60):
        shop.later(ms)
        shop.run(schedules.fire_due, 50)


def test_the_key_that_defined_it_may_end_and_it_goes_on(shop: Shop) -> None:
    hourly(shop)
    key_id = shop.app.key_id
    shop.run(keys.revoke, Ask(caller=shop.open, body=None, id=key_id))

    hour(shop)

    job = shop.row("SELECT requested_by, authorization_grant_id FROM workloads")
    assert tuple(job) == ("service:app", shop.grant_id)


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_without_its_grant_it_makes_nothing_and_is_disabled_in_the_open(
    shop: Shop, how: str
) -> None:
    doomed = shop.grant(expires_at_ms=shop.now.wall_ms + DAY_MS)
    hourly(shop, "doomed", grant_id=doomed)
    hourly(shop, "good")
    if how == "revoked":
        shop.revoke(doomed)
    else:
        shop.later(DAY_MS)
    ask = Ask(caller=shop.app, body=OnTrigger("acme"), id="doomed", fresh="f")
    assert shop.refused(lambda: shop.run(runs.run_now, ask)) == "WORKLOAD_UNAUTHORIZED"

    hour(shop)

    assert shop.row("SELECT count(*) AS n FROM workloads WHERE trigger = 'doomed'")["n"] == 0
    assert shop.row("SELECT count(*) AS n FROM workloads WHERE trigger = 'good'")["n"] == 1
    assert shop.status().disabled["doomed"].startswith("WORKLOAD_UNAUTHORIZED")
    assert "good" not in shop.status().disabled
