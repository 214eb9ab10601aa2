"""What happened between two places in the feed is counted, each thing once."""

from feltd.identity import principals
from feltd.mesh import pulse
from feltd.model.base import Ask
from tests.mesh.world import Mesh


def since(mesh: Mesh, seq: int) -> pulse.Pulse:
    return mesh.run(lambda tx, _, now: pulse.happened(tx, seq, now))


def test_creations_claims_and_ends_are_counted_once(mesh: Mesh) -> None:
    edge = mesh.worker()
    jobs = [mesh.workload() for _ in range(3)]
    first = since(mesh, 0)
    mesh.say("complete", mesh.claims(jobs[0], by=edge, start=True))
    mesh.say("fail", mesh.claims(jobs[1], by=edge, start=True), kind="transient", message="later")

    second = since(mesh, first.seq)

    assert (first.creations, first.claims, first.whole) == (3, 0, True)
    assert (second.creations, second.claims) == (0, 2)
    assert (second.completions, second.failures) == (1, 1)
    assert since(mesh, second.seq) == pulse.Pulse(second.seq, True)


def test_what_waits_for_another_attempt_is_retrying_and_nothing_else(mesh: Mesh) -> None:
    edge = mesh.worker()
    job, _, _ = mesh.workload(), mesh.workload(), mesh.workload(not_before_at_ms=10**15)
    mesh.say("fail", mesh.claims(job, by=edge, start=True), kind="transient", message="later")
    [tenant_id] = {row[0] for row in [tuple(mesh.row("SELECT tenant_id FROM workloads LIMIT 1"))]}

    def retrying(whose: str) -> int:
        ask = Ask(caller=principals.OPEN, body=whose)
        return mesh.run(lambda tx, _, now: pulse.retrying(tx, ask, now))

    assert (retrying("*"), retrying(tenant_id), retrying("another")) == (1, 1, 0)


def test_a_tally_is_of_the_named_tenants(mesh: Mesh) -> None:
    edge = mesh.worker()
    job, _ = mesh.workload(), mesh.workload()
    mesh.claims(job, by=edge)
    tenant_id = mesh.row("SELECT tenant_id FROM workloads LIMIT 1")["tenant_id"]

    def tally(*whose: str) -> pulse.Tally:
        ask = Ask(caller=principals.OPEN, body=whose)
        return mesh.run(lambda tx, _, now: pulse.tally(tx, ask, now))

    found = tally(tenant_id, "another")
    assert (found.states["READY"], found.states["CLAIMED"], found.retrying) == (1, 1, 0)
    assert not any(tally("another").states.values())
