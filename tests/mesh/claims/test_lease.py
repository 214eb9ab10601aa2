"""A lease is held, runs out, and goes to somebody else; the late holder is refused."""

from tests.mesh.world import Mesh


def test_a_worker_that_lost_its_lease_cannot_complete(mesh: Mesh) -> None:
    slow, fast = mesh.worker("slow"), mesh.worker("fast")
    job = mesh.workload()
    held = mesh.claims(job, by=slow, lease_ms=1_000, start=True)

    mesh.later(ms=1_001)
    mesh.sweep()
    mesh.later(ms=2_000)
    mesh.claims(job, by=fast)

    assert mesh.refusal("complete", held) == "WORKLOAD_STALE_FENCE"
