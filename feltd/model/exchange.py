"""One round trip of a worker: what it did, what it still runs, and what it may do next.

An exchange carries the bodies of single calls in lists. Each item is the single call's body and
the workload it is about; each is done or refused for itself.
"""

from typing import Annotated

from msgspec import Meta, Struct

from feltd.model.base import Id
from feltd.model.claim import (
    EXCHANGE_ITEMS_MAX,
    Checkpoint,
    Claim,
    Complete,
    Fail,
    Log,
    Pull,
    Reason,
    Release,
    Renew,
    Start,
)
from feltd.model.worker import Heartbeat, Worker

_Most = Meta(max_length=EXCHANGE_ITEMS_MAX)


class StartItem(Start, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`start` of one workload."""

    workload_id: Id


class RenewItem(Renew, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`renew` of one workload."""

    workload_id: Id


class CheckpointItem(Checkpoint, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`checkpoint` of one workload."""

    workload_id: Id


class CompleteItem(Complete, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`complete` of one workload."""

    workload_id: Id


class FailItem(Fail, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`fail` of one workload."""

    workload_id: Id


class ReleaseItem(Release, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`release` of one workload."""

    workload_id: Id


class LogItem(Log, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`log` of one workload."""

    workload_id: Id


Item = StartItem | RenewItem | CheckpointItem | CompleteItem | FailItem | ReleaseItem | LogItem


class Exchange(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/workers/{id}/exchange`. All lists together hold at most 256 items."""

    heartbeat: Heartbeat | None = None
    start: Annotated[tuple[StartItem, ...], _Most] = ()
    renew: Annotated[tuple[RenewItem, ...], _Most] = ()
    checkpoint: Annotated[tuple[CheckpointItem, ...], _Most] = ()
    complete: Annotated[tuple[CompleteItem, ...], _Most] = ()
    fail: Annotated[tuple[FailItem, ...], _Most] = ()
    release: Annotated[tuple[ReleaseItem, ...], _Most] = ()
    log: Annotated[tuple[LogItem, ...], _Most] = ()
    claim: Pull | None = None


class ItemOutcome(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What became of one item; `ok: false` changed nothing, `next` says what to do."""

    op: str
    ok: bool
    claim_id: str | None = None
    code: str | None = None
    detail: str | None = None
    next: str | None = None
    recorded: bool | None = None
    expires_at_ms: int | None = None
    state: str | None = None
    result_id: str | None = None
    eligible_at_ms: int | None = None
    cancel_requested: bool | None = None


class ExchangeAnswer(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Outcomes in the order of execution, then the differences, then what was claimed.

    `worker`, `renewed`, `grant_expires_at_ms`, `key_expires_at_ms` and `wall_time_ms` come with an
    accepted heartbeat.
    """

    outcomes: list[ItemOutcome]
    claims: list[Claim]
    assigned_claims: list[Claim]
    fenced_claims: list[str]
    unknown_claims: list[str]
    cancel_claims: list[str]
    lifecycle: str
    reasons: list[Reason]
    server_time_ms: int
    worker: Worker | None = None
    renewed: dict[str, int] | None = None
    grant_expires_at_ms: int | None = None
    wall_time_ms: int | None = None
    key_expires_at_ms: int | None = None
