"""Limits under a crowd and kill -9: the rows are held against them afterwards."""

import functools
import itertools
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPException

from tests.daemon.load import crew
from tests.daemon.running import Answer, Daemon, Edge, Mesh, people

JOBS = 90
PATIENCE_S = 120
LIMITS = {"disk": 1, "net": 2, "gpu": 3}
RATE = {"key": "api", "limit": 5, "period_ms": 400}

HELD = """
SELECT json_extract(w.concurrency, '$.key') AS name, c.issued_at_ms, c.ended_at_ms
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE w.concurrency IS NOT NULL
"""

USED = """
SELECT c.issued_at_ms
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE w.rate IS NOT NULL
 ORDER BY c.issued_at_ms
"""


def test_no_limit_is_exceeded_and_all_work_ends_under_a_crowd_and_kill_9(
    daemons: Callable[..., Daemon],
) -> None:
    """BC-007, BC-011, BC-012: eight workers that fail, release and complete; two kills."""
    daemon = daemons().start()
    mesh = people(daemon)
    edges = crew(daemon, mesh, 8)
    ask_for_work(daemon, mesh)
    stop = threading.Event()
    workers = [threading.Thread(target=work, args=(edge, stop, n)) for n, edge in enumerate(edges)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(2):
            time.sleep(0.7)
            daemon.kill()
            daemon.start()
        end_s = time.monotonic() + PATIENCE_S
        while unfinished(daemon):
            assert time.monotonic() < end_s, "work was left lying"
            time.sleep(0.1)
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    with closing(sqlite3.connect(daemon.data)) as rows:
        held, used = rows.execute(HELD).fetchall(), [row[0] for row in rows.execute(USED)]
    for name, most in most_at_once(held).items():
        assert most <= LIMITS[name]
    assert max(most_at_once(held).values()) > 1, "the crowd was a crowd"
    limit, period_ms = RATE["limit"], RATE["period_ms"]
    assert all(
        later - earlier >= period_ms for earlier, later in zip(used, used[limit:], strict=False)
    )
    assert daemon.check().returncode == 0, daemon.check().stdout


def ask_for_work(daemon: Daemon, mesh: Mesh) -> None:
    """Work of every key, some of it rated too."""
    names = itertools.cycle(LIMITS)
    body = []
    for number in range(JOBS):
        name = next(names)
        members: dict[str, object] = {"concurrency": {"key": name, "limit": LIMITS[name]}}
        if number % 4 == 0:
            members["rate"] = RATE
        body.append(
            {
                "definition_id": f"kind{number % 7}",
                "idempotency_key": f"job-{number}",
                "retry_policy": {"max_attempts": 100, "initial_backoff_ms": 20},
                **members,
            }
        )
    daemon.post("/v1/workloads/batch", {"workloads": body}, key=mesh.submitter_key)


def work(edge: Edge, stop: threading.Event, turn: int) -> None:
    """Take what comes; now and then fail, give back, or say the same twice."""

    def again(call: Callable[[], Answer]) -> Answer:
        """The same words until they are answered."""
        while True:
            try:
                answer = call()
            except (OSError, HTTPException, ValueError):
                answer = None
            if answer is not None and answer.status != 503:
                return answer
            time.sleep(0.02)

    for number in itertools.count(turn):
        if stop.is_set():
            return
        wish = {"wait_ms": 200, "max": 2, "request_id": f"pull-{number}"}
        answer = again(functools.partial(edge.call, "claims", wish))
        assert answer.status == 200
        for claim in answer.body["claims"]:
            verb = ("complete", "complete", "complete", "fail", "release")[number % 5]
            members = {"kind": "transient", "message": "again"} if verb == "fail" else {}
            start = {} if verb == "release" else {"start": True}
            for _ in range(1 + number % 2):
                again(functools.partial(edge.fenced, verb, claim, **members, **start))


def unfinished(daemon: Daemon) -> bool:
    """Whether some work is not COMPLETED yet."""
    with closing(sqlite3.connect(daemon.data)) as rows:
        sql = "SELECT count(*) FROM workloads WHERE state <> 'COMPLETED'"
        return bool(rows.execute(sql).fetchone()[0])


def most_at_once(held: list[tuple[str, int, int]]) -> dict[str, int]:
    """How many claims of each key ever lived at once. An end makes room in the same millisecond."""
    moves: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for name, issued_at_ms, ended_at_ms in held:
        moves[name] += [(issued_at_ms, 1), (ended_at_ms, -1)]
    return {
        name: max(itertools.accumulate(step for _, step in sorted(steps)))
        for name, steps in moves.items()
    }
