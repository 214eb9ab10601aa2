"""Depth costs nothing: no statement of the hot path reads more than it gives."""

import re
from types import ModuleType

import pytest

from feltd.mesh import (
    affinity,
    attempts,
    cancel,
    claims,
    creation,
    demands,
    due,
    fence,
    gates,
    idle,
    keys,
    lanes,
    matching,
    outcomes,
    rates,
    requeue,
    sweep,
    taking,
    workloads,
)
from feltd.model.workload import Batch
from tests.mesh.workloads.stories import new
from tests.mesh.world import Mesh

#: What may be scanned: lists that the statement itself made, each bounded by the statement.
OWN_LISTS = {"CONSTANT", "f", "fitting", "waiting"}
#: The first rows of an index that holds only waiting ones, with a LIMIT.
FIRST_OF_INDEX = {
    "SCAN w USING INDEX workloads_waiting",
    "SCAN c USING INDEX concurrency_keys_opening",
    "SCAN p USING INDEX pools_opening",
}
VERBS = ("SELECT", "UPDATE", "INSERT", "DELETE", "WITH")
PARAMETER = re.compile(r":([a-z0-9_]+)")
#: The progress handler is called every so many instructions of SQLite's machine.
INSTRUCTIONS = 10

CLONE = """
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {copies})
INSERT INTO workloads ({columns})
SELECT {values}
  FROM workloads w, n
"""


def statements(module: ModuleType) -> list[tuple[str, str]]:
    return [
        (f"{module.__name__}.{name}", text)
        for name, text in vars(module).items()
        if name.isupper() and isinstance(text, str) and text.strip().startswith(VERBS)
    ]


HOT = [
    pytest.param(sql, id=name)
    for module in (
        affinity,
        attempts,
        cancel,
        claims,
        creation,
        demands,
        due,
        fence,
        gates,
        idle,
        keys,
        lanes,
        matching,
        outcomes,
        rates,
        requeue,
        sweep,
        taking,
        workloads,
    )
    for name, sql in statements(module)
]


@pytest.mark.parametrize("sql", HOT)
def test_no_statement_of_the_claim_path_or_of_creation_scans(mesh: Mesh, sql: str) -> None:
    """BC-060."""
    params = dict.fromkeys(PARAMETER.findall(sql), 1)
    plan = [str(step["detail"]) for step in mesh.conn.execute(f"EXPLAIN QUERY PLAN {sql}", params)]
    scans = [
        step
        for step in plan
        if step.startswith("SCAN")
        and step.split()[1] not in OWN_LISTS
        and step not in FIRST_OF_INDEX
    ]
    assert not scans, plan
    assert not [step for step in plan if "AUTOMATIC" in step], plan


def deepen(mesh: Mesh, kinds: int, rows: int) -> None:
    """Make `rows` READY workloads of as many kinds, all for one worker to take."""
    items = [new(key=f"k{n}", definition_id=f"kind{n}") for n in range(kinds)]
    for start in range(0, kinds, 1_000):
        mesh.ask(creation.create_batch, Batch(tuple(items[start : start + 1_000])))
    columns = [
        column["name"]
        for column in mesh.conn.execute("SELECT name FROM pragma_table_info('workloads')")
        if column["name"] != "seq"
    ]
    unique = {
        "workload_id": "w.workload_id || printf('%06d', n.i)",
        "idempotency_key": "w.idempotency_key || '/' || n.i",
    }
    values = ", ".join(unique.get(column, f"w.{column}") for column in columns)
    mesh.conn.execute("BEGIN")
    if rows > kinds:
        mesh.conn.execute(
            CLONE.format(copies=rows // kinds - 1, columns=", ".join(columns), values=values)
        )
    mesh.conn.execute("COMMIT")


def cost_of_pulls(kinds: int, rows: int, pulls: int = 20) -> tuple[int, int]:
    """Statements and SQLite instructions of so many pulls after a first one."""
    mesh = Mesh()
    deepen(mesh, kinds, rows)
    worker = mesh.worker(capacity={"concurrency": 1_000})
    assert len(mesh.pull(worker).claims) == 1
    spent = [0]

    def count() -> int:
        spent[0] += 1
        return 0

    asked = 0
    mesh.conn.set_progress_handler(count, INSTRUCTIONS)
    for _ in range(pulls):
        assert len(mesh.pull(worker).claims) == 1
        asked += mesh.statements
    mesh.conn.set_progress_handler(None, 0)
    mesh.close()
    return asked, spent[0]


def test_a_pull_at_depth_costs_what_it_costs_at_the_surface() -> None:
    """100,000 READY rows of 1,000 kinds against 1,000 rows of one kind."""
    statements_flat, instructions_flat = cost_of_pulls(kinds=1, rows=1_000)
    statements_deep, instructions_deep = cost_of_pulls(kinds=1_000, rows=100_000)
    assert statements_deep == statements_flat
    assert instructions_deep < instructions_flat * 1.25


def test_creation_costs_the_same_however_much_waits() -> None:
    def cost(kinds: int, rows: int) -> int:
        mesh = Mesh()
        deepen(mesh, kinds, rows)
        mesh.ask(creation.create, new(key="one more", definition_id="kind0"))
        asked = mesh.statements
        mesh.close()
        return asked

    assert cost(kinds=100, rows=10_000) == cost(kinds=1, rows=1)
