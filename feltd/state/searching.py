"""Search: which records of a collection hold some letters, case aside, in the text of their JSON.

A collection is walked from its newest record in bounded slices, each on one state of the database;
who asks goes on from where a slice ended, for as long as its bounds allow. Only matches are copied.
"""

from collections.abc import Sequence
from typing import NamedTuple

from feltd.clock import Now
from feltd.model.record import OfTenant, Record
from feltd.state.listing import ANSWER_BYTES_MAX, newest, record
from feltd.store.tx import Tx

#: Of one search, however many slices it takes.
ROWS_MAX = 10_000
TIME_MS_MAX = 250
#: Of one slice: some 5 ms on a reader.
SLICE_ROWS = 64
SLICE_BYTES = 2 * 1024 * 1024


class Slice(OfTenant, frozen=True, kw_only=True):
    """Which records to look at: those created before record_seq `before`, None: from the newest.

    `needle` is lower-cased. At most `matches` are wanted and `rows` looked at.
    """

    collection: str
    needle: str
    matches: int
    rows: int = SLICE_ROWS
    before: int | None = None


class Sliced(NamedTuple):
    """What a slice found; `last` is the record_seq it ended at, None when it came to the end."""

    items: tuple[Record, ...]
    scanned: int
    last: int | None


def search_slice(tx: Tx, cmd: Slice, now: Now) -> Sliced:
    """Look at the next records of a collection, newest created first."""
    items: list[Record] = []
    scanned = size_bytes = 0
    last = cmd.before
    for row in newest(tx, cmd.tenant_id, cmd.collection, cmd.before):
        if scanned == cmd.rows or len(items) == cmd.matches or size_bytes > SLICE_BYTES:
            return Sliced(tuple(items), scanned, last)
        scanned += 1
        size_bytes += len(row["value"])
        last = row["record_seq"]
        if cmd.needle in row["value"].lower():
            items.append(record(row))
    return Sliced(tuple(items), scanned, None)


def full(items: Sequence[Record]) -> bool:
    """Whether the next slice might find more than an answer may hold."""
    return sum(len(bytes(one.value)) for one in items) + SLICE_BYTES > ANSWER_BYTES_MAX
