"""Placement is a function of what was read: asked again it says the same, and an oracle agrees."""

import os
import random

import pytest
from msgspec import structs
from msgspec.json import decode

from feltd.errors import Refused
from feltd.mesh import choosing, placement
from feltd.model.policy import Placement
from tests.mesh.placement import scenes

PLACEMENTS = 10_000
SEED = int(os.environ.get("FELTD_SEED", "20261130"))


def test_ten_thousand_placements_are_what_the_oracle_says_and_the_same_when_asked_again() -> None:
    rng = random.Random(SEED)
    chosen = refused = 0
    firsts: set[str] = set()
    for _ in range(PLACEMENTS):
        inputs = scenes.scene(rng)
        judged = choosing.eligible_workers(inputs)
        first = choosing.first(judged)
        verdicts, best = scenes.oracle(decode(choosing.written(inputs)))

        assert (first and first.worker_id) == best
        assert [one.worker_id for one in judged.eligible] == sorted(
            worker_id for worker_id, rules in verdicts.items() if not rules
        )
        assert {one.worker_id: list(one.rules) for one in judged.refused} == {
            worker_id: rules for worker_id, rules in verdicts.items() if rules
        }
        for one in judged.refused:
            assert one.rule == one.rules[0]
            assert len(set(one.rules)) == len(one.rules)

        again = choosing.read(choosing.written(inputs))
        assert again == inputs
        assert choosing.eligible_workers(again) == judged
        assert choosing.digest(again, judged) == choosing.digest(inputs, judged)
        shuffled = structs.replace(
            inputs, workers=tuple(rng.sample(inputs.workers, len(inputs.workers)))
        )
        assert choosing.eligible_workers(shuffled) == judged

        chosen += first is not None
        refused += len(judged.refused)
        firsts |= {one.rule for one in judged.refused}
    # The scenes reach every rule, and both ends.
    assert chosen > PLACEMENTS / 4
    assert refused > PLACEMENTS
    assert firsts == set(placement.RULES)


def test_the_order_is_affinity_then_least_active_then_most_room_then_the_name() -> None:
    rng = random.Random(1)
    plain = structs.replace(
        scenes.worker(rng, 0),
        lifecycle="READY", health="HEALTHY", authority_live=1, authority_unsettled=0,
        tenant_id="acme", application_id="docs", last_seen_at_ms=scenes.LEASE_MS,
        authority_expires_at_ms=None, drain_at_ms=None, quarantined_at_ms=None,
        workload_kinds=(), labels={}, active=0, concurrency=2,
    )  # fmt: skip
    work = choosing.Work("w", "acme", "docs", "extract", "1", (), {})

    def winner(*seen: choosing.Seen) -> str:
        inputs = choosing.Inputs(
            work=work,
            policy=Placement(affinity={"zone": "a", "disk": "ssd"}),
            workers=seen,
            lease_ms=scenes.LEASE_MS,
            wall_ms=scenes.WALL_MS,
        )
        return choosing.select_worker(choosing.eligible_workers(inputs)).worker_id

    def one(worker_id: str, **members: object) -> choosing.Seen:
        return structs.replace(plain, worker_id=worker_id, **members)

    near = one("z", labels={"zone": "a"}, active=1)
    nearest = one("y", labels={"zone": "a", "disk": "ssd"}, active=1)
    assert winner(one("a"), near) == "z"
    assert winner(near, nearest) == "y"
    assert winner(one("a", active=1), one("b")) == "b"
    assert winner(one("a"), one("b", concurrency=4)) == "b"
    assert winner(one("b"), one("a")) == "a"


def test_nobody_fits_names_the_first_rule_of_each() -> None:
    rng = random.Random(2)
    inputs = structs.replace(
        scenes.scene(rng), workers=tuple(scenes.worker(rng, number) for number in range(3)),
        hold=placement.Hold("stop", "all", None, "backup"),
    )  # fmt: skip

    with pytest.raises(Refused) as refused:
        choosing.select_worker(choosing.eligible_workers(inputs))

    assert refused.value.code == "MESH_NO_ELIGIBLE_WORKER"
    told = refused.value.facts["reasons"]
    assert [one["worker_id"] for one in told] == ["worker_00", "worker_01", "worker_02"]
    assert {one["code"] for one in told} <= set(placement.RULES)


def test_a_claim_narrows_a_policy_and_never_changes_it() -> None:
    policy = Placement(required_labels={"zone": "a"}, anti_affinity={"disk": "hdd"}, pool_id="east")

    both = choosing.narrowed(
        policy, Placement(required_labels={"rack": "7", "zone": "a"}, affinity={"cache": "hot"})
    )

    assert both.required_labels == {"zone": "a", "rack": "7"}
    assert both.anti_affinity == {"disk": "hdd"}
    assert (both.pool_id, both.affinity) == ("east", {"cache": "hot"})
    assert choosing.narrowed(policy, None) == policy
    assert choosing.narrowed(Placement(), Placement(pool_id="west")).pool_id == "west"
    for wider, pointer in (
        (Placement(required_labels={"zone": "b"}), "/placement/required_labels/zone"),
        (Placement(anti_affinity={"disk": "ssd"}), "/placement/anti_affinity/disk"),
        (Placement(pool_id="west"), "/placement/pool_id"),
    ):
        with pytest.raises(Refused) as refused:
            choosing.narrowed(policy, wider)
        assert refused.value.code == "WORKLOAD_INVALID"
        assert refused.value.facts["errors"][0]["pointer"] == pointer


@pytest.mark.parametrize("seed", range(200))
def test_a_narrowed_policy_fits_nobody_whom_the_workloads_own_does_not(seed: int) -> None:
    rng = random.Random(seed)
    inputs = structs.replace(scenes.scene(rng), pool=None, ceiling=None)
    inputs = structs.replace(inputs, policy=structs.replace(inputs.policy, pool_id=None))
    by = Placement(required_labels=scenes.labels(rng, 0.3), anti_affinity=scenes.labels(rng, 0.3))
    try:
        narrow = structs.replace(inputs, policy=choosing.narrowed(inputs.policy, by))
    except Refused:
        return

    def ids(of: choosing.Inputs) -> set[str]:
        return {one.worker_id for one in choosing.eligible_workers(of).eligible}

    assert ids(narrow) <= ids(inputs)


def test_what_moves_on_by_itself_makes_no_new_digest_but_a_new_answer_does() -> None:
    inputs = scenes.scene(random.Random(5))
    worker = structs.replace(
        scenes.worker(random.Random(6), 1), last_seen_at_ms=scenes.LEASE_MS - 1_000
    )
    inputs = structs.replace(inputs, workers=(worker,), hold=None)

    def digest(of: choosing.Inputs) -> str:
        return choosing.digest(of, choosing.eligible_workers(of))

    later = structs.replace(
        inputs, lease_ms=inputs.lease_ms + 5_000, wall_ms=inputs.wall_ms + 5_000
    )
    heard = structs.replace(
        later, workers=(structs.replace(worker, last_seen_at_ms=later.lease_ms),)
    )
    silent = structs.replace(inputs, lease_ms=inputs.lease_ms + 29_000)
    busier = structs.replace(inputs, workers=(structs.replace(worker, concurrency=99),))

    assert digest(inputs) == digest(later) == digest(heard)
    assert digest(inputs) != digest(silent)
    assert digest(inputs) != digest(busier)
