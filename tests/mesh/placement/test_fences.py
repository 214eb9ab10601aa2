"""A sink asks about a claim and a token; only stored rows answer."""

import pytest
from msgspec import structs

from feltd.errors import Refused
from feltd.identity.principals import OPEN
from feltd.mesh import fences, vitals
from feltd.model.base import Caller, Subject
from feltd.model.claim import Claim
from feltd.model.fence import Fence, Raise, Valid, Validate
from tests.mesh.world import Mesh

STRANGER = Caller(subject=Subject("service", "s"), tenants=("other",), local=True)


def ask_valid(mesh: Mesh, claim_id: str, token: int, caller: Caller = OPEN) -> Valid:
    return mesh.ask(fences.validate, Validate(fencing_token=token), claim_id, caller)


def invalid(mesh: Mesh, claim_id: str, token: int, caller: Caller = OPEN) -> str | None:
    return mesh.refused(lambda: ask_valid(mesh, claim_id, token, caller))


def is_stale(mesh: Mesh, held: Claim) -> bool:
    return invalid(mesh, held.claim_id, held.fencing_token) == "MESH_STALE_FENCE"


def fence(mesh: Mesh, resource: str, token: int, tenant: str = "acme") -> Fence:
    return mesh.ask(fences.fence, fences.Raising(tenant, Raise(fencing_token=token)), resource)


def refusal(mesh: Mesh, resource: str, token: int, tenant: str = "acme") -> Refused:
    with pytest.raises(Refused) as refused:
        fence(mesh, resource, token, tenant)
    return refused.value


def test_a_live_claim_is_valid_with_the_end_that_is_stored(mesh: Mesh) -> None:
    held = mesh.claims(mesh.workload(), by=mesh.worker(), lease_ms=5_000)
    mesh.later(ms=1_000)
    mesh.say("renew", held, lease_ms=60_000)

    valid = ask_valid(mesh, held.claim_id, held.fencing_token)

    assert (valid.workload_id, valid.worker_id) == (held.workload_id, held.worker_id)
    assert valid.expires_at_ms == mesh.now.lease_ms + 60_000
    assert (valid.state, valid.attempt_id) == ("CLAIMED", held.attempt_id)


def test_placement_claim_fencing_failure_and_recovery(mesh: Mesh) -> None:
    """The seed's story: valid at first, and after the failure of the worker a stale fence."""
    worker = mesh.worker(heartbeat_interval_ms=1_000, heartbeat_timeout_ms=2_000)
    held = mesh.claims(mesh.workload(capability_snapshot=["docs.extract"]), by=worker)
    assert ask_valid(mesh, held.claim_id, held.fencing_token).fencing_token == held.fencing_token

    mesh.later(ms=2_000)
    mesh.run(lambda tx, _, now: vitals.detect_failures(tx, 50, now))

    assert is_stale(mesh, held)


def test_at_the_very_end_of_its_lease_a_claim_is_over(mesh: Mesh) -> None:
    held = mesh.claims(mesh.workload(), by=mesh.worker(), lease_ms=1_000)

    mesh.later(ms=999)
    assert not invalid(mesh, held.claim_id, held.fencing_token)
    mesh.later(ms=1)
    assert is_stale(mesh, held)


def test_a_claim_that_ended_or_was_followed_by_another_is_stale(mesh: Mesh) -> None:
    slow, fast, job = mesh.worker("slow"), mesh.worker("fast"), mesh.workload()
    first = mesh.claims(job, by=slow)
    mesh.say("release", first)
    assert is_stale(mesh, first)

    second = mesh.claims(job, by=fast, start=True)
    assert is_stale(mesh, first)
    assert not invalid(mesh, second.claim_id, second.fencing_token)
    mesh.say("complete", second)
    assert is_stale(mesh, second)


def test_made_up_claims_foreign_ones_and_another_claims_token_answer_alike(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 2})
    held, other = (mesh.claims(mesh.workload(), by=worker) for _ in range(2))

    for claim_id, token, caller in (
        ("claim_999", 999, OPEN),
        ("nonsense", held.fencing_token, OPEN),
        (held.claim_id, other.fencing_token, OPEN),
        (held.claim_id, held.fencing_token, STRANGER),
    ):
        with pytest.raises(Refused) as refused:
            ask_valid(mesh, claim_id, token, caller)
        assert refused.value.code == "MESH_STALE_FENCE"
        assert refused.value.detail == "claim is expired or fenced"
        assert refused.value.facts == {}


def test_a_worker_whose_grant_ended_holds_no_valid_claim(mesh: Mesh) -> None:
    worker = mesh.worker()
    held = mesh.claims(mesh.workload(capability_snapshot=["docs.extract"]), by=worker)

    mesh.hand("UPDATE workers SET authority_live = 0 WHERE worker_id = :id", id=worker)
    assert invalid(mesh, held.claim_id, held.fencing_token) == "MESH_CAPABILITY_DENIED"
    mesh.hand(
        "UPDATE workers SET authority_live = 1, granted_capabilities = '[]' WHERE worker_id = :id",
        id=worker,
    )
    assert invalid(mesh, held.claim_id, held.fencing_token) == "MESH_CAPABILITY_DENIED"


def test_a_claim_whose_rows_are_of_two_applications_crosses_scope(mesh: Mesh) -> None:
    held = mesh.claims(mesh.workload(), by=mesh.worker())
    mesh.hand("DROP TRIGGER claims_stay_as_they_are")
    mesh.hand("UPDATE claims SET application_id = 'mail'")

    assert invalid(mesh, held.claim_id, held.fencing_token) == "MESH_CLAIM_SCOPE_DENIED"


def test_asking_changes_nothing(mesh: Mesh) -> None:
    held = mesh.claims(mesh.workload(), by=mesh.worker())
    before = mesh.everything()

    ask_valid(mesh, held.claim_id, held.fencing_token)

    assert mesh.everything() == before


def test_a_fence_keeps_the_highest_token_and_refuses_lower_ones(mesh: Mesh) -> None:
    worker, job = mesh.worker(), mesh.workload()
    old = mesh.claims(job, by=worker)
    mesh.say("release", old)
    new = mesh.claims(job, by=worker)

    assert fence(mesh, "invoice-17", old.fencing_token).highest == old.fencing_token
    assert fence(mesh, "invoice-17", new.fencing_token).highest == new.fencing_token
    late = refusal(mesh, "invoice-17", old.fencing_token)
    assert (late.code, late.facts["highest"]) == ("MESH_STALE_FENCE", new.fencing_token)
    # An equal one passes: the same worker may write again.
    assert fence(mesh, "invoice-17", new.fencing_token).highest == new.fencing_token
    # Another resource knows nothing of it.
    assert fence(mesh, "invoice-18", old.fencing_token).highest == old.fencing_token


def test_a_fence_tells_an_event_when_it_rises_and_only_then(mesh: Mesh) -> None:
    held = mesh.claims(mesh.workload(), by=mesh.worker())
    for _ in range(3):
        fence(mesh, "r", held.fencing_token)

    told = mesh.row("SELECT count(*) AS n, max(fencing_token) AS t FROM events WHERE kind='fence'")
    assert tuple(told) == (1, held.fencing_token)


def test_no_bogus_token_locks_a_resource(mesh: Mesh) -> None:
    held = mesh.claims(mesh.workload(), by=mesh.worker())

    above = refusal(mesh, "r", 2**53 - 1)
    assert (above.code, above.facts["errors"][0]["pointer"]) == (
        "REQUEST_INVALID",
        "/fencing_token",
    )
    assert refusal(mesh, "r", held.fencing_token, tenant="other").code == "MESH_STALE_FENCE"

    assert fence(mesh, "r", held.fencing_token) == Fence("r", held.fencing_token)


def test_fences_of_two_tenants_do_not_meet(mesh: Mesh) -> None:
    ours = mesh.claims(mesh.workload(), by=mesh.worker())
    theirs = mesh.claims(
        mesh.workload(tenant_id="other"), by=mesh.worker("theirs", tenant_id="other")
    )

    assert fence(mesh, "r", theirs.fencing_token, tenant="other").highest == theirs.fencing_token
    assert fence(mesh, "r", ours.fencing_token).highest == ours.fencing_token


def test_a_tenant_has_a_bounded_number_of_fences(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fences, "FENCES_MAX", 2)
    held = mesh.claims(mesh.workload(), by=mesh.worker())
    for resource in ("a", "b", "a"):
        fence(mesh, resource, held.fencing_token)

    full = refusal(mesh, "c", held.fencing_token)

    assert (full.code, full.facts["quota"], full.facts["limit"]) == ("QUOTA_EXCEEDED", "fences", 2)
    assert fence(mesh, "b", held.fencing_token).resource == "b"


def test_a_fence_is_forgotten_once_no_claim_below_it_is_known(mesh: Mesh) -> None:
    worker, job = mesh.worker(), mesh.workload()
    old = mesh.claims(job, by=worker)
    mesh.say("release", old)
    new = mesh.claims(job, by=worker)
    fence(mesh, "old", old.fencing_token)
    fence(mesh, "new", new.fencing_token)
    assert mesh.run(lambda tx, _, now: fences.prune(tx, 10, now)) == 0

    mesh.hand("DELETE FROM claims WHERE fencing_token = :token", token=old.fencing_token)
    assert mesh.run(lambda tx, _, now: fences.prune(tx, 10, now)) == 1

    # What was forgotten is refused all the same: no claim has the token any more.
    assert refusal(mesh, "old", old.fencing_token).code == "MESH_STALE_FENCE"
    assert refusal(mesh, "new", old.fencing_token).facts == {"highest": new.fencing_token}
    assert mesh.row("SELECT fences FROM fence_counts")["fences"] == 1


def test_a_fence_never_goes_down_by_hand_either(mesh: Mesh) -> None:
    held = mesh.claims(mesh.workload(), by=mesh.worker())
    fence(mesh, "r", held.fencing_token)

    with pytest.raises(Exception, match="a fence never goes down"):
        mesh.hand("UPDATE fences SET highest = highest - 1")


def test_an_ended_key_asks_nothing(mesh: Mesh) -> None:
    worker = mesh.worker()
    held = mesh.claims(mesh.workload(), by=worker)
    key = structs.replace(mesh.key(worker), worker_id=None, scopes=frozenset({"claims:validate"}))
    mesh.hand("UPDATE keys SET revoked_at_ms = 1, revoked_reason = 'revoked'")

    assert invalid(mesh, held.claim_id, held.fencing_token, key) == "UNAUTHENTICATED"
    ask = fences.Raising("acme", Raise(fencing_token=held.fencing_token))
    assert mesh.refused(lambda: mesh.ask(fences.fence, ask, "r", key)) == "UNAUTHENTICATED"
