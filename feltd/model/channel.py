"""The frames of a worker's channel: exchanges with an id, answers with the same, and pushes.

What a frame carries is what an exchange carries; only its claim part may be an order that stands.
"""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from feltd.model.base import (
    INTEGER_MAX,
    LEASE_MS_DEFAULT,
    LeaseMs,
    RequestKey,
    WaitMs,
    WorkloadKind,
)
from feltd.model.claim import Claim, PullMax
from feltd.model.exchange import Exchange
from feltd.model.worker import Drain

#: A worker's concurrency ends there.
CREDIT_MAX = 1_024

#: What an answer is known by: a word or a number of the client's own.
FrameId = RequestKey | Annotated[int, Meta(ge=-INTEGER_MAX, le=INTEGER_MAX)]
_Kinds = Annotated[tuple[WorkloadKind, ...], Meta(max_length=256)]


class Auth(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The first frame of a client that sent no Authorization header."""

    auth: Annotated[str, Meta(max_length=512)]


class Credit(Struct, frozen=True, kw_only=True):
    """An order that stands: keep `most` claims held, each under a lease of `lease_ms`."""

    most: int
    lease_ms: int = LEASE_MS_DEFAULT
    start: bool = False
    workload_kinds: tuple[str, ...] | None = None


class Wanted(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The claim part of a frame: one pull, or with `credit` an order that stands from then on.

    `credit` keeps the claims given and not ended at that number, or at the free slots where those
    are fewer; 0 ends it. It goes with lease_ms, start and workload_kinds alone.
    """

    credit: Annotated[int, Meta(ge=0, le=CREDIT_MAX)] | UnsetType = UNSET
    max: PullMax | UnsetType = UNSET
    lease_ms: LeaseMs = LEASE_MS_DEFAULT
    wait_ms: WaitMs | UnsetType = UNSET
    workload_kinds: _Kinds | None = None
    start: bool = False
    request_id: RequestKey | UnsetType | None = UNSET


class Frame(Exchange, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One exchange over a channel."""

    id: FrameId
    claim: Wanted | None = None  # type: ignore[assignment]


class Named(Struct, frozen=True):
    """What is read of a frame that does not fit: whom the refusal is for."""

    id: Any = None


class News(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a channel's worker is told unasked; `drain` is null when a drain was lifted."""

    claims: list[Claim] = []
    cancel_claims: list[str] = []
    fenced_claims: list[str] = []
    drain: Drain | UnsetType | None = UNSET


class Push(Struct, frozen=True):
    """The message that carries news."""

    push: News
