"""A page of a list by keyset: what a rule is asked and what it answers; cursors come later."""

from typing import Annotated, Generic, TypeVar

from msgspec import Meta, Struct

T = TypeVar("T")

LIMIT_MAX = 500
LIMIT_DEFAULT = 50

Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX)]


class PageAsk(Struct, frozen=True, kw_only=True):
    """Items after the keyset `after` (instant and id of the last one shown), newest first.

    `tenant_id` is one of the caller's, or None for all of them.
    """

    tenant_id: str | None = None
    limit: int = LIMIT_DEFAULT
    after: tuple[int, str] | None = None


class Page(Struct, Generic[T], frozen=True, kw_only=True):
    """A page; `after` is where the next begins, None when this is the last."""

    items: tuple[T, ...]
    after: tuple[int, str] | None = None
