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


def test_what_the_daemons_worker_does_not_take_may_be_a_program_to_write(mesh: Mesh) -> None:
    """Both where its program is looked for, and where it says that one cannot be run."""
    mesh.worker("feltd", runtime="hosted", workload_kinds=["identity"])
    mesh.worker("edge", workload_kinds=["identity"])
    told = stories.of(mesh, mesh.workload(definition_id="bill")).reasons
    remedies = {one.detail: one.remedy for one in told if one.code == "DEFINITION_NOT_TAKEN"}
    assert len(remedies) == 2
    assert "_flow_capabilities/bill" in remedies["the daemon's worker feltd takes identity only"]
    assert "daemon's log" in remedies["the daemon's worker feltd takes identity only"]
    assert remedies["edge takes identity only"].startswith("start a worker that handles bill")
