"""A lease is held, renewed, runs out, and goes to somebody else; the late holder is refused."""

import pytest

from feltd.mesh import attempts, fence
from tests.mesh.world import VERBS, Mesh


def whole(mesh: Mesh, job: str) -> tuple[object, ...]:
    return tuple(mesh.row("SELECT * FROM workloads WHERE workload_id = :id", id=job))


def test_a_worker_that_lost_its_lease_cannot_write_and_changes_no_row(mesh: Mesh) -> None:
    """BC-001, BC-002: the late finish of a losing attempt overwrites nothing."""
    slow, fast = mesh.worker("slow"), mesh.worker("fast")
    job = mesh.workload()
    late = mesh.claims(job, by=slow, lease_ms=1_000, start=True)
    mesh.later(ms=1_000)
    mesh.sweep()
    mesh.later(ms=2_000)
    winner = mesh.claims(job, by=fast, start=True)
    mesh.say("complete", winner, output={"by": "fast"})
    before = whole(mesh, job)

    for verb in VERBS:
        assert mesh.refusal(verb, late) == "WORKLOAD_STALE_FENCE", verb
    assert whole(mesh, job) == before
    assert winner.fencing_token > late.fencing_token
    assert mesh.say("complete", winner, output={"by": "fast"}).state == "COMPLETED"


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_the_lease_ends_at_its_end_though_nobody_recovered_it(mesh: Mesh, verb: str) -> None:
    """BC-004: expiry is decided by the server's clock inside the statement, boundary included."""
    worker = mesh.worker()
    job = mesh.workload()
    held = mesh.claims(job, by=worker, lease_ms=1_000, start=verb != "start")
    mesh.later(ms=1_000)
    before = whole(mesh, job)

    assert mesh.refusal(verb, held) == "WORKLOAD_STALE_FENCE"
    assert whole(mesh, job) == before


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_one_millisecond_before_its_end_the_lease_still_holds(mesh: Mesh, verb: str) -> None:
    worker = mesh.worker()
    held = mesh.claims(mesh.workload(), by=worker, lease_ms=1_000, start=verb != "start")
    mesh.later(ms=999)

    assert mesh.refusal(verb, held) is None


def test_recovery_and_completion_at_the_same_instant_have_one_outcome(mesh: Mesh) -> None:
    """BC-001: whichever comes first, a 200 is never followed by READY."""
    worker = mesh.worker(capacity={"concurrency": 100})
    for offset_ms in range(-3, 4):
        for recover_first in (True, False):
            job = mesh.workload()
            held = mesh.claims(job, by=worker, lease_ms=1_000, start=True)
            mesh.later(ms=1_000 + offset_ms)
            if recover_first:
                mesh.sweep()
            completed = mesh.refusal("complete", held) is None
            mesh.sweep()

            assert completed == (offset_ms < 0)
            assert mesh.state(job) == ("COMPLETED" if completed else "READY")


def test_renewing_moves_the_end_out_and_never_in(mesh: Mesh) -> None:
    worker = mesh.worker()
    held = mesh.claims(mesh.workload(), by=worker, lease_ms=30_000)

    mesh.later(ms=10_000)
    out = mesh.say("renew", held)
    again = mesh.say("renew", held, lease_ms=1_000)

    assert out.expires_at_ms == mesh.now.lease_ms + 30_000
    assert again.expires_at_ms == out.expires_at_ms


def test_no_lease_outlives_the_grant_behind_its_worker(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 2})
    early = mesh.claims(mesh.workload(), by=worker, lease_ms=1_000)
    mesh.hand("UPDATE workers SET authority_expires_at_ms = :at", at=mesh.now.wall_ms + 5_000)

    held = mesh.claims(mesh.workload(), by=worker, lease_ms=30_000)
    renewed = mesh.say("renew", early, lease_ms=30_000)

    assert held.expires_at_ms == mesh.now.lease_ms + 5_000
    assert renewed.expires_at_ms == mesh.now.lease_ms + 5_000


def test_a_grant_that_ends_by_wall_time_is_brought_onto_the_lease_scale(mesh: Mesh) -> None:
    worker = mesh.worker()
    mesh.now = mesh.now._replace(wall_ms=mesh.now.wall_ms - 60_000)
    mesh.hand("UPDATE workers SET authority_expires_at_ms = :at", at=mesh.now.wall_ms + 5_000)

    held = mesh.claims(mesh.workload(), by=worker, lease_ms=30_000)

    assert held.expires_at_ms == mesh.now.lease_ms + 5_000


def test_a_drain_with_an_end_caps_renewals(mesh: Mesh) -> None:
    worker = mesh.worker()
    held = mesh.claims(mesh.workload(), by=worker, lease_ms=2_000)
    mesh.hand("UPDATE workers SET no_renew_after_at_ms = :at", at=mesh.now.lease_ms + 8_000)

    assert mesh.say("renew", held, lease_ms=60_000).expires_at_ms == mesh.now.lease_ms + 8_000


def test_a_checkpoint_renews_and_waits_for_the_next_attempt(mesh: Mesh) -> None:
    first, second = mesh.worker("first"), mesh.worker("second")
    job = mesh.workload()
    held = mesh.claims(job, by=first, lease_ms=2_000, start=True)
    mesh.later(ms=1_000)
    mesh.say("checkpoint", held, data={"page": 3}, progress={"done": 3, "total": 9})
    kept = mesh.say("checkpoint", held, data={"page": 4}, lease_ms=5_000)
    assert (kept.state, kept.expires_at_ms) == ("CHECKPOINTED", mesh.now.lease_ms + 5_000)

    mesh.later(ms=5_000)
    mesh.sweep()
    mesh.later(ms=2_000)
    after = mesh.claims(job, by=second)

    assert bytes(after.checkpoint or b"") == b'{"page":4}'
    assert after.attempt_number == 2


def test_a_heartbeat_renews_what_its_worker_holds_and_nothing_else(mesh: Mesh) -> None:
    worker, other = mesh.worker(capacity={"concurrency": 3}), mesh.worker("other")
    mine, unnamed = (mesh.claims(mesh.workload(), by=worker, lease_ms=9_000) for _ in range(2))
    theirs = mesh.claims(mesh.workload(), by=other)
    row = mesh.row("SELECT worker_id, incarnation FROM workers WHERE worker_id = :id", id=worker)
    mesh.later(ms=1_000)

    named = (mine.claim_id, theirs.claim_id, "claim_7", "nonsense")
    renewed = mesh.run(lambda tx, _, now: fence.renew_held(tx, now, row, named))

    assert renewed == {mine.claim_id: mesh.now.lease_ms + 9_000}
    assert mesh.say("renew", unnamed, lease_ms=1_000).expires_at_ms == unnamed.expires_at_ms


def test_lapsed_leases_are_recovered_in_slices_and_no_live_one(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 5})
    for _ in range(4):
        mesh.claims(mesh.workload(), by=worker, lease_ms=1_000)
    live = mesh.workload()
    mesh.claims(live, by=worker, lease_ms=60_000)
    mesh.later(ms=1_000)

    assert [mesh.sweep(limit=3), mesh.sweep(limit=3), mesh.sweep(limit=3)] == [3, 1, 0]
    assert mesh.state(live) == "CLAIMED"


def test_recovery_leaves_a_lease_that_was_renewed_after_it_was_found(mesh: Mesh) -> None:
    """The end repeats the instant and the token it was decided for."""
    worker = mesh.worker()
    job = mesh.workload()
    held = mesh.claims(job, by=worker, lease_ms=5_000)
    lapsed = attempts.End("lease_expired", fencing_token=held.fencing_token, lapsed=True)
    other = attempts.End("lease_expired", fencing_token=held.fencing_token + 1)

    for end in (lapsed, other):
        code = mesh.refused(
            lambda end=end: mesh.run(lambda tx, _, now: attempts.end_claim(tx, now, job, end))
        )
        assert code == "WORKLOAD_STALE_FENCE"
    assert mesh.state(job) == "CLAIMED"


def test_one_claim_that_cannot_be_ended_does_not_keep_the_others(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 2})
    broken, sound = mesh.workload(), mesh.workload()
    for job in (broken, sound):
        mesh.claims(job, by=worker, lease_ms=1_000)
    mesh.hand("UPDATE workloads SET retry_policy = '{no json}' WHERE workload_id = :id", id=broken)
    mesh.later(ms=1_000)

    told = mesh.refused(mesh.sweep)

    assert (mesh.state(broken), mesh.state(sound)) == ("CLAIMED", "READY")
    assert told == "INTERNAL", "the keeper must see it, and /health with it"
