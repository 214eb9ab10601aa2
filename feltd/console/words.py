"""Instants, spans, sizes, JSON and the daemon's sentences as a person reads them.

Plain functions; templates call them. What they mark up is escaped here.
"""

import json
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import count
from typing import Any

from markupsafe import Markup, escape

#: Of a JSON value a page shows this much; the API has the rest.
JSON_CHARS_MAX = 16_384

#: Where a cell of a row begins.
_CELL = re.compile(r"<t[dh](?=[ >])")
#: Ids in a sentence, and where each kind is shown to whom; a hold has no page of its own.
_IDS = re.compile(r"\b(workload|worker|grant|hold)_[0-9A-Za-z_]{8,64}\b")
_PLACES = {
    "workload": ("/console/workloads/", "workloads:read"),
    "worker": ("/console/workers/", "workers:read"),
    "grant": ("/console/grants/", "grants:issue"),
    "hold": ("/console/holds#", "workloads:operate"),
}
#: An id longer than this is shown by its end, whole in its title.
ID_CHARS_MAX = 24
#: Why a worker went offline, for people who have not read the manual.
OFFLINE = {
    "failed": "failed: nothing was heard of it within its timeout",
    "left": "left: it ended by itself",
    "drained": "drained: it ended when nothing was left in its hands",
    "recover": "recover: it did not reconcile in time",
    "restored": "restored: the database was put back, it must reconcile",
}
#: Where in the console a cause is seen to: its place and the scope that opens it.
SEEN_TO = {
    "HELD": (("Holds", "/console/holds", "workloads:operate"),),
    "CLAIMS_HELD": (("Holds", "/console/holds", "workloads:operate"),),
    "EXPIRING": (
        ("Grants", "/console/grants", "grants:issue"),
        ("Keys", "/console/keys", "keys:admin"),
    ),
    "NO_MATCH": (("Workers", "/console/workers", "workers:read"),),
    "NO_CAPABILITY": (("Workers", "/console/workers", "workers:read"),),
    "NO_WORKER": (("Workers", "/console/workers", "workers:read"),),
    "POOL_FULL": (("Pools", "/console/pools", "workers:read"),),
    "WORKER_POOL_NOT_FOUND": (("Pools", "/console/pools", "workers:read"),),
    "DEAD_LETTERS": (("Dead letters", "/console/dead-letters", "workloads:read"),),
}

INDENTED = json.JSONEncoder(indent=2, ensure_ascii=False, sort_keys=True)

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def when(at_ms: int | None) -> str:
    """An instant in UTC to the second."""
    if at_ms is None:
        return "–"
    try:
        return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"


def iso(at_ms: int) -> str:
    """An instant as HTML's <time> wants it, to the millisecond."""
    try:
        found = datetime.fromtimestamp(at_ms / 1_000, UTC)
    except (OverflowError, ValueError, OSError):
        return ""
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def span(ms: int | float | None) -> str:
    """A length of time in its two largest units: 3 d 4 h, 2 min 5 s, 850 ms."""
    if ms is None:
        return "–"
    ms = max(int(ms), 0)
    if ms < 1_000:
        return f"{ms} ms"
    seconds = ms // 1_000
    days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
    if days:
        return f"{days:,} d {hours} h" if days < 1_000 else f"{days:,} d"
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {seconds % 60} s"
    return f"{seconds} s" if seconds >= 10 else f"{ms / 1_000:.1f} s"


def ago(at_ms: int | None, now_ms: int) -> str:
    """How far an instant is from now, and on which side."""
    if at_ms is None:
        return "–"
    return f"{span(now_ms - at_ms)} ago" if at_ms <= now_ms else f"in {span(at_ms - now_ms)}"


def size(n: int | float | None) -> str:
    """A number of bytes with a binary unit."""
    if n is None or n < 0:
        return "–"
    left = float(n)
    for unit in _SIZES:
        if left < 1024 or unit == _SIZES[-1]:
            return f"{int(left)} B" if unit == "B" else f"{left:.1f} {unit}"
        left /= 1024
    return ""


def number(n: int | float | None) -> str:
    """A count with separators; a rate with two digits."""
    if n is None:
        return "–"
    return f"{n:,}" if isinstance(n, int) else f"{n:,.2f}"


def pretty(value: Any, chars_max: int = JSON_CHARS_MAX) -> tuple[str, bool]:
    """A value as indented JSON of at most `chars_max` characters, and whether that is all of it.

    No more of it is written than is shown: a megabyte of small values would take a second, in
    which the daemon hears nobody.
    """
    written, length = [], 0
    for piece in INDENTED.iterencode(value):
        written.append(piece)
        length += len(piece)
        if length > chars_max:
            return "".join(written)[:chars_max], False
    return "".join(written), True


def short(id: str) -> str:
    """What tells a long id from others of its kind: workload_…6f20637f."""
    return id if len(id) <= ID_CHARS_MAX else f"{id.partition('_')[0]}_…{id[-8:]}"


def linked(text: str, may: Callable[[str], bool], whole: bool = False) -> Markup:
    """A sentence with each id in it a link, where it leads who `may` follow it.

    Long ids stand there by their end unless `whole`.
    """
    told, at = Markup(), 0
    for found in _IDS.finditer(text):
        id = found.group()
        place, scope = _PLACES[found.group(1)]
        shown = id if whole else short(id)
        told += escape(text[at : found.start()])
        if may(scope):
            told += Markup('<a href="{}{}" title="{}">{}</a>').format(place, id, id, shown)
        else:
            told += Markup('<span title="{}">{}</span>').format(id, shown)
        at = found.end()
    return told + escape(text[at:])


def stretches(events: Iterable[Any]) -> list[tuple[Any, int, int]]:
    """Events in order, those that only repeat the one before told once: (first, times, last at).

    A long attempt checkpoints for hours; what a reader looks for is when that began and ended.
    """
    found: list[tuple[Any, int, int]] = []
    for event in events:
        if found and event.from_state == event.to and _same(found[-1][0], event):
            first, times, _ = found[-1]
            found[-1] = (first, times + 1, event.at_ms)
        else:
            found.append((event, 1, event.at_ms))
    return found


def _same(first: Any, event: Any) -> bool:
    return (first.kind, first.to, first.fencing_token, first.actor) == (
        event.kind,
        event.to,
        event.fencing_token,
        event.actor,
    )


def labelled(rows: Markup, heads: Iterable[str]) -> Markup:
    """Rows of a table whose cells carry their heads, for a screen that has no room for columns.

    Markup that a template wrote: what anybody said is escaped in it and opens no cell.
    """
    marks = [f' data-label="{escape(head)}"' if head else "" for head in heads]

    def row(text: str) -> str:
        place = count(-1)  # the first cell names the row and needs no head
        return _CELL.sub(lambda cell: cell.group() + _mark(marks, next(place)), text)

    return Markup("<tr".join(row(text) for text in rows.split("<tr")))


def _mark(marks: list[str], place: int) -> str:
    return marks[place + 1] if 0 <= place < len(marks) - 1 else ""
