"""Each condition of the fence is needed: without any one of them a story comes out wrong.

The statements are changed here, in memory, one condition at a time; then the stories of
test_fence and test_lease are told again, and at least one must fail.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest

from feltd.mesh import fence, outcomes
from tests.mesh.claims import test_fence, test_lease
from tests.mesh.world import Mesh

STATEMENTS: dict[str, tuple[Any, str]] = {
    "start": (fence, "START"),
    "renew": (fence, "RENEW"),
    "checkpoint": (fence, "CHECKPOINT"),
    "log": (fence, "HOLDS"),
    "complete": (outcomes, "COMPLETE"),
    "fail": (outcomes, "FAIL"),
    "release": (outcomes, "RELEASE"),
}

#: What is taken out of a statement, by the name of the condition.
CONDITIONS = {
    "workload": (r"WHERE (w\.)?workload_id = :workload_id\n", "WHERE 1 = 1\n"),
    "token": (r"   AND (w\.)?fencing_token = :fencing_token\n", ""),
    "worker": (r"   AND (w\.)?claim_worker_id = :worker_id\n", ""),
    "state": (r"   AND (w\.)?state (= '|IN \()[^\n]*\n", ""),
    "lease end": (r"   AND (w\.)?expires_at_ms > :now_ms\n", ""),
    "incarnation": (r" +AND k\.incarnation = (workloads|w)\.claim_incarnation\n", ""),
    "key's incarnation": (r" +AND k\.incarnation = coalesce\([^\n]*\n", ""),
    "live authority": (r" +AND k\.authority_live = 1\n", ""),
    "settled authority": (r" +AND k\.authority_unsettled = 0\n", ""),
    "authority's end": (r" +AND coalesce\(k\.authority_expires_at_ms[^\n]*?> :wall_ms", ""),
    "revocation": (r" +AND y\.revoked_at_ms IS NULL\n", ""),
    "key's end": (r" +AND coalesce\(y\.expires_at_ms[^\n]*?> :wall_ms", ""),
}

#: The end that follows in the same transaction repeats the state, so nothing is lost without it.
REPEATED = {("fail", "state"), ("release", "state")}
MUTATIONS = [
    (verb, condition)
    for verb in sorted(STATEMENTS)
    for condition in sorted(CONDITIONS)
    if (verb, condition) not in REPEATED
]

STORIES: tuple[Callable[[Mesh, str], None], ...] = (
    test_fence.test_the_holder_passes,
    test_fence.test_a_token_that_is_not_the_claims_is_refused,
    test_fence.test_a_claim_of_another_workload_is_refused,
    test_fence.test_another_worker_may_not_name_the_holder_nor_use_its_claim,
    test_fence.test_the_holder_may_not_name_another_worker,
    test_fence.test_an_earlier_incarnation_is_refused_even_with_a_key_for_any,
    test_fence.test_the_key_of_an_earlier_incarnation_is_told_it_was_taken_over,
    test_fence.test_a_revoked_key_is_refused_in_the_committing_transaction,
    test_fence.test_a_key_ends_at_its_expiry_by_wall_time,
    test_fence.test_without_live_authority_nothing_is_written,
    test_fence.test_authority_ends_at_its_expiry_by_wall_time,
    test_fence.test_an_unsettled_worker_is_settled_before_it_writes,
    test_lease.test_the_lease_ends_at_its_end_though_nobody_recovered_it,
    *(
        lambda mesh, verb, state=state: test_fence.test_each_verb_works_in_its_states_alone(
            mesh, verb, state
        )
        for state in ("CLAIMED", "RUNNING", "CHECKPOINTED")
    ),
    lambda mesh, verb: ended_claims_stay_ended(mesh, verb),
)


def ended_claims_stay_ended(mesh: Mesh, verb: str) -> None:
    """A row put together by hand that only its state keeps from being written."""
    holder = test_fence.Holder(mesh, verb)
    mesh.conn.execute("PRAGMA ignore_check_constraints = ON")
    mesh.hand("DROP TRIGGER workloads_keep_to_edges")
    mesh.hand("UPDATE workloads SET state = 'CANCELLED' WHERE workload_id = :id", id=holder.job)

    assert holder.refusal(verb) == "WORKLOAD_STALE_FENCE"


def wrong(story: Callable[[Mesh, str], None], verb: str) -> str | None:
    """What comes out wrong in a story, if anything does."""
    mesh = Mesh()
    try:
        story(mesh, verb)
    except Exception as error:
        return repr(error)
    finally:
        mesh.close()
    return None


@pytest.mark.parametrize("verb", sorted(STATEMENTS))
def test_as_it_stands_every_story_comes_out_right(verb: str) -> None:
    assert [wrong(story, verb) for story in STORIES] == [None] * len(STORIES)


@pytest.mark.parametrize(("verb", "condition"), MUTATIONS)
def test_without_one_condition_a_story_comes_out_wrong(
    monkeypatch: pytest.MonkeyPatch, verb: str, condition: str
) -> None:
    module, name = STATEMENTS[verb]
    pattern, instead = CONDITIONS[condition]
    mutated, count = re.subn(pattern, instead, getattr(module, name), count=1)
    assert count == 1, "the condition is not where this test looks for it"
    monkeypatch.setattr(module, name, mutated)

    assert any(wrong(story, verb) for story in STORIES)
