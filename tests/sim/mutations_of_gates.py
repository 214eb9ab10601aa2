"""Faults in what opens and closes gates, in who may take what by which way, and in what is told."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from msgspec import structs

from feltd.clock import Now
from feltd.mesh import (
    attempts,
    choosing,
    decisions,
    dependencies,
    directed,
    events,
    feed,
    gates,
    inputs,
    rates,
    taking,
)
from feltd.store.tx import Row, Tx
from tests.sim.mutations import Patches, standing_without, without


def gate_that_one_end_leaves_closed() -> Patches:
    """A lease that ran out makes no room in its pool and keys."""
    close = attempts._close

    def closed(tx: Tx, now: Now, held: Row, fate: Any, end: Any) -> None:
        if end.kind != "lease_expired":
            close(tx, now, held, fate, end)
            return
        with patch.object(gates, "leave", lambda *_: None):
            close(tx, now, held, fate, end)

    return [patch.object(attempts, "_close", closed)]


def rate_off_by_one() -> Patches:
    """A rate key lets one more through than it says, by every way."""
    said, one_more = r"r\.uses \+ 1 - r\.claims_max", "r.uses - r.claims_max"
    return [
        without(taking, "ISSUE", said, instead=one_more),
        without(gates, "FULL", said, instead=one_more),
        without(rates, "OPENS_AT", said, instead=one_more),
        without(inputs, "RATE", said, instead=one_more),
    ]


def pool_ceiling_that_ids_pass() -> Patches:
    """Who names a workload gets it, though its pool is full."""
    room = r"AND p\.active < coalesce\(p\.max_concurrency, p\.active \+ 1\)"
    open_to_ids = "AND (:how = 'id' OR p.active < coalesce(p.max_concurrency, p.active + 1))"
    kept = gates.full

    def full(*of: Any) -> list[str]:
        return [rule for rule in kept(*of) if rule != "pool_full"]

    return [
        without(taking, "ISSUE", room, instead=open_to_ids),
        patch.object(gates, "full", full),
    ]


def quarantine_that_ids_pass() -> Patches:
    """A quarantined worker gets what it asks for by name."""
    kept_away = r"AND \(k\.quarantined_at_ms IS NULL OR"
    open_to_ids = "AND (:how = 'id' OR k.quarantined_at_ms IS NULL OR"
    return [
        without(taking, "ISSUE", kept_away, instead=open_to_ids),
        standing_without("quarantined"),
    ]


def hold_that_given_work_passes() -> Patches:
    """People give away what is held."""
    return [patch.object(inputs, "_hold", lambda *_: None)]


def key_that_given_work_passes() -> Patches:
    """People give away what a full key keeps back."""
    return [patch.object(inputs, "_concurrency", lambda *_: None)]


def parents_end_that_is_none() -> Patches:
    """Work that is tried again counts as ended for who waits for it."""
    tell = attempts._tell

    def told(tx: Tx, now: Now, held: Row, fate: Any, end: Any) -> None:
        tell(tx, now, held, fate, end)
        if fate.state == "READY" and held["awaited"]:
            dependencies.ended(tx, now, held, "COMPLETED")

    return [patch.object(attempts, "_tell", told)]


# -- decisions -------------------------------------------------------------------------------


def decision_without_its_hold() -> Patches:
    """What kept everybody away is not written down with the refusal."""
    kept = choosing.written
    return [patch.object(choosing, "written", lambda of: kept(structs.replace(of, hold=None)))]


def decision_without_its_instant() -> Patches:
    """A decision is written down as if it had been made at another time."""
    kept = choosing.written
    return [patch.object(choosing, "written", lambda of: kept(structs.replace(of, lease_ms=0)))]


def choice_of_the_busiest() -> Patches:
    """The last of the documented order gets the work."""

    def last(judged: Any) -> Any:
        return max(judged.eligible, key=lambda one: one.key, default=None)

    return [patch.object(choosing, "first", last)]


def dry_run_that_is_kept() -> Patches:
    """Trying out writes a decision."""
    tried = directed.try_out

    def kept(tx: Tx, ask: Any, now: Now) -> Any:
        work = inputs.workload(tx, ask.caller, ask.id)
        policy = directed.narrowed(tx, work, ask.body)
        decisions.keep(tx, now, ask.caller, decisions.answer(inputs.read(tx, work, policy, now)))
        return tried(tx, ask, now)

    return [patch.object(directed, "try_out", kept)]


# -- the feed --------------------------------------------------------------------------------


def feed_that_loses_what_ends_a_page() -> Patches:
    """A reader goes on one number too far."""
    return [without(feed, "OF_ALL", r"e\.seq > :after", instead="e.seq > :after + 1")]


def feed_that_forgets_a_tenant() -> Patches:
    """Of two tenants the second one's events come to nobody."""
    kept = feed._of_tenant

    def of_first(tx: Tx, tenant_id: str, *stretch: Any) -> Any:
        return kept(tx, tenant_id, *stretch) if tenant_id == "acme" else iter(())

    return [patch.object(feed, "_of_tenant", of_first)]


def numbers_that_come_again() -> Patches:
    """After an earlier file was put back, events have numbers that others had."""
    return [patch.object(events, "skip", lambda *_: None)]


MUTATIONS: tuple[Callable[[], Patches], ...] = (
    gate_that_one_end_leaves_closed,
    rate_off_by_one,
    pool_ceiling_that_ids_pass,
    quarantine_that_ids_pass,
    hold_that_given_work_passes,
    key_that_given_work_passes,
    parents_end_that_is_none,
    decision_without_its_hold,
    decision_without_its_instant,
    choice_of_the_busiest,
    dry_run_that_is_kept,
    feed_that_loses_what_ends_a_page,
    feed_that_forgets_a_tenant,
    numbers_that_come_again,
)
