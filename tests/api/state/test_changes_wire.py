"""GET /v1/changes as page, long poll and stream, and consumers, at a real daemon, by real keys."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.api.events.listening import Listener, until
from tests.api.state.conftest import Tenant
from tests.daemon.running import Answer, Daemon


def changes(tenant: Tenant, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = tenant.get(f"/v1/changes{query}")
    return found


def listen(tenant: Tenant, query: str = "", **where: Any) -> Listener:
    return Listener(tenant.daemon.url, tenant.key, path=f"/v1/changes{query}", **where)


def code(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.body["code"]


@contextmanager
def meanwhile(act: Callable[[], Any]) -> Iterator[None]:
    """Do something a little later, while the story waits for it."""

    def run() -> None:
        time.sleep(0.2)
        act()

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()


def cut(data: Path, tenant_id: str, seq: int) -> None:
    """What compaction does to a log."""
    with closing(sqlite3.connect(data, timeout=10, isolation_level=None)) as file:
        sql = "UPDATE change_logs SET floor_seq = ? WHERE tenant_id = ?"
        assert file.execute(sql, [seq, tenant_id]).rowcount == 1
        file.execute("DELETE FROM changes WHERE tenant_id = ? AND seq <= ?", [tenant_id, seq])


@pytest.fixture
def fresh(daemon: Daemon, request: pytest.FixtureRequest) -> Tenant:
    """A tenant of this story alone."""
    return Tenant(daemon, f"t-{abs(hash(request.node.name))}")


# -- pages ---------------------------------------------------------------------------------------


def test_a_page_tells_what_became_of_what(fresh: Tenant) -> None:
    fresh.put("orders/a", {"n": 1})
    fresh.put("orders/a", {"n": 2})
    fresh.delete("orders/a")

    page = changes(fresh)

    assert (page["head"], page["oldest"]) == (3, 1)
    assert page["instance_id"] == fresh.get("/v1/state/version")["instance_id"]
    assert [(one["seq"], one["kind"], one["before"], one["after"]) for one in page["items"]] == [
        (1, "created", None, {"n": 1}),
        (2, "updated", {"n": 1}, {"n": 2}),
        (3, "deleted", {"n": 2}, None),
    ]
    first = page["items"][0]
    assert first == {
        "seq": 1,
        "kind": "created",
        "collection": "orders",
        "id": "a",
        "version": 1,
        "before": None,
        "after": {"n": 1},
        "at_ms": first["at_ms"],
        "actor": f"service:{fresh.key_id}",
        "cause_workload_id": None,
        "depth": 0,
    }
    assert [one["seq"] for one in changes(fresh, "?after=1&limit=1")["items"]] == [2]
    assert changes(fresh, "?after=3")["items"] == []
    assert changes(fresh, "?collection=none") | {"items": []} == changes(fresh, "?after=3")


def test_a_reader_that_cannot_go_on_is_told_where_the_log_is(fresh: Tenant) -> None:
    for number in range(4):
        fresh.put("orders/a", number)
    cut(fresh.daemon.data, fresh.tenant_id, 2)

    for query in ("?after=0", "?after=1", "?after=5"):
        answer = fresh.call("GET", f"/v1/changes{query}")
        assert code(answer) == (410, "CHANGES_COMPACTED")
        assert (answer.body["oldest"], answer.body["head"]) == (3, 4)
        assert answer.body["next"] == "ask_operator"
        with listen(fresh, query) as listener:
            assert listener.status == 410
    for query in ("", "?after=2"):
        assert [one["seq"] for one in changes(fresh, query)["items"]] == [3, 4]
    with listen(fresh, last=1) as listener:
        assert listener.status == 410


@pytest.mark.parametrize(
    "query",
    ["after=-1", "after=x", "limit=0", "limit=501", "wait_ms=30001", "collection=a%20b", "no=1"],
)
def test_a_query_that_does_not_fit_is_refused(acme: Tenant, query: str) -> None:
    assert code(acme.call("GET", f"/v1/changes?{query}")) == (422, "REQUEST_INVALID")


def test_who_may_not_read_is_refused(daemon: Daemon, fresh: Tenant) -> None:
    writer = Tenant(daemon, fresh.tenant_id, "state:write")

    for path in ("/v1/changes", "/v1/state/version", "/v1/consumers", "/v1/consumers/a"):
        assert code(writer.call("GET", path)) == (403, "FORBIDDEN")
    with listen(writer) as listener:
        assert listener.status == 403


def test_readers_of_several_tenants_say_which(daemon: Daemon, fresh: Tenant) -> None:
    fresh.put("orders/a", 1)
    for path in ("/v1/changes", "/v1/state/version", "/v1/consumers"):
        assert daemon.call("GET", path).status == 422
    found = daemon.get("/v1/changes", X_Feltd_Tenant=fresh.tenant_id)
    assert [one["seq"] for one in found["items"]] == [1]
    assert daemon.get("/v1/changes?tenant_id=nobody")["head"] == 0


def test_large_changes_come_in_more_pages(fresh: Tenant) -> None:
    """A page ends within 4 MiB; whoever goes on behind its last change misses nothing."""
    for number in range(12):
        fresh.put("orders/a", str(number) + "x" * 250_000)

    found, after = [], 0
    while items := changes(fresh, f"?after={after}&limit=500")["items"]:
        assert sum(len(one["after"]) + len(one["before"] or "") for one in items) < 4.5 * 2**20
        found += [one["seq"] for one in items]
        after = found[-1]
    assert found == list(range(1, 13))
    with listen(fresh, after=0) as listener:
        assert [one["seq"] for one in listener.take(12)] == found


# -- long polls ----------------------------------------------------------------------------------


def test_a_long_poll_ends_with_the_change_it_waits_for(fresh: Tenant) -> None:
    with meanwhile(lambda: fresh.put("orders/a", 1)):
        page = changes(fresh, "?after=0&wait_ms=20000")
    assert [one["seq"] for one in page["items"]] == [1]


def test_a_long_poll_of_one_collection_sleeps_through_the_others(fresh: Tenant) -> None:
    def write() -> None:
        for number in range(5):
            fresh.put("noise/a", number)
        fresh.put("orders/a", 1)

    with meanwhile(write):
        page = changes(fresh, "?after=0&collection=orders&wait_ms=20000")
    assert [(one["seq"], one["collection"]) for one in page["items"]] == [(6, "orders")]


def test_a_long_poll_that_hears_nothing_ends_at_the_head(fresh: Tenant, other: Tenant) -> None:
    fresh.put("noise/a", 1)
    with meanwhile(lambda: (other.put("orders/a", time.time()), fresh.put("noise/a", 2))):
        page = changes(fresh, "?after=0&collection=orders&wait_ms=700")
    assert (page["items"], page["head"]) == ([], 2)


def test_a_waiting_reader_holds_no_permit_and_ends_with_its_key(daemon: Daemon) -> None:
    reader = Tenant(daemon, "revoked")
    told: list[Answer] = []
    query = "/v1/changes?after=0&wait_ms=20000"
    crowd = [
        threading.Thread(target=lambda: told.append(reader.call("GET", query))) for _ in range(20)
    ]
    for thread in crowd:
        thread.start()
    until(daemon, "feltd_long_polls", 20)
    until(daemon, "feltd_in_flight", 0)

    daemon.call("DELETE", f"/v1/keys/{reader.key_id}")

    for thread in crowd:
        thread.join()
    assert {code(answer) for answer in told} == {(401, "UNAUTHENTICATED")}


# -- streams -------------------------------------------------------------------------------------


def test_a_stream_tells_what_was_and_what_comes(fresh: Tenant) -> None:
    fresh.put("orders/a", 1)
    with listen(fresh) as listener:
        assert [one["after"] for one in listener.take(1)] == [1]
        fresh.put("orders/a", 2)
        fresh.put("other/a", 3)
        assert [one["after"] for one in listener.take(2)] == [2, 3]


def test_a_stream_goes_on_behind_the_last_id(fresh: Tenant) -> None:
    for number in range(4):
        fresh.put("orders/a", number)
    with listen(fresh, after=0) as listener:
        ids = []
        for heard in listener:
            ids += [heard.id] if heard.data is not None else []
            if len(ids) == 2:
                break
    with listen(fresh, after=0, last=ids[-1]) as listener:
        assert [one["seq"] for one in listener.take(2)] == [3, 4]
    assert ids == [1, 2]
    with listen(fresh, last="x") as listener:
        assert listener.status == 422


def test_a_stream_of_one_collection_tells_that_alone(fresh: Tenant, other: Tenant) -> None:
    with listen(fresh, "?collection=orders") as listener:
        fresh.put("noise/a", 1)
        other.put("orders/a", time.time())
        fresh.put("orders/a", 2)
        assert [(one["seq"], one["after"]) for one in listener.take(1)] == [(2, 2)]


def test_a_stream_ends_with_its_key(daemon: Daemon) -> None:
    reader = Tenant(daemon, "revoked")
    with listen(reader) as listener:
        daemon.call("DELETE", f"/v1/keys/{reader.key_id}")
        assert listener.farewell()["code"] == "UNAUTHENTICATED"


def test_many_writers_leave_no_gap_for_any_reader(fresh: Tenant) -> None:
    """Writers race for numbers; every reader, however it reads, sees each once and in order."""
    each, writers = 25, 4

    def write(name: int) -> None:
        for number in range(each):
            fresh.put(f"orders/w{name}", number)

    heard: dict[str, list[int]] = {"stream": [], "poll": []}

    def stream() -> None:
        with listen(fresh, after=0) as listener:
            heard["stream"] = [one["seq"] for one in listener.take(each * writers)]

    def poll() -> None:
        after = 0
        while after < each * writers:
            page = changes(fresh, f"?after={after}&wait_ms=20000&limit=7")
            heard["poll"] += [one["seq"] for one in page["items"]]
            after = heard["poll"][-1] if heard["poll"] else 0

    threads = [threading.Thread(target=write, args=(name,)) for name in range(writers)]
    threads += [threading.Thread(target=stream), threading.Thread(target=poll)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = list(range(1, each * writers + 1))
    assert heard == {"stream": numbers, "poll": numbers}


# -- consumers -----------------------------------------------------------------------------------


def test_a_consumer_keeps_its_place(fresh: Tenant) -> None:
    for number in range(3):
        fresh.put("orders/a", number)
    at = "/v1/consumers/copy"

    assert code(fresh.call("GET", at)) == (404, "CONSUMER_NOT_FOUND")
    begun = fresh.call("PUT", at, {"ack": 0})
    moved = fresh.call("PUT", at, {"ack": 2})
    assert (begun.status, moved.status) == (201, 200)
    assert moved.body == {
        "name": "copy",
        "ack": 2,
        "head": 3,
        "lag": 1,
        "acked_at_ms": moved.body["acked_at_ms"],
        "created_at_ms": begun.body["created_at_ms"],
        "dropped_at_ms": None,
    }
    assert fresh.get(at) == moved.body
    assert fresh.get("/v1/consumers") == {"items": [moved.body], "next_cursor": None}
    behind = fresh.call("PUT", at, {"ack": 1})
    assert code(behind) == (409, "CONSUMER_BEHIND")
    assert behind.body["ack"] == 2
    for odd in ({"ack": 4}, {"ack": -1}, {"ack": "1"}, {}, {"ack": 1, "x": 1}, {"ack": 2**53}):
        assert code(fresh.call("PUT", at, odd)) == (422, "RECORD_INVALID")
    assert fresh.call("PUT", "/v1/consumers/a%20b", {"ack": 0}).status == 422
    for _ in range(2):
        assert fresh.call("DELETE", at).status == 204
    assert fresh.get("/v1/consumers")["items"] == []


def test_a_consumer_of_another_tenant_is_none(fresh: Tenant, other: Tenant) -> None:
    fresh.put("orders/a", 1)
    fresh.call("PUT", "/v1/consumers/mine", {"ack": 1})

    made_up = other.call("GET", "/v1/consumers/made-up").body
    foreign = other.call("GET", "/v1/consumers/mine").body
    del made_up["request_id"], foreign["request_id"]
    assert made_up == foreign
    assert other.call("DELETE", "/v1/consumers/mine").status == 204
    assert fresh.get("/v1/consumers/mine")["ack"] == 1


def test_a_new_consumer_below_the_log_is_told_where_it_begins(fresh: Tenant) -> None:
    for number in range(3):
        fresh.put("orders/a", number)
    cut(fresh.daemon.data, fresh.tenant_id, 2)

    answer = fresh.call("PUT", "/v1/consumers/late", {"ack": 1})

    assert code(answer) == (410, "CHANGES_COMPACTED")
    assert (answer.body["oldest"], answer.body["head"]) == (3, 3)
    assert fresh.call("PUT", "/v1/consumers/late", {"ack": 2}).status == 201
