"""One line of the doctor: what was looked at, how it is, what was seen, and what helps."""

from typing import Literal, NamedTuple

Level = Literal["OK", "WARN", "FAIL"]

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


class Finding(NamedTuple):
    """`helps` is a command, or a sentence with one; '' where nothing is to be done."""

    check: str
    level: Level
    seen: str
    helps: str = ""


def ok(check: str, seen: str) -> Finding:
    """All is well."""
    return Finding(check, "OK", seen)


def warn(check: str, seen: str, helps: str) -> Finding:
    """It works, and somebody should look."""
    return Finding(check, "WARN", seen, helps)


def fail(check: str, seen: str, helps: str) -> Finding:
    """It does not work, or will not for long."""
    return Finding(check, "FAIL", seen, helps)


def span(ms: float) -> str:
    """A length of time as people say it: 40 s, 7 min, 3 h, 12 days."""
    if ms < 2_000:
        return f"{int(ms)} ms"
    if ms < 2 * MINUTE_MS:
        return f"{int(ms / 1_000)} s"
    if ms < 2 * HOUR_MS:
        return f"{int(ms / MINUTE_MS)} min"
    if ms < 2 * DAY_MS:
        return f"{int(ms / HOUR_MS)} h"
    return f"{int(ms / DAY_MS)} days"


def size(count: float) -> str:
    """So many bytes as people say it: 512 B, 3.4 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def some(count: int, one: str, many: str) -> str:
    """So many of them, in words."""
    return f"{count} {one if count == 1 else many}"
