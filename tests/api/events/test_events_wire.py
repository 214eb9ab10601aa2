"""GET /v1/events as page, long poll and stream, at a real daemon, by real keys."""

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.api.events.listening import (
    Listener,
    Reader,
    gauge,
    reader,
    resident_bytes,
    until,
)
from tests.daemon.running import Answer, Daemon, Edge, Mesh, create, people

#: Idle streams that are counted and weighed; of one key at most 64.
CROWD = 240
#: What one idle stream may cost; 21 kB was measured.
STREAM_BYTES_MAX = 64 * 1024

Daemons = Callable[..., Daemon]


def events(daemon: Daemon, key: str, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = daemon.get(f"/v1/events{query}", key=key)
    return found


def forget(data: Path, seq: int) -> None:
    """What a retention would do: take the oldest events."""
    with closing(sqlite3.connect(data, isolation_level=None)) as file:
        file.execute("DELETE FROM events WHERE seq <= ?", [seq])


def later(act: Callable[[], Any]) -> "threading.Thread":
    """Do something a little later, while the test waits for it."""

    def run() -> None:
        time.sleep(0.2)
        act()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


# -- pages ---------------------------------------------------------------------------------------


def test_a_page_tells_what_happened_and_both_ends(daemon: Daemon, crew: Mesh, mine: Reader) -> None:
    job = create(daemon, crew, "page-1")

    head = events(daemon, mine.key)["head"]
    page = events(daemon, mine.key, f"?after={head - 1}")

    assert page["oldest"] == 1
    assert page["head"] == head
    (event,) = page["items"]
    assert event == {
        "seq": head,
        "at_ms": event["at_ms"],
        "kind": "create",
        "tenant_id": "t",
        "application_id": "a",
        "workload_id": job["workload_id"],
        "to": "READY",
        "eligible_at_ms": job["eligible_at_ms"],
        "actor": "service:crew",
    }


def test_pages_follow_each_other_without_gap(daemon: Daemon, crew: Mesh, mine: Reader) -> None:
    jobs = [create(daemon, crew, f"gap-{number}")["workload_id"] for number in range(7)]

    found, after = [], 0
    while page := events(daemon, mine.key, f"?after={after}&limit=3")["items"]:
        found += page
        after = page[-1]["seq"]

    numbers = [event["seq"] for event in found]
    assert numbers == sorted(set(numbers))
    assert [event["workload_id"] for event in found if event["kind"] == "create"][-7:] == jobs


def test_a_reader_sees_nothing_of_another_tenant(daemon: Daemon, crew: Mesh, mine: Reader) -> None:
    create(daemon, crew, "tenant-1")
    other = reader(daemon, "other")
    both = reader(daemon, "other", "t")

    assert events(daemon, other.key)["items"] == []
    assert events(daemon, both.key, "?limit=500") == events(daemon, mine.key, "?limit=500")
    header = {"X-Feltd-Tenant": "other"}
    assert daemon.get("/v1/events", key=both.key, **header)["items"] == []
    assert daemon.get("/v1/events?tenant_id=other", key=both.key)["items"] == []
    assert daemon.call("GET", "/v1/events?tenant_id=t", key=other.key).body["code"] == "FORBIDDEN"


def test_who_may_not_read_events_is_refused(daemon: Daemon, crew: Mesh) -> None:
    edge = Edge(daemon, "reader", crew.registrar_key)

    for key in (crew.submitter_key, edge.key):
        answer = daemon.call("GET", "/v1/events", key=key)
        assert (answer.status, answer.body["code"]) == (403, "FORBIDDEN")


@pytest.mark.parametrize(
    "query", ["after=-1", "after=x", "limit=0", "limit=501", "wait_ms=30001", "kind=create"]
)
def test_a_query_that_does_not_fit_is_refused(daemon: Daemon, mine: Reader, query: str) -> None:
    answer = daemon.call("GET", f"/v1/events?{query}", key=mine.key)

    assert (answer.status, answer.body["code"]) == (422, "REQUEST_INVALID")


def test_a_number_past_the_end_is_told_apart_from_a_quiet_feed(
    daemon: Daemon, mine: Reader
) -> None:
    head = events(daemon, mine.key)["head"]

    answer = daemon.call("GET", f"/v1/events?after={head + 1_000}", key=mine.key)

    assert (answer.status, answer.body["code"]) == (410, "EVENTS_COMPACTED")
    assert answer.body["head"] >= head
    assert answer.body["oldest"] == 1


def test_what_retention_took_is_told_with_where_the_feed_begins(daemons: Daemons) -> None:
    daemon = daemons().start()
    crew, mine = people(daemon), reader(daemon, "t")
    for number in range(5):
        create(daemon, crew, f"old-{number}")
    daemon.stop()
    forget(daemon.data, 3)
    daemon.start()

    for asked in ("?after=0", "?after=2"):
        answer = daemon.call("GET", f"/v1/events{asked}", key=mine.key)
        assert (answer.status, answer.body["code"]) == (410, "EVENTS_COMPACTED")
        assert answer.body["oldest"] == 4
        assert answer.body["next"] == "ask_operator"
        with Listener(daemon.url, mine.key, int(asked[-1])) as listener:
            assert listener.status == 410
    assert [one["seq"] for one in events(daemon, mine.key)["items"]] == [4, 5]
    with Listener(daemon.url, mine.key) as listener:
        assert [one["seq"] for one in listener.take(2)] == [4, 5]


# -- long polls ----------------------------------------------------------------------------------


def test_a_long_poll_ends_with_the_event_it_waits_for(
    daemon: Daemon, crew: Mesh, mine: Reader
) -> None:
    head = events(daemon, mine.key)["head"]
    making = later(lambda: create(daemon, crew, "poll-1"))

    page = events(daemon, mine.key, f"?after={head}&wait_ms=20000")

    making.join()
    assert [event["kind"] for event in page["items"]] == ["create"]


def test_a_long_poll_sleeps_through_what_others_do(
    daemon: Daemon, crew: Mesh, mine: Reader
) -> None:
    other = reader(daemon, "quiet")
    head = events(daemon, mine.key)["head"]
    making = later(lambda: create(daemon, crew, "poll-2"))

    page = events(daemon, other.key, f"?after={head}&wait_ms=700")

    making.join()
    assert page["items"] == []
    assert page["head"] > head


def test_a_waiting_reader_holds_no_permit(daemon: Daemon, crew: Mesh, mine: Reader) -> None:
    head = events(daemon, mine.key)["head"]
    query = f"/v1/events?after={head}&wait_ms=20000"
    waiting = [threading.Thread(target=lambda: daemon.get(query, key=mine.key)) for _ in range(70)]
    for thread in waiting:
        thread.start()

    until(daemon, "feltd_long_polls", 70)
    assert gauge(daemon, "feltd_in_flight") == 0

    create(daemon, crew, "poll-3")
    for thread in waiting:
        thread.join()
    until(daemon, "feltd_long_polls", 0)


def test_a_key_that_ends_ends_its_long_poll(daemon: Daemon) -> None:
    mine = reader(daemon, "t")
    head = events(daemon, mine.key)["head"]
    ending = later(lambda: daemon.call("DELETE", f"/v1/keys/{mine.key_id}"))

    answer = daemon.call("GET", f"/v1/events?after={head}&wait_ms=30000", key=mine.key)

    ending.join()
    assert (answer.status, answer.body["code"]) == (401, "UNAUTHENTICATED")
    assert [one["code"] for one in answer.body["reasons"]] == ["revoked"]


def test_a_stop_ends_long_polls_and_streams_at_once(daemons: Daemons) -> None:
    daemon = daemons().start()
    mine = reader(daemon, "t")
    found: list[Answer] = []
    polling = threading.Thread(
        target=lambda: found.append(
            daemon.call("GET", "/v1/events?after=0&wait_ms=30000", key=mine.key)
        )
    )
    polling.start()
    listeners = [Listener(daemon.url, mine.key) for _ in range(20)]
    until(daemon, "feltd_long_polls", 1)

    assert daemon.stop() == 0

    polling.join()
    assert found[0].status == 200
    assert {one.farewell()["code"] for one in listeners} == {"SERVICE_OVERLOADED"}
    assert "did not end in time" not in daemon.told()


# -- streams -------------------------------------------------------------------------------------


def test_a_stream_gives_what_was_and_what_comes(daemon: Daemon, crew: Mesh, mine: Reader) -> None:
    was = create(daemon, crew, "stream-1")["workload_id"]
    head = events(daemon, mine.key)["head"]

    with Listener(daemon.url, mine.key, head - 1) as listener:
        assert listener.status == 200
        assert listener.answer.headers["content-type"] == "text/event-stream"
        assert listener.answer.headers["cache-control"] == "no-store"
        assert [one["workload_id"] for one in listener.take(1)] == [was]
        comes = [create(daemon, crew, f"stream-{number}")["workload_id"] for number in (2, 3)]
        assert [one["workload_id"] for one in listener.take(2)] == comes


def test_the_number_of_each_event_is_where_a_stream_goes_on(
    daemon: Daemon, crew: Mesh, mine: Reader
) -> None:
    head = events(daemon, mine.key)["head"]
    for number in range(3):
        create(daemon, crew, f"resume-{number}")
    with Listener(daemon.url, mine.key, head) as listener:
        heard = next(iter(listener))
    assert heard.id == heard.data["seq"] == head + 1

    # The URL of a browser stays as it is: the header says where it has come to.
    with Listener(daemon.url, mine.key, head, last=heard.id) as listener:
        assert [one["seq"] for one in listener.take(2)] == [head + 2, head + 3]


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "9" * 30])
def test_a_number_that_is_none_opens_no_stream(daemon: Daemon, mine: Reader, last: str) -> None:
    headers = {"Accept": "text/event-stream", "Last-Event-ID": last}
    answer = daemon.call("GET", "/v1/events", key=mine.key, **headers)

    assert (answer.status, answer.body["code"]) == (422, "REQUEST_INVALID")


def test_json_stays_json_for_whoever_asks_for_it_first(daemon: Daemon, mine: Reader) -> None:
    for accept in ("*/*", "application/json", "application/json, text/event-stream"):
        answer = daemon.call("GET", "/v1/events", key=mine.key, Accept=accept)
        assert answer.headers["content-type"] == "application/json"


def test_a_long_history_comes_whole_and_in_order(daemon: Daemon, crew: Mesh, mine: Reader) -> None:
    bodies = [
        {"definition_id": "extract", "idempotency_key": f"long-{number}"} for number in range(700)
    ]
    head = events(daemon, mine.key)["head"]
    daemon.post("/v1/workloads/batch", {"workloads": bodies}, key=crew.submitter_key)

    with Listener(daemon.url, mine.key, head) as listener:
        assert [one["seq"] for one in listener.take(700)] == list(range(head + 1, head + 701))


def test_a_revoked_key_ends_its_streams_and_says_so(daemon: Daemon) -> None:
    mine, other = reader(daemon, "t"), reader(daemon, "t")
    with Listener(daemon.url, mine.key) as ended, Listener(daemon.url, other.key) as going_on:
        daemon.call("DELETE", f"/v1/keys/{mine.key_id}")

        said = ended.farewell()
        assert (said["code"], said["next"]) == ("UNAUTHENTICATED", "stop")
        assert [one["code"] for one in said["reasons"]] == ["revoked"]
        assert going_on.answer.fp is not None
    with Listener(daemon.url, mine.key) as listener:
        assert listener.status == 401


def test_a_key_that_runs_out_ends_its_streams(daemon: Daemon) -> None:
    mine = reader(daemon, "t", expires_at_ms=int(time.time() * 1_000) + 1_200)

    with Listener(daemon.url, mine.key) as listener:
        said = listener.farewell()

    assert [one["code"] for one in said["reasons"]] == ["expired"]


def test_streams_of_one_key_are_bounded(daemon: Daemon) -> None:
    mine, other = reader(daemon, "t"), reader(daemon, "t")
    listeners = [Listener(daemon.url, mine.key) for _ in range(64)]
    try:
        with Listener(daemon.url, mine.key) as refused:
            assert refused.status == 503
            assert refused.answer.headers["retry-after"] == "5"
            assert b"SERVICE_OVERLOADED" in refused.answer.read()
        with Listener(daemon.url, other.key) as listener:
            assert listener.status == 200
    finally:
        for one in listeners:
            one.close()
    until(daemon, "feltd_streams", 0)
    with Listener(daemon.url, mine.key) as listener:
        assert listener.status == 200


def test_idle_streams_hold_little_and_leave_nothing(daemons: Daemons) -> None:
    """BC-101: whoever goes away is seen at once, however he goes."""
    daemon = daemons().start()
    crew = people(daemon)
    keys = [reader(daemon, "t").key for _ in range(CROWD // 60)]
    head = events(daemon, keys[0])["head"]
    before = resident_bytes(daemon)
    listeners = [Listener(daemon.url, key, head) for key in keys for _ in range(60)]

    until(daemon, "feltd_streams", CROWD)
    assert gauge(daemon, "feltd_in_flight") == 0
    assert resident_bytes(daemon) - before < CROWD * STREAM_BYTES_MAX
    create(daemon, crew, "to-all")
    for listener in listeners:
        assert [one["kind"] for one in listener.take(1)] == ["create"]

    for listener in listeners:
        listener.close()
    until(daemon, "feltd_streams", 0)


def test_without_keys_anybody_follows_everything(daemons: Daemons) -> None:
    daemon = daemons("open.db", "--no-auth").start()
    daemon.post("/v1/workloads", {"definition_id": "x", "idempotency_key": "1"}, key="")

    with Listener(daemon.url, "none") as listener:
        assert [one["kind"] for one in listener.take(1)] == ["create"]


def test_listening_is_not_counted_as_time_to_an_answer(daemons: Daemons) -> None:
    daemon = daemons().start()
    mine = reader(daemon, "t")
    events(daemon, mine.key)
    Listener(daemon.url, mine.key).close()
    until(daemon, "feltd_streams", 0)

    told = str(daemon.get("/metrics"))

    assert 'feltd_requests_total{operation="list_events",status="200"} 1.0' in told
    assert 'feltd_requests_total{operation="list_events_stream",status="200"} 1.0' in told


def test_a_reader_of_a_file_that_was_put_back_is_told(daemons: Daemons, tmp_path: Path) -> None:
    daemon = daemons().start()
    crew, mine = people(daemon), reader(daemon, "t")
    create(daemon, crew, "kept")
    daemon.stop()
    backup = tmp_path / "backup.db"
    shutil.copy(daemon.data, backup)
    daemon.start()
    for number in range(3):
        create(daemon, crew, f"lost-{number}")
    known = events(daemon, mine.key)["head"]
    daemon.stop()
    shutil.copy(backup, daemon.data)
    daemon.start()
    for number in range(9):
        create(daemon, crew, f"new-{number}")

    answer = daemon.call("GET", f"/v1/events?after={known}", key=mine.key)

    assert (answer.status, answer.body["code"]) == (410, "EVENTS_COMPACTED")
    # Whoever stands where the backup ends misses nothing.
    assert len(events(daemon, mine.key, "?after=1")["items"]) == 9
    daemon.stop()
    assert daemon.check().returncode == 0
