"""A grant changes or ends under its workers: from that commit on nothing beyond it is written."""

from typing import Any

import pytest

from feltd.errors import Refused
from feltd.identity import grants, principals
from feltd.mesh import authority, promises, signing
from feltd.model.base import Ask
from feltd.model.grant import ExtendGrant
from tests.mesh.workers.stories import House


def may(*names: str) -> list[str]:
    """What a grant says of these capabilities."""
    return list(names)


def test_a_revoked_grant_ends_the_claims_under_it(house: House) -> None:
    edge = house.worker(capacity={"concurrency": 3})
    held = edge.takes(2)

    after = house.revoke(house.grant)

    assert after.fenced_claims == tuple(claim.claim_id for claim in held)
    assert after.remaining == 0
    assert house.ends() == [(claim.claim_id, "authority_lost") for claim in held]
    assert all(house.mesh.state(claim.workload_id) == "READY" for claim in held)
    stopped = house.refusal(edge.beat)
    assert (stopped.code, stopped.next) == ("UNAUTHENTICATED", "stop")
    assert stopped.facts["reasons"][0]["code"] == "grant_ended"
    house.keeps_its_promises()


def test_a_worker_with_a_key_of_its_own_loses_its_authority_too(house: House) -> None:
    edge = house.worker()
    [held] = edge.takes()
    edge.caller = house.mesh.key(edge.id)

    house.revoke(house.grant)

    assert edge.row()["authority_live"] == 0
    assert edge.beat(running_claims=[held.claim_id]).fenced_claims == [held.claim_id]
    assert house.mesh.refused(lambda: house.mesh.pull(edge.id, edge.caller)) is not None


def test_revoking_again_changes_nothing_more(house: House) -> None:
    edge = house.worker()
    edge.takes()
    house.revoke(house.grant)

    assert house.revoke(house.grant).fenced_claims == ()


def test_a_parent_takes_its_descendants_with_it(house: House) -> None:
    child = house.grant_for("registrar", parent_grant=house.grant.id)
    grandchild = house.grant_for("registrar", parent_grant=child.id)
    edge = house.worker(grant=grandchild)
    [held] = edge.takes()

    after = house.revoke(house.grant)

    assert after.fenced_claims == (held.claim_id,)
    assert edge.row()["authority_live"] == 0


def test_a_smaller_grant_ends_what_exceeds_it_and_keeps_the_rest(house: House) -> None:
    wide = house.grant_for("registrar", may=may("documents.extract", "documents.sign"))
    edge = house.worker(grant=wide, capacity={"concurrency": 4})
    [kept] = edge.takes()
    [lost] = edge.takes(needs=["documents.sign"])

    after = house.replace(wide, may=may("documents.extract"))

    assert after.fenced_claims == (lost.claim_id,)
    shown = edge.shown()
    assert bytes(shown.granted_capabilities) == b'["documents.extract"]'
    assert shown.capability_version == edge.worker.capability_version + 1
    assert edge.says("renew", kept).state == "RUNNING"
    told = house.refusal(edge.beat)
    assert (told.code, told.next) == ("WORKER_HEARTBEAT_REJECTED", "register")
    again = house.registers(grant=wide)
    assert again.worker.capability_version == shown.capability_version
    house.keeps_its_promises()


def test_a_larger_grant_gives_what_was_declared(house: House) -> None:
    edge = house.worker(capabilities=["documents.extract", "documents.sign"])
    assert bytes(edge.shown().granted_capabilities) == b'["documents.extract"]'

    house.replace(house.grant, may=may("documents.extract", "documents.sign"))

    assert bytes(edge.shown().granted_capabilities) == b'["documents.extract","documents.sign"]'
    assert edge.shown().capability_version == edge.worker.capability_version + 1


def test_a_grant_that_lasts_longer_changes_nothing_else(house: House) -> None:
    edge = house.worker()
    [held] = edge.takes()
    longer_ms = house.grant.expires_at_ms + 1_000

    assert house.replace(house.grant, expires_at_ms=longer_ms).fenced_claims == ()

    assert edge.beat(running_claims=[held.claim_id]).grant_expires_at_ms == longer_ms
    assert edge.shown().capability_version == edge.worker.capability_version


def test_no_lease_outlives_a_grant_that_ends_earlier_now(house: House) -> None:
    edge = house.worker()
    [held] = edge.takes(lease_ms=600_000)
    ends_at_ms = house.mesh.now.wall_ms + 60_000

    house.replace(house.grant, expires_at_ms=ends_at_ms)

    row = house.mesh.row(
        "SELECT expires_at_ms FROM workloads WHERE workload_id = :id", id=held.workload_id
    )
    assert row["expires_at_ms"] == house.mesh.now.lease_from_wall(ends_at_ms)
    house.mesh.later(ms=60_000)
    assert house.refusal(lambda: edge.says("complete", held)).code in {
        "UNAUTHENTICATED",
        "WORKLOAD_STALE_FENCE",
    }


def test_fewer_slots_end_the_newest_claims_over_the_number(house: House) -> None:
    edge = house.worker(capacity={"concurrency": 4})
    held = edge.takes(3)

    after = house.replace(house.grant, constraints={"max_concurrency": 1})

    assert after.fenced_claims == tuple(claim.claim_id for claim in held[1:])
    assert edge.shown().capacity.concurrency == 1
    house.keeps_its_promises()


@pytest.mark.parametrize("constraints", [{"runtimes": ["wasm"]}, {"workload_kinds": ["summarise"]}])
def test_a_grant_that_allows_the_worker_no_more_ends_all_it_holds(
    house: House, constraints: dict[str, Any]
) -> None:
    edge = house.worker(workload_kinds=["extract"])
    [held] = edge.takes()

    assert house.replace(house.grant, constraints=constraints).fenced_claims == (held.claim_id,)

    assert edge.row()["authority_live"] == 0
    house.replace(house.grant, constraints={})
    assert edge.row()["authority_live"] == 1


@pytest.mark.parametrize(
    "left",
    [
        {"capabilities": ["worker:capability:documents.extract"]},
        {"resources": [{"kind": "EXACT", "uri": "flow://docs/workers/other"}]},
        {"resources": []},
    ],
    ids=["no registration", "another name", "no name"],
)
def test_a_worker_that_could_not_register_any_more_has_no_authority(
    house: House, left: dict[str, Any]
) -> None:
    edge = house.worker(capacity={"concurrency": 3})
    held = edge.takes(2)

    after = house.replace(house.grant, **left)

    assert after.fenced_claims == tuple(claim.claim_id for claim in held)
    assert house.ends() == [(claim.claim_id, "authority_lost") for claim in held]
    assert edge.beat(running_claims=[held[0].claim_id]).fenced_claims == [held[0].claim_id]
    pulled = house.refusal(lambda: house.mesh.pull(edge.id, edge.caller))
    assert (pulled.code, pulled.next) == ("WORKER_UNAUTHORIZED", "stop")
    house.replace(house.grant)
    assert edge.takes(1)
    house.keeps_its_promises()


def test_a_parent_that_shrinks_takes_the_name_from_its_descendants_workers(house: House) -> None:
    child = house.grant_for("registrar", parent_grant=house.grant.id)
    edge = house.worker(grant=child)
    [held] = edge.takes()

    only = [{"kind": "EXACT", "uri": "flow://docs/workers/other"}]

    assert house.replace(house.grant, resources=only).fenced_claims == (held.claim_id,)
    assert edge.row()["authority_live"] == 0


def test_a_beat_finishes_what_the_change_of_a_grant_has_left(house: House) -> None:
    """Not settled yet: nothing of it is accepted, so nothing of it is shown as live."""
    edge = house.worker(capacity={"concurrency": 3})
    kept, lost = edge.takes(2)
    house.mesh.hand("UPDATE workers SET authority_unsettled = 1 WHERE worker_id = :id", id=edge.id)
    house.mesh.hand(
        "UPDATE grants SET constraints = :bounds WHERE grant_id = :id",
        bounds='{"max_concurrency":1}',
        id=house.grant.id,
    )

    answer = edge.beat(running_claims=[kept.claim_id, lost.claim_id], renew_leases=True)

    assert answer.fenced_claims == [lost.claim_id]
    assert list(answer.renewed) == [kept.claim_id]
    assert answer.worker.claims == [kept.claim_id]
    assert house.ends() == [(lost.claim_id, "authority_lost")]


def test_narrowed_kinds_and_labels_of_the_grant_reach_its_workers(house: House) -> None:
    labelled = house.grant_for("registrar", constraints={"labels": {"trusted/zone": "a"}})
    edge = house.worker(grant=labelled, labels={"rack": "7"})
    [kept] = edge.takes()

    house.replace(
        labelled,
        constraints={"labels": {"trusted/zone": "b"}, "workload_kinds": ["extract", "summarise"]},
    )

    assert bytes(edge.shown().labels) == b'{"rack":"7","trusted/zone":"b"}'
    assert bytes(edge.shown().workload_kinds) == b'["extract","summarise"]'
    assert edge.shown().claims == [kept.claim_id]


def test_a_claim_of_a_kind_the_grant_no_longer_allows_ends(house: House) -> None:
    edge = house.worker()
    [held] = edge.takes()

    after = house.replace(house.grant, constraints={"workload_kinds": ["summarise"]})

    assert after.fenced_claims == (held.claim_id,)
    assert bytes(edge.shown().workload_kinds) == b'["summarise"]'


def test_what_does_not_fit_into_one_transaction_is_fenced_and_ends_later(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authority, "CLAIMS_AT_ONCE", 3)
    hands = [house.worker(f"edge-{n}") for n in range(4)]
    held = {claim.claim_id: (hand, claim) for hand in hands for claim in hand.takes(2)}

    after = house.revoke(house.grant)

    assert (len(after.fenced_claims), after.remaining) == (3, 5)
    left = [held[claim_id] for claim_id in held if claim_id not in after.fenced_claims]
    for hand, claim in left:
        hand.caller = house.mesh.key(hand.id, name=claim.claim_id)
        assert house.refusal(lambda h=hand, c=claim: h.says("renew", c)).code in {
            "WORKLOAD_STALE_FENCE",
            "MESH_CAPABILITY_DENIED",
        }
    rounds = 0
    while house.mesh.run(authority.sweep, 3):
        rounds += 1
    assert rounds >= 2
    assert sorted(house.ends()) == sorted((claim_id, "authority_lost") for claim_id in held)
    assert house.mesh.run(authority.sweep, 3) == 0
    house.keeps_its_promises()


def test_a_change_of_many_grants_settles_so_many_workers_at_once(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bound holds for the grant and all below it together."""
    monkeypatch.setattr(authority, "WORKERS_AT_ONCE", 3)
    for name in ("one", "two"):
        below = house.grant_for("registrar", parent_grant=house.grant.id)
        for place in range(3):
            house.worker(f"{name}-{place}", grant=below)

    house.revoke(house.grant)

    unsettled = "SELECT count(*) FROM workers WHERE authority_unsettled = 1"
    assert house.mesh.row(unsettled)[0] == 3
    house.mesh.run(authority.sweep, 50)
    assert house.mesh.row(unsettled)[0] == 0


def test_a_half_settled_worker_still_keeps_its_promises(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authority, "CLAIMS_AT_ONCE", 1)
    wide = house.grant_for("registrar", may=may("documents.extract", "documents.sign"))
    edge = house.worker(grant=wide, capacity={"concurrency": 4})
    edge.takes(3, needs=["documents.sign"])

    after = house.replace(wide, may=may("documents.extract"))

    assert (len(after.fenced_claims), after.remaining) == (1, 2)
    assert edge.row()["authority_unsettled"] == 1
    house.keeps_its_promises()
    # Whoever asks for the worker's work finishes it: no sweep is needed.
    assert house.mesh.pull(edge.id, edge.caller).claims == []
    assert edge.row()["authority_unsettled"] == 0
    assert len(house.ends()) == 3


def test_a_fenced_verb_settles_its_own_worker(house: House, monkeypatch: Any) -> None:
    monkeypatch.setattr(authority, "CLAIMS_AT_ONCE", 0)
    wide = house.grant_for("registrar", may=may("documents.extract", "documents.sign"))
    edge = house.worker(grant=wide, capacity={"concurrency": 4})
    [kept] = edge.takes()
    [lost] = edge.takes(needs=["documents.sign"])
    house.replace(wide, may=may("documents.extract"))
    assert edge.row()["authority_unsettled"] == 1

    assert edge.says("renew", kept).state == "RUNNING"

    assert edge.row()["authority_unsettled"] == 0
    assert house.ends() == [(lost.claim_id, "authority_lost")]


def test_the_grant_of_a_worker_reads_as_it_was_changed(house: House) -> None:
    house.replace(house.grant, may=may("documents.sign"))

    row = house.mesh.run(lambda tx, _, now: grants.read(tx, house.grant.id))

    assert row is not None
    assert row.revision == house.grant.revision + 1


def test_an_extension_keeps_what_the_grant_allows_by_then(house: House) -> None:
    """Whoever extends has looked at it before; what was taken from it since stays taken."""
    edge = house.worker()
    [held] = edge.takes()
    looked_at = house.grant
    house.replace(looked_at, may=["documents.extract"])
    later_ms = looked_at.expires_at_ms + 1_000

    def extend(until_ms: int) -> Any:
        ask = Ask(principals.LOCAL, ExtendGrant(expires_at_ms=until_ms), looked_at.id)
        return house.mesh.run(authority.extend_grant, ask)

    assert extend(later_ms).fenced_claims == ()
    stands = house.mesh.run(grants.show, Ask(principals.LOCAL, None, looked_at.id))
    assert stands.expires_at_ms == later_ms
    assert stands.capabilities == ("worker:capability:documents.extract", "worker:register")
    with pytest.raises(Refused) as refused:
        extend(later_ms)
    assert refused.value.code == "GRANT_INVALID"
    assert house.mesh.state(held.workload_id) == "RUNNING"
    house.keeps_its_promises()


def test_authority_by_a_retired_signing_key_breaks_a_promise(house: House) -> None:
    """A hand that wrote it back is told; what retiring does itself holds."""
    edge = house.worker()
    edge.takes()
    house.mesh.conn.execute("UPDATE workers SET authority_kid = 'old'")
    house.mesh.run(signing.follow, signing.Moved("new", ("old",), rotated=True, seen=True))
    house.keeps_its_promises()
    house.mesh.run(lambda tx, _, now: authority.sweep(tx, 50, now))
    assert edge.row()["authority_live"] == 0
    house.keeps_its_promises()

    house.mesh.conn.execute("UPDATE workers SET authority_live = 1")
    broken = house.mesh.run(lambda tx, _, now: promises.ask(tx))
    assert [one.id for one in broken] == ["SIGNING"]
