"""The audit chain as the wire shows it: one row with all that its hash covers, and a page of rows.

Members that a row has not are null and never left out: the hash is over all of them, so that
whoever reads the page, or a line of the mirror, can compute it again.
"""

from typing import Literal

from msgspec import Struct


class AuditRow(Struct, frozen=True):
    """One row. `commit` seals the events of one commit, `act` is what a person or service did."""

    seq: int
    kind: Literal["commit", "act"]
    at_ms: int
    wall_at_ms: int
    first_event_seq: int | None
    last_event_seq: int | None
    actor: str | None
    action: str | None
    subject: str | None
    reason: str | None
    digest: str
    prev_hash: str
    hash: str


class AuditPage(Struct, frozen=True):
    """Rows in order. `head` is the newest number, `oldest` the first one still kept.

    `next_after` is where to go on: a filtered page may be short, or empty, and still not the last.
    """

    items: list[AuditRow]
    head: int
    oldest: int
    next_after: int


class Walking(Struct, frozen=True):
    """Where a reader of the chain stands, and which rows it wants.

    `tenants` say whose turn the reading is: the whole daemon's callers', not the daemon's own.
    """

    after: int = 0
    limit: int = 50
    kind: Literal["commit", "act"] | None = None
    actor: str | None = None
    action: str | None = None
    subject: str | None = None
    tenants: tuple[str, ...] = ("*",)
