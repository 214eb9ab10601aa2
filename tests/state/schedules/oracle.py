"""When a cron is due, found the slow way: every minute of UTC looked at, with fields read anew."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

MINUTE_MS = 60_000
BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


@cache
def _field(text: str, place: int) -> set[int]:
    low, high = BOUNDS[place]
    found: set[int] = set()
    for term in text.split(","):
        term, _, step = term.partition("/")
        if term == "*":
            first, last = low, high
        elif "-" in term:
            first, last = map(int, term.split("-"))
        else:
            first = int(term)
            last = high if step else first
        found |= set(range(first, last + 1, int(step or 1)))
    return {n % 7 for n in found} if place == 4 else found


def matches(cron: str, shown: datetime) -> bool:
    """Whether a clock that shows this matches the fields; `*` in a day field means both."""
    texts = cron.split()
    minute, hour, day, month, weekday = (_field(text, n) for n, text in enumerate(texts))
    in_month, in_week = shown.day in day, shown.isoweekday() % 7 in weekday
    both = texts[2].startswith("*") or texts[4].startswith("*")
    return (
        shown.minute in minute
        and shown.hour in hour
        and shown.month in month
        and (in_month and in_week if both else in_month or in_week)
    )


def instants(cron: str, zone: str, after_ms: int, until_ms: int) -> Iterator[int]:
    """Every instant in (after_ms, until_ms]; the clock must not shift in the day before."""
    tz, minute = ZoneInfo(zone), timedelta(minutes=1)
    fixed = not any(text.startswith("*") for text in cron.split()[:2])

    def shown(at_ms: int) -> datetime:
        return datetime.fromtimestamp(at_ms // 1_000, UTC).astimezone(tz).replace(tzinfo=None)

    first_ms = after_ms - after_ms % MINUTE_MS
    furthest = shown(first_ms)
    for at_ms in range(first_ms + MINUTE_MS, until_ms + 1, MINUTE_MS):
        here = shown(at_ms)
        if not fixed:
            due = matches(cron, here)
        else:
            # Local minutes that the clock has never shown before, jumped over or not.
            due = False
            while furthest < here:
                furthest += minute
                due = due or matches(cron, furthest)
        if due:
            yield at_ms
