"""Faults in what sinks are told, and in how a worker hears of work that it was given."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from feltd.mesh import assigned, choosing, fences
from tests.sim.mutations import Patches


def fence_that_lets_older_claims_write() -> Patches:
    """A sink is told that whatever token comes is the highest."""
    kept = fences.fence

    def lets(tx: Any, ask: Any, now: Any) -> Any:
        try:
            return kept(tx, ask, now)
        except fences.Refused as refused:
            if "highest" not in refused.facts:
                raise
            return fences.Fence(ask.id, ask.body.body.fencing_token)

    return [patch.object(fences, "fence", lets)]


def fence_for_any_number() -> Patches:
    """A token of another tenant's claim counts too, so that a foreigner locks a resource."""
    foreign = fences.ISSUED.replace("   AND c.tenant_id = :tenant_id\n", "")
    return [patch.object(fences, "ISSUED", foreign)]


def claim_that_is_valid_past_its_lease() -> Patches:
    """A sink is not told that a lease has ended until somebody recovers it."""
    still = fences._holds

    def holds(row: Any, now: Any) -> bool:
        return still(row, type(now)(0, now.wall_ms))

    return [patch.object(fences, "_holds", holds)]


def given_work_that_nobody_hears_of() -> Patches:
    """It waits for its lease to end."""
    return [patch.object(assigned, "waiting", lambda *_: [])]


def choice_that_is_not_kept_as_it_was_made() -> Patches:
    """A decision is written down with a worker's load of another instant."""
    kept = choosing.written

    def written(inputs: Any) -> str:
        return kept(inputs).replace('"active":0', '"active":1')

    return [patch.object(choosing, "written", written)]


MUTATIONS: tuple[Callable[[], Patches], ...] = (
    fence_that_lets_older_claims_write,
    fence_for_any_number,
    claim_that_is_valid_past_its_lease,
    given_work_that_nobody_hears_of,
    choice_that_is_not_kept_as_it_was_made,
)
