"""Faults in what keeps work back: holds, quarantine and ceilings that are written down in vain."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from feltd.mesh import generation, holds, lanes, placement, quarantine, register, taking
from tests.sim.mutations import Patches, standing_without, without


def claim_while_held() -> Patches:
    """Holds are placed, listed and lifted, and looked for by nobody who takes work."""
    return [patch.object(holds, "of_application", lambda *_: placement.NO_HOLDS)]


def hold_that_is_not_noticed() -> Patches:
    """What was found out before a hold goes on counting."""
    return [patch.object(generation, "touch", lambda *_: None)]


def claim_while_quarantined() -> Patches:
    """A quarantine is written down and forgotten."""
    return [
        without(taking, "ISSUE", r"   AND \(k\.quarantined_at_ms IS NULL OR .*\n"),
        standing_without("quarantined"),
    ]


def claim_beyond_a_pool() -> Patches:
    """A pool counts its claims and keeps nobody back."""
    full = r"                           AND p\.active < coalesce\(.*\)\)\)\n"
    return [
        without(taking, "ISSUE", full, instead="))\n"),
        patch.object(lanes, "close_pool", lambda *_: None),
    ]


def quarantine_that_a_restart_ends() -> Patches:
    """A registration frees its worker."""
    again = register.register

    def freed(tx: Any, ask: Any, now: Any) -> Any:
        admitted = again(tx, ask, now)
        quarantine.lift(tx, admitted.answer.worker.worker_id)
        return admitted

    return [patch.object(register, "register", freed)]


MUTATIONS: tuple[Callable[[], Patches], ...] = (
    claim_while_held,
    hold_that_is_not_noticed,
    claim_while_quarantined,
    claim_beyond_a_pool,
    quarantine_that_a_restart_ends,
)
