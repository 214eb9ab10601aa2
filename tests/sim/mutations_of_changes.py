"""Faults in what time ends and in what people change of waiting work, one by one or in bulk."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from feltd.clock import Now
from feltd.mesh import (
    attempts,
    bulk,
    cancel,
    deadlines,
    demands,
    dependencies,
    edit,
    editors,
    fence,
    overdue,
    requeue,
    retry,
    sweep,
    taking,
    vitals,
)
from feltd.store.tx import Row, Tx
from tests.sim.mutations import FENCES, Patches, without

PASSED = r"   AND \((w\.)?timeouts = '\{\}'\n(?:.*\n)*?.*<= :now_ms\)\)\n"


def _unarmed(module: Any) -> Any:
    """A module in which nobody writes down when timeouts end."""
    return patch.object(module, "deadlines", _Unarmed)


class _Unarmed:
    NONE = deadlines.NONE

    @staticmethod
    def arm(*_: Any) -> None:
        """Forget it."""


# -- timeouts --------------------------------------------------------------------------------


def timeout_that_the_fence_does_not_see() -> Patches:
    """A holder past its timeout writes on until the keeper has come by."""
    return [without(module, name, PASSED) for module, name in FENCES if name != "HOLDS"]


def claim_past_its_timeout() -> Patches:
    """Work that waited too long is taken all the same, until the keeper has come by."""
    late = r"   AND NOT EXISTS \(SELECT 1\n *FROM deadlines d\n(?:.*\n){2}"
    return [without(taking, "ISSUE", late)]


def requeue_that_arms_nothing() -> Patches:
    """What was brought back keeps no timeouts."""
    return [_unarmed(requeue)]


def retry_that_arms_nothing() -> Patches:
    """What is tried again keeps no timeouts."""
    return [_unarmed(attempts)]


def start_that_arms_nothing() -> Patches:
    """A started claim is still held to the instant at which it had to start."""
    return [_unarmed(fence)]


def edit_that_arms_nothing() -> Patches:
    """Other timeouts are stored and count for nobody."""
    return [_unarmed(edit)]


def cancel_that_disarms_nothing() -> Patches:
    """Timeouts of work that was called off stand on."""
    return [_unarmed(cancel)]


def settled_work_that_arms_nothing() -> Patches:
    """What waited for others waits for ever then."""
    return [_unarmed(dependencies)]


def queue_that_counts_from_the_creation() -> Patches:
    """Work that may run later, or again, is given up as if it could have been taken before."""
    kept = deadlines.of_state

    def counted(row: Any) -> Any:
        if row["state"] != "READY":
            return kept(row)
        return kept({**dict(row), "eligible_at_ms": 0, "ready_at_ms": row["created_at_ms"]})

    return [patch.object(deadlines, "of_state", counted)]


def renewal_that_extends_execution() -> Patches:
    """Every start of an attempt gives the work all of its total_ms again."""
    kept = deadlines.total

    def later(row: Any) -> Any:
        since_ms = max(row["created_at_ms"], row["ready_at_ms"] or 0)
        return kept({**dict(row), "created_at_ms": since_ms})

    return [patch.object(deadlines, "total", later)]


def timeout_that_waits_for_the_lease() -> Patches:
    """A lapsed lease is called so, though a timeout came first."""
    first = r"   AND \(w\.timeouts = '\{\}'\n(?:.*\n)*?.*<= w\.expires_at_ms\)\)\n"
    return [without(sweep, "LAPSED", first)]


def total_timeout_that_is_tried_again() -> Patches:
    """What outstayed all its time goes back to the others."""
    kept = overdue.end_claim

    def ended(tx: Tx, now: Now, workload_id: str, end: Any) -> Any:
        return kept(tx, now, workload_id, end._replace(to="READY" if end.to else None))

    return [patch.object(overdue, "end_claim", ended)]


def credit_beyond_an_execution() -> Patches:
    """An outage gives whoever runs more time to run."""
    return [without(deadlines, "UNSTARTED", r"   AND w\.state = 'CLAIMED'\n")]


def no_credit_for_a_start() -> Patches:
    """Who could not say that he started is ended for it."""
    return [patch.object(vitals.deadlines, "credit", lambda *_: 0)]


def lost_workers_claims_always_end() -> Patches:
    """Nobody asks what the work says of lost workers."""
    said = r"   AND coalesce\(w\.on_worker_lost, :on_worker_lost\) = 'end'\n"
    return [without(vitals, "LOST_CLAIMS", said)]


def lost_workers_claims_never_end() -> Patches:
    """They run out, whatever the work says."""
    said = r"coalesce\(w\.on_worker_lost, :on_worker_lost\) = 'end'"
    return [without(vitals, "LOST_CLAIMS", said, instead="1 = 0")]


def retry_of_whatever_failed() -> Patches:
    """The kinds that a policy names are not looked at."""
    kept = retry._BACKOFF

    class Everything:
        @staticmethod
        def decode(text: Any) -> Any:
            policy = kept.decode(text)
            return type(policy)(
                policy.initial_backoff_ms,
                policy.multiplier,
                policy.max_backoff_ms,
                policy.jitter,
                ("execution_error", *policy.retry_on),
            )

    return [patch.object(retry, "_BACKOFF", Everything)]


# -- edits -----------------------------------------------------------------------------------


def edit_that_leaves_the_head() -> Patches:
    """Work that moved stands at the head of where it was."""
    return [patch.object(edit, "demands", _Standing)]


class _Standing:
    offer = demands.offer

    @staticmethod
    def withdraw(*_: Any) -> None:
        """Forget it."""


def edit_that_offers_nothing() -> Patches:
    """Work that moved is found by nobody where it is now."""

    class Silent:
        withdraw = demands.withdraw

        @staticmethod
        def offer(*_: Any) -> None:
            """Forget it."""

    return [patch.object(edit, "demands", Silent)]


def edit_of_held_work() -> Patches:
    """What a worker holds is changed under it."""
    state = r"   AND state IN \('PENDING', 'READY', 'DEAD_LETTERED'\)\n"
    return [
        without(edit, "EDIT", state),
        patch.object(edit, "LIVE_STATES", frozenset()),
    ]


def edit_that_forgets_a_backoff() -> Patches:
    """Another not_before has work tried again before its time."""
    return [without(edit, "BACKOFF", r"c\.retry_at_ms > :now_ms", instead="1 = 0")]


def run_now_that_keeps_the_backoff() -> Patches:
    """Work that is to run at once waits all the same."""
    kept = edit._eligible_at_ms

    def waits(tx: Tx, now: Now, row: Row, instant: Any) -> int:
        eligible_ms = kept(tx, now, row, instant)
        return int(row["eligible_at_ms"]) if instant == 0 else eligible_ms

    return [patch.object(edit, "_eligible_at_ms", waits)]


def edit_in_the_old_lane() -> Patches:
    """Another placement is stored, and the work stays with those who fitted the former one."""

    def stays(tx: Tx, row: Any, said: Any = ()) -> tuple[int, int]:
        if row["demand_id"] is None:
            return editors_demand_of(tx, row, said)
        return row["demand_id"], row["lane_id"]

    editors_demand_of = editors.demand_of
    return [patch.object(edit.editors, "demand_of", stays)]


def merge_that_replaces() -> Patches:
    """A patch of one member takes the others of its object away."""
    return [patch.object(edit, "merged", lambda stored, told: told)]


# -- bulk ------------------------------------------------------------------------------------


def bulk_that_changes_held_work() -> Patches:
    """Held work gets another priority under its worker."""
    states = {**bulk.STATES, "reprioritise": bulk.STATES["cancel"]}
    return [
        patch.object(bulk, "STATES", states),
        without(bulk, "REPRIORITISE", r"   AND state IN .*\n"),
    ]


def bulk_that_looks_once() -> Patches:
    """A chunk changes what was found, whatever has become of it."""
    return [patch.object(bulk.listing, "meets", lambda *_: True)]


def bulk_that_forces() -> Patches:
    """Held work that a filter lets through is taken from its worker."""
    kept = cancel.call_off

    def forced(tx: Tx, now: Now, row: Row, actor: str, *, force: bool) -> bool:
        return kept(tx, now, row, actor, force=True)

    return [patch.object(bulk.cancel, "call_off", forced)]


def bulk_that_leaves_the_heads() -> Patches:
    """Another priority is stored, and the order stays."""
    return [patch.object(bulk, "demands", _Standing)]


def search_that_misses_a_row() -> Patches:
    """A search goes on one row too far."""
    kept = bulk.find

    def missing(tx: Tx, ask: Any, now: Now) -> Any:
        found = kept(tx, ask, now)
        if found.before is None:
            return found
        return bulk.Found(found.workload_ids, found.count, found.before - 1)

    return [patch.object(bulk, "find", missing)]


MUTATIONS: tuple[Callable[[], Patches], ...] = (
    timeout_that_the_fence_does_not_see,
    claim_past_its_timeout,
    requeue_that_arms_nothing,
    retry_that_arms_nothing,
    start_that_arms_nothing,
    edit_that_arms_nothing,
    cancel_that_disarms_nothing,
    settled_work_that_arms_nothing,
    queue_that_counts_from_the_creation,
    renewal_that_extends_execution,
    timeout_that_waits_for_the_lease,
    total_timeout_that_is_tried_again,
    credit_beyond_an_execution,
    no_credit_for_a_start,
    lost_workers_claims_always_end,
    lost_workers_claims_never_end,
    retry_of_whatever_failed,
    edit_that_leaves_the_head,
    edit_that_offers_nothing,
    edit_of_held_work,
    edit_that_forgets_a_backoff,
    run_now_that_keeps_the_backoff,
    edit_in_the_old_lane,
    merge_that_replaces,
    bulk_that_changes_held_work,
    bulk_that_looks_once,
    bulk_that_forces,
    bulk_that_leaves_the_heads,
    search_that_misses_a_row,
)
