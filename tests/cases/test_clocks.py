"""The wall clock jumps, and an hour is told twice: leases and waits go on as they were."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cases.altered import Clocked
from tests.daemon.load import crew
from tests.daemon.running import Daemon, create, feltd, people

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
#: New York's rule, written out so that no zone file is needed.
NEW_YORK = "EST5EDT,M3.2.0,M11.1.0"


@pytest.fixture
def clocked(tmp_path: Path) -> Iterator[Callable[..., Clocked]]:
    """Makes a daemon whose wall clock the story sets."""
    made: list[Clocked] = []

    def make(**env: str) -> Clocked:
        made.append(Clocked(tmp_path / "feltd.db", "--tick-ms", "50", **env))
        return made[-1]

    yield make
    for daemon in made:
        daemon.close()


def test_a_day_forward_and_two_hours_back_end_nothing(clocked: Callable[..., Clocked]) -> None:
    """BC-024: ten workers with claims go on beating; what they hold ends in its own time."""
    daemon = clocked()
    # Before the story's first day, so that the grant outlives the jump.
    daemon.set_by(-3 * DAY_MS)
    daemon.init().start()
    mesh = people(daemon)
    edges = crew(daemon, mesh, 10, heartbeat_interval_ms=1_000, heartbeat_timeout_ms=2_000)
    held = []
    for edge in edges:
        create(daemon, mesh, edge.id)
        held.append(edge.pull(lease_ms=3_000, start=True)[0])
    begun = daemon.post(f"/v1/workers/{edges[0].id}/claims", {}, key=edges[0].key)
    for offset_ms in (-2 * DAY_MS, -2 * DAY_MS - 2 * HOUR_MS):
        daemon.set_by(offset_ms)
        for _ in range(4):
            for edge, claim in zip(edges, held, strict=True):
                beat = edge.beat(running_claims=[claim["claim_id"]], renew_leases=True)
                assert (beat.status, beat.body["fenced_claims"]) == (200, []), beat
                assert beat.body["worker"]["lifecycle"] == "READY"
            time.sleep(0.5)
        told = daemon.get("/health")
        assert (told["clock"], told["status"]) == ("unhealthy", "degraded")
        assert "CLOCK_STEPPED" in [reason["code"] for reason in told["reasons"]]
    later = daemon.post(f"/v1/workers/{edges[0].id}/claims", {}, key=edges[0].key)
    gone_ms = later["server_time_ms"] - begun["server_time_ms"]
    assert 4_000 <= gone_ms < 120_000, "lease time went on as time does"

    for edge, claim in zip(edges[1:], held[1:], strict=True):
        assert edge.fenced("complete", claim, output=1).status == 200
    while daemon.get(f"/v1/workloads/{held[0]['workload_id']}")["state"] != "READY":
        time.sleep(0.05)
        for edge in edges:
            edge.beat()
    lapsed = daemon.get(f"/v1/workloads/{held[0]['workload_id']}")["attempts"][0]
    assert lapsed["end"] in ("lease_expired", "worker_lost")
    assert 0 <= lapsed["ended_at_ms"] - lapsed["issued_at_ms"] < 120_000
    tokens = [claim["fencing_token"] for claim in held]
    create(daemon, mesh, "after")
    (after,) = edges[1].pull(workload_kinds=["extract"], max=1)
    assert [*tokens, after["fencing_token"]] == sorted({*tokens, after["fencing_token"]})
    assert daemon.check().returncode == 0, daemon.check().stdout


@pytest.mark.parametrize(
    "change",
    [datetime(2025, 11, 2, 6, tzinfo=UTC), datetime(2026, 3, 8, 7, tzinfo=UTC)],
    ids=["the hour told twice", "the hour left out"],
)
def test_the_local_hour_changes_and_nothing_happens_twice_or_never(
    clocked: Callable[..., Clocked], change: datetime
) -> None:
    """BC-027: a lease, a backoff and a not_before reach over the change, each ends once."""
    change_ms = int(change.timestamp() * 1_000)
    daemon = clocked(TZ=NEW_YORK)
    daemon.set_by(change_ms - HOUR_MS - time.time_ns() // 1_000_000)
    daemon.init().start()
    mesh = people(daemon)
    edge = crew(daemon, mesh, 1)[0]
    daemon.stop()
    daemon.set_by(change_ms - 3_000 - time.time_ns() // 1_000_000)
    daemon.start()

    later_ms = change_ms + 1_000
    policy = {"initial_backoff_ms": 2_000, "jitter": 0}
    waits = create(daemon, mesh, "waits", not_before_at_ms=later_ms, definition_id="later")
    lapses = create(daemon, mesh, "lapses", definition_id="lapses", retry_policy=policy)
    fails = create(daemon, mesh, "fails", definition_id="fails", retry_policy=policy)
    (lapsing,) = edge.pull(workload_kinds=["lapses"], lease_ms=1_000, start=True)
    (failing,) = edge.pull(workload_kinds=["fails"], start=True)
    told = edge.fenced("fail", failing, kind="transient", message="again").body
    again = {}
    while len(again) < 3:
        for claim in edge.pull(max=3, wait_ms=500, start=True):
            again[claim["workload_id"]] = (claim["attempt_number"], daemon.wall_ms())
            assert edge.fenced("complete", claim, output=1).status == 200

    assert {job: number for job, (number, _) in again.items()} == {
        waits["workload_id"]: 1,
        lapses["workload_id"]: 2,
        fails["workload_id"]: 2,
    }
    assert again[waits["workload_id"]][1] >= later_ms
    shown = {
        job: daemon.get(f"/v1/workloads/{job}", key=mesh.submitter_key)["attempts"] for job in again
    }
    assert told["eligible_at_ms"] == shown[fails["workload_id"]][0]["ended_at_ms"] + 2_000
    ends = [attempt["end"] for attempt in shown[lapsing["workload_id"]]]
    assert ends == ["lease_expired", "completed"]
    lapsed = shown[lapsing["workload_id"]][0]
    assert 1_000 <= lapsed["ended_at_ms"] - lapsed["issued_at_ms"] < 60_000


def test_what_people_read_is_told_in_utc_wherever_the_daemon_stands(
    daemons: Callable[..., Daemon],
) -> None:
    """BC-027: pages, commands, the names of backups and the log, in New York and in Auckland."""
    daemon = daemons("feltd.db", TZ="America/New_York").start()
    body = {"scope": "definition", "value": "late", "tenant_id": "t", "reason": "look"}
    at_ms = daemon.post("/v1/holds", body)["held_at_ms"]
    made = daemon.post("/v1/backups")

    def stamp(ms: int, form: str) -> str:
        return datetime.fromtimestamp(ms / 1_000, UTC).strftime(form)

    shown = daemon.call("GET", "/console/holds", Accept="text/html").body
    assert stamp(at_ms, "%Y-%m-%dT%H:%M:%S") in shown
    assert stamp(at_ms, "%Y-%m-%d %H:%M:%S UTC") in shown
    assert stamp(made["created_at_ms"], "feltd-%Y%m%dT%H%M%SZ-") in made["path"]
    (row,) = [one for one in daemon.get("/v1/audit")["items"] if one["action"] == "backup"]
    told = feltd("audit", "--data", str(daemon.data), env={"TZ": "Pacific/Auckland"})
    assert stamp(row["at_ms"], "%Y-%m-%d %H:%M:%S") in told.stdout, told.stderr
    for line in daemon.told().splitlines():
        assert json.loads(line)["at"].endswith("Z")


def test_a_jump_of_the_clock_is_told_to_people_and_locks_none_out(
    clocked: Callable[..., Clocked],
) -> None:
    """BC-024: a day forward, two hours back: sessions are of wall time, a login is always open."""
    daemon = clocked().init().start()
    login = {"username": "ada", "password": "a horse, a battery, a staple"}
    daemon.post("/v1/users", login | {"roles": {"*": "operator"}})
    first = daemon.post("/v1/auth/login", login, key="")["session"]
    hold = {"scope": "definition", "value": "late", "tenant_id": "t", "reason": "look"}
    daemon.post("/v1/holds", hold)
    for offset_ms, status in ((DAY_MS, 401), (-2 * HOUR_MS, 200)):
        daemon.set_by(offset_ms)
        assert daemon.call("GET", "/v1/auth/me", key=first).status == status
        session = daemon.post("/v1/auth/login", login, key="")["session"]
        for page in ("", "/holds", "/events", "/workers"):
            shown = daemon.call("GET", f"/console{page}", key=session, Accept="text/html")
            assert shown.status == 200, page
        assert len(daemon.get("/v1/holds", key=session)["items"]) == 1
        assert "CLOCK_STEPPED" in [reason["code"] for reason in daemon.get("/health")["reasons"]]
    daemon.set_by(0)
    told = daemon.check()
    assert told.returncode == 0, told.stdout
