"""Compaction as it is asked for, and what came of it: how long things are kept, what was cleared.

Durations are milliseconds; 0 keeps for ever.
"""

from typing import Literal, NamedTuple

from msgspec import Struct

#: What is cleared, in the order of a round: what holds others comes before what it holds.
Table = Literal[
    "changes",
    "records",
    "firings",
    "workloads",
    "groups",
    "tombstones",
    "decisions",
    "events",
    "audit",
    "sessions",
    "keys",
    "workers",
]


class Policy(NamedTuple):
    """How long each kind of row is kept after it is of no more use, ms; 0: for ever."""

    changes_ms: int
    consumer_limit_ms: int
    workloads_ms: int
    dead_letters_ms: int
    deleted_ms: int
    decisions_ms: int
    events_ms: int
    audit_ms: int
    workers_ms: int
    keys_ms: int


class Slice(NamedTuple):
    """One step: clear at most about `limit` rows of one table."""

    table: Table
    limit: int
    policy: Policy


class Pruned(NamedTuple):
    """What one step cleared, rows by table; `more`: there is more of it to clear.

    `skipped` names rows that the schema would not let go.
    """

    counts: dict[str, int]
    more: bool
    skipped: tuple[str, ...] = ()


class Held(NamedTuple):
    """Who keeps a log of changes from being cut further than `seq`."""

    by: str
    seq: int


class Floor(NamedTuple):
    """How far a log may be cut now: up to `seq`; `held` says who holds it there, the first first.

    `past_seq` is the last change past its time, `drops` the consumers nobody waits for any longer.
    """

    tenant_id: str
    head_seq: int
    floor_seq: int
    past_seq: int
    seq: int
    held: tuple[Held, ...]
    drops: tuple[str, ...]


class HeldBack(Struct, frozen=True):
    """A log that would be cut further, and who needs what lies behind `seq`."""

    tenant_id: str
    by: str
    seq: int


class Compact(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a compaction by hand; `dry_run` only tells what it would clear."""

    dry_run: bool = False


class Outcome(Struct, frozen=True):
    """What was cleared, rows by table; `more`: call again. `rewrote_log`: the file gave space back.

    In a dry run the counts are what would be cleared, exact up to COUNTED_MAX a table.
    """

    pruned: dict[str, int]
    rewrote_log: bool
    dry_run: bool
    held_back: tuple[HeldBack, ...]
    more: bool


#: A dry run counts no further: it reads every row it counts.
COUNTED_MAX = 10_000
