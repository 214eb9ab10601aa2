"""Neither why nor the backlog looks through work: every statement runs along an index, bounded."""

import re
from types import ModuleType

import pytest

from feltd.mesh import (
    backlog,
    barriers,
    blockages,
    counting,
    crowd,
    heads,
    idleness,
    unfinished,
    waiting,
    why,
)
from tests.mesh.why import stories
from tests.mesh.workloads.test_depth import deepen
from tests.mesh.world import Mesh

PARAMETER = re.compile(r":([a-z0-9_]+)")
#: Kinds of every tenant, for an operator of all: no work is read by it.
OF_EVERYBODY = {"SCAN d"}
#: The list that a statement has made itself, within its LIMIT.
OWN_LISTS = re.compile(r"SCAN (\(subquery-\d+\)|b|h|d|r)$")
ROOMS = (
    backlog, barriers, blockages, counting, crowd, heads, idleness, unfinished, waiting, why,
)  # fmt: skip

COPIES = """
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :copies)
INSERT INTO workloads ({columns})
SELECT {values}
  FROM workloads w, n
 WHERE w.workload_id = :workload_id
"""


def statements(room: ModuleType) -> list[tuple[str, str]]:
    return [
        (f"{room.__name__}.{name}", text)
        for name, text in vars(room).items()
        if name.isupper() and isinstance(text, str) and text.strip().startswith("SELECT")
    ]


ALL = [pytest.param(name, sql, id=name) for room in ROOMS for name, sql in statements(room)]


@pytest.mark.parametrize(("name", "sql"), ALL)
def test_no_statement_of_why_or_of_the_backlog_scans(mesh: Mesh, name: str, sql: str) -> None:
    params = dict.fromkeys(PARAMETER.findall(sql), 1)
    plan = [str(step["detail"]) for step in mesh.conn.execute(f"EXPLAIN QUERY PLAN {sql}", params)]
    scans = [step for step in plan if step.startswith("SCAN") and not OWN_LISTS.match(step)]
    if name.endswith("backlog.OF_ALL"):
        scans = [step for step in scans if step not in OF_EVERYBODY]
    assert not scans, plan
    assert not [step for step in plan if "AUTOMATIC" in step], plan


COUNTED = {
    "READY_OPEN": ("lanes_by_head", "workloads_ready"),
    "READY_BLOCKED": ("lanes_blocked", "workloads_ready"),
    "OLDEST_OPEN": ("lanes_by_head",),
    "OLDEST_BLOCKED": ("lanes_blocked",),
    "DELAYED": ("workloads_delayed",),
    "PENDING": ("workloads_delayed",),
    "RUNNING": ("workloads_by_state",),
}


@pytest.mark.parametrize("name", COUNTED)
def test_counts_run_along_indexes_that_hold_nothing_else(mesh: Mesh, name: str) -> None:
    sql = getattr(counting, name)
    params = dict.fromkeys(PARAMETER.findall(sql), 1)
    plan = [str(step["detail"]) for step in mesh.conn.execute(f"EXPLAIN QUERY PLAN {sql}", params)]
    for index in COUNTED[name]:
        assert any(index in step for step in plan), plan
    if name != "RUNNING":
        assert not any("TEMP B-TREE" in step for step in plan), plan


def test_the_samples_of_a_kind_are_sought(mesh: Mesh) -> None:
    for sql in (blockages.NEXT_DELAYED, blockages.FIRST_PENDING):
        plan = [
            str(step["detail"])
            for step in mesh.conn.execute(f"EXPLAIN QUERY PLAN {sql}", {"demand_id": 1})
        ]
        assert any("workloads_delayed" in step for step in plan), plan
        assert not any("TEMP B-TREE" in step for step in plan), plan


def pile(mesh: Mesh, job: str, copies: int) -> None:
    """So many more of a workload, as they would stand."""
    names = [
        row["name"]
        for row in mesh.conn.execute("SELECT name FROM pragma_table_info('workloads')")
        if row["name"] != "seq"
    ]
    unique = {
        "workload_id": "w.workload_id || printf('%06d', n.i)",
        "idempotency_key": "w.idempotency_key || '/' || n.i",
    }
    values = ", ".join(unique.get(name, f"w.{name}") for name in names)
    sql = COPIES.format(columns=", ".join(names), values=values)
    mesh.hand(sql, copies=copies, workload_id=job)


def instructions(mesh: Mesh, **asked: int) -> int:
    """What one backlog costs SQLite, in tens of its instructions."""
    spent = [0]

    def count() -> int:
        spent[0] += 1
        return 0

    mesh.conn.set_progress_handler(count, 10)
    stories.waiting(mesh, **asked)
    mesh.conn.set_progress_handler(None, 0)
    return spent[0]


def deep(copies: int) -> Mesh:
    """A kind of each sort of waiting, and so many more of each."""
    mesh = Mesh()
    worker = mesh.worker(workload_kinds=["keyed"])
    key = {"concurrency": {"key": "printer", "limit": 1}}
    first, blocked = (mesh.workload(definition_id="keyed", **key) for _ in range(2))
    assert mesh.pull(worker).claims[0].workload_id == first
    later = mesh.workload(definition_id="later", not_before_at_ms=2**50)
    child = mesh.workload(definition_id="child", dependencies=[blocked])
    ready = mesh.workload(definition_id="plain")
    for job in (blocked, later, child, ready):
        pile(mesh, job, copies)
    return mesh


def test_the_backlog_costs_the_same_at_any_depth_beyond_its_cap() -> None:
    shallow, deeper = deep(counting.CAP), deep(4 * counting.CAP)
    costs = [instructions(mesh) for mesh in (shallow, deeper)]
    kinds = {one.definition_id: one for one in stories.waiting(deeper).items}
    assert (kinds["plain"].ready, kinds["plain"].capped) == (counting.CAP, True)
    assert kinds["keyed"].blocked[0].workloads == counting.CAP
    assert kinds["later"].waiting.not_before == counting.CAP
    assert kinds["child"].waiting.dependencies == counting.CAP
    assert costs[1] < costs[0] * 1.05
    for mesh in (shallow, deeper):
        mesh.close()


def test_the_backlog_of_many_kinds_shows_those_that_wait_longest() -> None:
    mesh = Mesh()
    deepen(mesh, kinds=300, rows=3_000)
    told = stories.waiting(mesh, limit=50)
    assert (len(told.items), told.left_out) == (50, 250)
    assert [one.definition_id for one in told.items] == [f"kind{n}" for n in range(50)]
    mesh.later(5_000)
    urgent = mesh.workload(definition_id="urgent", priority=10)
    assert stories.waiting(mesh, limit=1).items[0].definition_id == "urgent"
    assert stories.of(mesh, urgent).reasons[0].code == "NO_WORKER"
    mesh.close()


def test_a_look_compares_so_many_kinds_with_so_many_workers_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who looks at a large fleet must not keep everybody else's reads waiting for seconds."""
    mesh = Mesh()
    monkeypatch.setattr(backlog, "COMPARED_MAX", 20)
    for number in range(10):
        mesh.worker(f"edge-{number}", labels={"host": str(number)})
    for number in range(5):
        mesh.workload(definition_id=f"kind-{number}")

    told = stories.waiting(mesh)
    assert (len(told.items), told.left_out) == (2, 3)
    assert all(one.eligible_workers == 10 for one in told.items)
    monkeypatch.setattr(backlog, "COMPARED_MAX", 1_000)
    assert stories.waiting(mesh).left_out == 0
    mesh.close()
