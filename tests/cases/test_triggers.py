"""Changes that start work, with more than one who starts it and with some who stand still."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.daemon.cutting import wait
from tests.daemon.running import Daemon, feltd
from tests.daemon.writers import COLLECTION, CURSORS, STARTED, granted, rows, trigger

CHANGES = 100
#: Who evaluates at the same moment, beside the keeper and a process of its own.
CALLERS = 3
ROUNDS = 4
ROUNDS_BY_HAND = 50
FLOORS = "SELECT floor_seq, head_seq FROM change_logs"
#: Nothing is kept for longer than that, and it is cleared as often.
SHORT = ("--retain-changes-ms", "100", "--consumer-limit-ms", "100", "--compact-every-ms", "100")


def changed(daemon: Daemon, key: str, number: int, count: int = CHANGES) -> None:
    """So many changes in one transaction."""
    mutations = [
        {"op": "put", "collection": COLLECTION, "id": f"r{place}", "value": {"n": number}}
        for place in range(count)
    ]
    daemon.post("/v1/transactions?tenant_id=t", {"mutations": mutations}, key=key)


def judged(daemon: Daemon) -> bool:
    """Whether every enabled trigger has judged everything."""
    return all(cursor == head for _, cursor, head, on, _ in rows(daemon, CURSORS) if on)


def evaluated_at_once(daemon: Daemon, rounds: int) -> None:
    key = granted(daemon)
    trigger(daemon, key, "each", source_collection=COLLECTION, change_kind="any")
    produced: list[tuple[str, int]] = []

    def evaluate() -> None:
        answer = daemon.post("/v1/triggers/evaluate?tenant_id=t", key=key)
        produced.extend((one["trigger_id"], one["seq"]) for one in answer["produced"])

    def by_process() -> None:
        ran = feltd("trigger", "evaluate", "--data", str(daemon.data), "--tenant", "t")
        assert ran.returncode == 0, ran.stderr
        produced.extend((one["trigger_id"], one["seq"]) for one in json.loads(ran.stdout))

    for number in range(rounds):
        threads = [threading.Thread(target=evaluate) for _ in range(CALLERS)]
        if number % 4 == 0:
            threads.append(threading.Thread(target=by_process))
        changed(daemon, key, number)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait(lambda: judged(daemon), "every change is judged")
        made = Counter(key for _, key, _ in rows(daemon, STARTED))
        assert len(made) == (number + 1) * CHANGES
        assert set(made.values()) == {1}
    assert set(Counter(produced).values()) <= {1}, "nobody is told of what somebody else made"
    assert daemon.check().returncode == 0, daemon.check().stdout


def test_evaluations_at_once_make_each_workload_once(daemon: Daemon) -> None:
    """BC-061: the keeper, three callers and a process evaluate the same hundred changes."""
    evaluated_at_once(daemon, ROUNDS)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_evaluations_at_once_fifty_times_make_each_workload_once(daemon: Daemon) -> None:
    """BC-061, fifty times."""
    evaluated_at_once(daemon, ROUNDS_BY_HAND)


def test_a_trigger_that_stands_still_misses_nothing(daemons: Callable[..., Daemon]) -> None:
    """BC-065: disabled at change 10, a thousand changes, compaction, enabled: none is skipped."""
    daemon = daemons("feltd.db", *SHORT).start()
    key = granted(daemon)
    for name in ("goes on", "stands still"):
        name = name.replace(" ", "-")
        trigger(daemon, key, name, source_collection=COLLECTION, change_kind="any")
    changed(daemon, key, 0, 10)
    wait(lambda: judged(daemon), "ten changes are judged")
    path = "/v1/triggers/stands-still"
    daemon.post(f"{path}/disable?tenant_id=t", {"reason": "maintenance"}, key=key)

    changed(daemon, key, 1, 990)
    wait(lambda: judged(daemon), "the other one has judged them")
    wait(lambda: rows(daemon, FLOORS) == [(10, 1_000)], "the log is cut up to who stands still")
    assert daemon.check().returncode == 0, daemon.check().stdout
    status = daemon.get("/v1/triggers/status?tenant_id=t", key=key)
    assert status["cursors"] == {"goes-on": 1_000, "stands-still": 10}
    assert status["disabled"] == {"stands-still": "maintenance"}

    daemon.post(f"{path}/enable?tenant_id=t", key=key)
    wait(lambda: judged(daemon), "it has caught up")
    wait(lambda: rows(daemon, FLOORS) == [(1_000, 1_000)], "now nobody needs the log")
    made = Counter(name for name, *_ in rows(daemon, STARTED))
    assert made == {"goes-on": 1_000, "stands-still": 1_000}
    assert daemon.check().returncode == 0, daemon.check().stdout


def test_a_consumer_that_never_acknowledges_is_given_up_in_the_open(
    daemons: Callable[..., Daemon],
) -> None:
    """BC-065: it delays compaction to its limit, then it is told where the log begins."""
    daemon = daemons("feltd.db", *SHORT[:2], "--consumer-limit-ms", "1500", *SHORT[4:]).start()
    key = granted(daemon)
    consumer: dict[str, Any] = {"ack": 0}
    put = daemon.call("PUT", "/v1/consumers/late?tenant_id=t", consumer, key=key)
    assert put.status == 201, put
    changed(daemon, key, 0)
    held = daemon.post("/v1/compactions", {"dry_run": True})
    assert held["pruned"].get("changes", 0) == 0

    wait(lambda: rows(daemon, FLOORS) == [(CHANGES, CHANGES)], "the log is cut")
    for path in ("/v1/consumers/late?tenant_id=t", "/v1/changes?tenant_id=t&after=0"):
        told = daemon.call("GET", path, key=key)
        assert (told.status, told.body["code"]) == (410, "CHANGES_COMPACTED"), told
        assert (told.body["oldest"], told.body["head"]) == (CHANGES + 1, CHANGES)
    again = daemon.call("PUT", "/v1/consumers/late?tenant_id=t", {"ack": CHANGES}, key=key)
    assert again.status == 200, again
    assert daemon.check().returncode == 0, daemon.check().stdout
