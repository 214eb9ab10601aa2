"""Instants, spans, sizes and JSON as a person reads them. Plain functions; templates call them."""

import json
from datetime import UTC, datetime
from typing import Any

#: Of a JSON value a page shows this much; the API has the rest.
JSON_CHARS_MAX = 16_384

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
    """A value as indented JSON of at most `chars_max` characters, and whether that is all of it."""
    text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    return text[:chars_max], len(text) <= chars_max
