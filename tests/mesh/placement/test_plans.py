"""No question about decisions, given claims and fences reads through a table."""

import pytest

from feltd.mesh import assigned, decisions, directed, fences, inputs
from tests.mesh.world import Mesh

QUESTIONS = {
    "assigned": assigned.OF_WORKER,
    "given by": directed.GIVEN_BY,
    "kept": decisions.KEPT,
    "decision": decisions.BY_ID,
    "of a tenant": decisions.OF_TENANT,
    "of a workload": decisions.OF_WORKLOAD,
    "of a worker": decisions.OF_WORKER,
    "workload": inputs.WORKLOAD,
    "worker": inputs.WORKER,
    "workers": inputs.WORKERS,
    "pool": inputs.POOL,
    "concurrency": inputs.CONCURRENCY,
    "rate": inputs.RATE,
    "claim of a token": fences.CLAIM,
    "issued": fences.ISSUED,
    "fence": fences.FENCE,
    "spent fences": fences.SPENT,
    "lift": fences.LIFT,
    "old decisions": decisions.DROP_OLD,
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_is_answered_from_an_index(mesh: Mesh, name: str) -> None:
    sql = QUESTIONS[name]
    plan = [row["detail"] for row in mesh.conn.execute(f"EXPLAIN QUERY PLAN {sql}", Anything())]

    assert not [step for step in plan if step.startswith("SCAN")], plan


class Anything(dict[str, object]):
    """A value for every parameter."""

    def __missing__(self, _name: str) -> int:
        return 1
