"""A remedy that is followed as it stands helps: what is told of workers that went away."""

from msgspec import convert

from feltd.mesh import drain
from feltd.model.worker import DrainRequest
from tests.mesh.why import stories
from tests.mesh.world import Mesh


def test_a_process_that_left_by_itself_is_only_to_be_started_again(mesh: Mesh) -> None:
    worker = mesh.worker()
    mesh.ask(drain.drain, convert({}, DrainRequest), worker, mesh.key(worker))
    for told in (stories.of_worker(mesh, worker), stories.of(mesh, mesh.workload())):
        remedies = {one.code: one.remedy for one in told.reasons}
        assert remedies["WORKER_DRAINING"] == "start its process again"


def test_who_was_drained_and_is_gone_needs_a_resume_and_a_process(mesh: Mesh) -> None:
    worker = mesh.worker()
    mesh.ask(drain.drain, convert({"reason": "new kernel"}, DrainRequest), worker)
    remedies = {one.code: one.remedy for one in stories.of_worker(mesh, worker).reasons}
    assert remedies["WORKER_DRAINING"] == f"feltd worker resume {worker}, then start its process"


def test_a_capability_nobody_has_is_to_be_brought_under_a_name_of_its_own(mesh: Mesh) -> None:
    mesh.worker()
    (first, *_) = stories.of(mesh, mesh.workload(capability_snapshot=["gpu"])).reasons
    assert first.code == "NO_CAPABILITY"
    assert first.remedy.endswith("--capability gpu, then feltd worker run with a --name of its own")
