"""Schedules on a real daemon: over HTTP with real keys, by its own timer, through its deaths."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.daemon.running import PATIENCE_S, Answer, Daemon
from tests.daemon.writers import granted, rows

RUNS = """
SELECT w.trigger, f.scheduled_at_ms
  FROM schedule_firings f
  JOIN workloads w ON w.workload_id = f.workload_id
 WHERE f.by_hand = 0
 ORDER BY f.scheduled_at_ms
"""
STANDING = """
SELECT t.trigger_id, t.anchor_at_ms, t.last_at_ms, t.passed_over
  FROM triggers t
"""
SECOND_MS = 1_000


class Shop:
    """A daemon and a service of tenant t with a grant."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.key = granted(daemon)

    def call(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        return self.daemon.call(method, f"/v1/triggers{path}", body, key=self.key, **headers)

    def define(self, trigger_id: str, **members: Any) -> Answer:
        said = {"trigger_id": trigger_id, "kind": "schedule", "target_capability": "report"}
        return self.call("POST", "", {**said, **members})

    def made(self, trigger_id: str) -> list[int]:
        """The instants it has fired at."""
        return [at_ms for name, at_ms in rows(self.daemon, RUNS) if name == trigger_id]

    def wait(self, trigger_id: str, number: int) -> list[int]:
        """Wait until it has fired so often."""
        until_s = time.monotonic() + PATIENCE_S
        while len(found := self.made(trigger_id)) < number:
            assert time.monotonic() < until_s, self.daemon.told()[-2_000:]
            time.sleep(0.05)
        return found


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """BC-027: the daemon stands in New York, and its schedules where they say."""
    folder: Path = tmp_path_factory.mktemp("schedules")
    env = {"TZ": "America/New_York"}
    daemon = Daemon(folder / "feltd.db", "--tick-ms", "50", env=env).init().start()
    yield Shop(daemon)
    daemon.close()


def test_a_schedule_is_defined_and_shows_when_it_is_due(shop: Shop) -> None:
    first = shop.define("berlin", cron="30 2 * * *", timezone="Europe/Berlin", missed="once")
    again = shop.define("berlin", cron="30 2 * * *", timezone="Europe/Berlin", missed="once")

    assert (first.status, again.status) == (201, 200)
    assert first.body == again.body
    assert (first.body["missed"], first.body["overlap"]) == ("once", "allow")
    due = datetime.fromtimestamp(first.body["next_at_ms"] / 1_000, ZoneInfo("Europe/Berlin"))
    assert f"{due:%H:%M}" in ("02:30", "03:00")
    ahead = shop.call("POST", "/berlin/preview", {"count": 100}).body["instants"]
    assert len(ahead) == 100
    assert ahead[0]["at_ms"] == first.body["next_at_ms"]
    for instant in ahead:
        shown = datetime.fromisoformat(instant["local"])
        assert shown.timestamp() * 1_000 == instant["at_ms"]
        assert shown.utcoffset() == shown.astimezone(ZoneInfo("Europe/Berlin")).utcoffset()
    assert shop.call("GET", "/berlin/preview").body["instants"] == ahead[:5]
    assert "berlin" in {one["trigger_id"] for one in shop.call("GET", "").body["items"]}


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"cron": "61 * * * *"}, "/cron"),
        ({"cron": "* * * * * *"}, "/cron"),
        ({"cron": "0 0 30 2 *"}, "/cron"),
        ({"cron": "0 0 * * *", "timezone": "Mars/Base"}, "/timezone"),
        ({"every_ms": 60_000, "timezone": "Mars/Base"}, "/timezone"),
        ({"every_ms": 999}, "/every_ms"),
        ({"every_ms": 31_536_000_001}, "/every_ms"),
        ({"cron": "0 0 * * *", "every_ms": 1_000}, "/cron"),
        ({}, "/cron"),
        ({"cron": "0 0 * * *", "missed": "never"}, "/missed"),
        ({"cron": "0 0 * * *", "overlap": "queue"}, "/overlap"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_told_with_its_place(
    shop: Shop, members: dict[str, object], pointer: str
) -> None:
    answer = shop.define("wrong", **members)

    assert (answer.status, answer.body["code"]) == (400, "TRIGGER_INVALID"), answer
    assert answer.body["errors"][0]["pointer"] == pointer
    assert shop.call("GET", "/wrong").status == 404


def test_a_run_by_hand_is_done_once_a_key(shop: Shop) -> None:
    shop.define("by-hand", cron="0 0 1 1 *", input={"of": "sales"}, enabled=False)

    first = shop.call("POST", "/by-hand/run", {}, Idempotency_Key="the-1st")
    again = shop.call("POST", "/by-hand/run", {}, Idempotency_Key="the-1st")
    other = shop.call("POST", "/by-hand/run")

    assert (first.status, again.status, other.status) == (201, 201, 201)
    assert first.body == again.body
    assert other.body["workload_id"] != first.body["workload_id"]
    job = shop.daemon.get(f"/v1/workloads/{first.body['workload_id']}")
    assert (job["trigger"], job["input"], job["definition_id"]) == (
        "by-hand",
        {"of": "sales"},
        "report",
    )
    assert job["labels"] == {"scheduled_at_ms": str(first.body["scheduled_at_ms"])}
    assert job["requested_by"] == {"kind": "service", "id": "shop"}
    shown = shop.call("GET", "/by-hand").body
    assert (shown["fired"], shown["enabled"]) == (2, False)
    assert shown["last_workload_id"] == other.body["workload_id"]


def test_only_a_schedule_of_the_tenant_is_run_and_only_with_the_scope(shop: Shop) -> None:
    shop.define("mine", cron="0 0 1 1 *")
    watch = {"kind": "state", "source_collection": "orders", "change_kind": "any"}
    shop.define("watch", **watch)
    daemon = shop.daemon
    keys = [
        daemon.post("/v1/keys", {"name": name, "scopes": scopes, "tenants": tenants})["secret"]
        for name, scopes, tenants in (
            ("reader", ["triggers:read"], ["t"]),
            ("stranger", ["triggers:read", "triggers:write"], ["u"]),
        )
    ]

    refused = [
        shop.call("POST", "/watch/run").body["code"],
        shop.call("POST", "/unheard-of/run").body["code"],
        daemon.call("POST", "/v1/triggers/mine/run", {}, key=keys[0]).body["code"],
        daemon.call("POST", "/v1/triggers/mine/run", {}, key=keys[1]).body["code"],
        shop.call("POST", "/mine/run", {"now": True}).body["code"],
    ]

    assert refused == [
        "TRIGGER_INVALID",
        "TRIGGER_NOT_FOUND",
        "FORBIDDEN",
        "TRIGGER_NOT_FOUND",
        "TRIGGER_INVALID",
    ]
    assert shop.call("GET", "/mine").body["fired"] == 0


def test_a_schedule_fires_by_the_daemons_own_timer(shop: Shop) -> None:
    shop.define("tick", every_ms=SECOND_MS)

    found = shop.wait("tick", 2)

    assert found[1] - found[0] == SECOND_MS
    stopped = shop.call("POST", "/tick/disable", {"reason": "enough"}).body
    assert stopped["disabled"]["reason"] == "enough"
    number = len(shop.made("tick"))
    assert shop.call("POST", "/tick/enable", {}).body["next_at_ms"] > found[-1]
    shop.wait("tick", number + 1)
    assert shop.call("DELETE", "/tick").status == 204
    stamps = [json.loads(line)["at"] for line in shop.daemon.told().splitlines()]
    assert stamps
    assert all(stamp.endswith("Z") for stamp in stamps), "the zone of the machine shows nowhere"


def test_killed_between_instants_each_schedule_does_with_them_as_it_says(
    daemons: Callable[..., Daemon],
) -> None:
    """Twice it is dead for a few seconds; no instant ever comes twice."""
    daemon = daemons().start()
    shop = Shop(daemon)
    for missed in ("skip", "once", "all"):
        assert shop.define(missed, every_ms=SECOND_MS, missed=missed).status == 201

    for _ in range(2):
        shop.wait("all", len(shop.made("all")) + 1)
        daemon.kill()
        time.sleep(2.2)
        daemon.start()
    shop.wait("all", len(shop.made("all")) + 2)

    daemon.kill()
    standing = {name: rest for name, *rest in rows(daemon, STANDING)}
    for missed, (anchor_at_ms, last_at_ms, passed_over) in standing.items():
        found = shop.made(missed)
        assert len(found) == len(set(found))
        assert all((at_ms - anchor_at_ms) % SECOND_MS == 0 for at_ms in found)
        assert len(found) + passed_over == (last_at_ms - anchor_at_ms) // SECOND_MS
        assert max(found) == last_at_ms
    assert {later - at_ms for at_ms, later in pairwise(shop.made("all"))} == {SECOND_MS}
    assert standing["all"][2] == 0
    assert standing["once"][2] > 0
    checked = daemon.check()
    assert checked.returncode == 0, checked.stdout
