"""Placement on the wire: what was decided, for whom, and why not for the others.

A decision keeps what was read; `candidates` carry the key by which they were ordered, `refused`
the first rule that keeps each other worker away and all of its rules.
"""

from typing import Annotated

from msgspec import Meta, Raw, Struct

from feltd.model.base import Id, Name


class Candidate(Struct, frozen=True):
    """A worker that may take the work, with the key it is ordered by.

    Most affinity labels come first, then least active, then greatest concurrency, then least id.
    """

    worker_id: str
    affinity: int
    active: int
    concurrency: int

    @property
    def key(self) -> tuple[int, int, int, str]:
        """The least key wins."""
        return (-self.affinity, self.active, -self.concurrency, self.worker_id)


class RefusedWorker(Struct, frozen=True):
    """A worker that may not: `rule` is the first of its `rules`."""

    worker_id: str
    rule: str
    rules: tuple[str, ...]


class Dry(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a directed claim would decide now. Nothing of it is stored.

    `state` is the workload's: the choice is as if it were waiting. `unread` counts workers of the
    application that were not looked at because it has too many.
    """

    workload_id: str
    eligible_workers: list[str]
    reason: str
    refused: list[RefusedWorker]
    evaluated_at_ms: int
    state: str
    selected_worker: str | None = None
    unread: int = 0


class Decision(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A stored decision. `agrees`: its inputs, looked at again, gave the same answer."""

    decision_id: str
    workload_id: str
    tenant_id: str
    application_id: str
    eligible_workers: list[str]
    reason: str
    candidates: list[Candidate]
    refused: list[RefusedWorker]
    inputs_digest: str
    decided_by: str
    evaluated_at_ms: int
    selected_worker: str | None = None
    claim_id: str | None = None
    inputs: Raw | None = None
    agrees: bool | None = None


class DecisionQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which decisions a list shows; `before` is the number it begins under."""

    workload_id: Id | None = None
    worker_id: Id | None = None
    tenant_id: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    before: int | None = None


class DecisionPage(Struct, frozen=True, kw_only=True):
    """Decisions, newest first; the next page begins under `next_before`."""

    items: list[Decision]
    next_before: int | None
