"""What a worker calls its failures makes no series of its own, and stands in no graph."""

from collections.abc import Iterator

import pytest

from feltd.mesh import measures
from tests.mesh.world import Mesh


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    world = Mesh()
    yield world
    world.close()


def test_words_that_only_a_worker_knows_are_counted_together(mesh: Mesh) -> None:
    worker = mesh.worker()
    for kind in ("project-x.leaked", "b2", "c3", "transient", "execution_error"):
        mesh.say("fail", mesh.claims(mesh.workload(), by=worker), kind=kind)
    mesh.say("release", mesh.claims(mesh.workload(), by=worker))
    mesh.say("complete", mesh.claims(mesh.workload(), by=worker, start=True))

    assert mesh.run(measures.measure, 0).ends == {
        "other": 3,
        "transient": 1,
        "execution_error": 1,
        "released": 1,
        "completed": 1,
    }
