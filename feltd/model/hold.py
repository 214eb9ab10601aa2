"""Holds on the wire: what is kept from being claimed, by whom, why, and until when."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from feltd.model.base import Instant, Name, Sentence

Scope = Literal["all", "tenant", "application", "pool", "definition"]
#: Why somebody holds or quarantines: a sentence that is not empty.
Why = Annotated[Sentence, Meta(min_length=1)]


class NewHold(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/holds`.

    `value` names the application, the pool, or the definition (`definition` or
    `definition#revision`) that is held; scope `tenant` may name its tenant there, scope `all` has
    none. `until_at_ms` is wall time.
    """

    scope: Scope
    reason: Why
    value: Annotated[str, Meta(min_length=1, max_length=257)] | None = None
    tenant_id: Name | None = None
    until_at_ms: Instant | None = None


class Hold(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A hold that stands. `tenant_id` is absent where everybody's work is held."""

    hold_id: str
    scope: str
    reason: str
    held_by: str
    held_at_ms: int
    tenant_id: str | None = None
    value: str | None = None
    until_at_ms: int | None = None


class HoldPage(Struct, frozen=True, kw_only=True):
    """Newest first."""

    items: tuple[Hold, ...]
    next_cursor: str | None
