"""The instants of a schedule: pure arithmetic over cron fields, zones and intervals.

cronsim reads the five fields and walks a calendar without zones; what a zone's clock does to that
calendar is decided here, because cronsim's own walk overshoots where clocks shift half an hour.
Two kinds, as in Debian's cron. A fixed time (neither minute nor hour begins with `*`) runs once a
local day: right after a gap that swallowed it, the first time where the clock shows it twice. Any
other runs whenever the clock matches: never inside a gap, both times where it shows a time twice.
"""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from feltd.errors import Refused
from feltd.model.base import INTEGER_MAX

#: What is due once in more than five years is a mistake far more often than a wish.
HORIZON_MS = 5 * 366 * 86_400_000
#: A look ahead ends here: 100 leap days would be four centuries of walking.
PREVIEW_MS_MAX = 50 * 366 * 86_400_000
#: No zone shifts its clock and takes the shift back within a week.
WEEK_S = 7 * 86_400
#: The calendar ends in 9999, and cronsim looks 50 years ahead.
END_S = 250_246_627_200  # 9900-01-01
#: Of a clock on the wall: it shows no zone.
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001
FIELDS = 5
#: `7-7/2` is one number; cronsim takes it for `7/2`, every second one from 7 on.
ONE_NUMBER = re.compile(r"\b(\w+)-\1/\d+\b")
#: Folders and files beside the zones: leap seconds counted, or whatever the machine is set to.
NO_ZONES = ("posix/", "right/", "localtime", "posixrules", "Factory")


class Spec(NamedTuple):
    """When a schedule is due: `cron` read in `timezone`, or `every_ms` counted from the anchor.

    Exactly one of cron and every_ms is there. Wall time, milliseconds.
    """

    cron: str | None
    every_ms: int | None
    timezone: str = "UTC"
    anchor_at_ms: int | None = None


class Passed(NamedTuple):
    """Instants of a stretch: how many were counted, the two newest of them; `more` are not counted.

    `newest` and `before` are None where there was none.
    """

    number: int
    newest: int | None
    before: int | None
    more: bool


def check(spec: Spec, now_ms: int) -> None:
    """Refuse TRIGGER_INVALID for a zone or fields nobody can read, or nothing within five years.

    Pure, some milliseconds at worst.
    """
    zone(spec.timezone)
    if spec.cron is None:
        return
    fields = spec.cron.split()
    if len(fields) != FIELDS:
        raise _invalid("/cron", "has five fields: minute, hour, day of month, month, day of week")
    _calendar(spec.cron, EPOCH)
    first = following(spec, now_ms)
    if first is None or first > now_ms + HORIZON_MS:
        raise _invalid("/cron", "is not due once within five years")


@lru_cache(maxsize=1_024)
def zone(name: str) -> ZoneInfo:
    """The zone of an IANA name; TRIGGER_INVALID when there is none of that name."""
    if not name.startswith(NO_ZONES):
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):  # a folder's name is an OSError
            pass
    raise _invalid("/timezone", "is no IANA time zone; Europe/Berlin is one")


def following(spec: Spec, after_ms: int) -> int | None:
    """The first instant after `after_ms`, wall time; None when none comes any more."""
    return next(walk(spec, after_ms), None)


def preview(spec: Spec, now_ms: int, count: int) -> list[int]:
    """The next `count` instants after now, within 50 years."""
    ahead = islice(walk(spec, now_ms), count)
    return [at_ms for at_ms in ahead if at_ms <= now_ms + PREVIEW_MS_MAX]


def local(spec: Spec, at_ms: int) -> str:
    """An instant as the zone's clock shows it, with its distance from UTC."""
    return datetime.fromtimestamp(at_ms // 1_000, zone(spec.timezone)).isoformat()


def passed(spec: Spec, after_ms: int, until_ms: int, most: int) -> Passed:
    """The instants in (after_ms, until_ms]; of a cron no more than `most` are counted."""
    if spec.every_ms is not None:
        first = next(_every(spec, after_ms), None)
        if first is None or first > until_ms:
            return Passed(0, None, None, more=False)
        rest = (until_ms - first) // spec.every_ms
        newest = first + rest * spec.every_ms
        return Passed(rest + 1, newest, newest - spec.every_ms if rest else None, more=False)
    number, newest_ms, before_ms = 0, None, None
    for at_ms in walk(spec, after_ms):
        if at_ms > until_ms:
            break
        if number == most:
            return Passed(number, newest_ms, before_ms, more=True)
        number, newest_ms, before_ms = number + 1, at_ms, newest_ms
    return Passed(number, newest_ms, before_ms, more=False)


def walk(spec: Spec, after_ms: int) -> Iterator[int]:
    """Every instant after `after_ms`, ascending, none twice; nothing is due before 1970."""
    if spec.cron is None:
        yield from _every(spec, after_ms)
        return
    after_s = max(after_ms // 1_000, -1)
    if after_s >= END_S:
        return
    tz = zone(spec.timezone)
    minute, hour, *_ = spec.cron.split()
    fixed = not minute.startswith("*") and not hour.startswith("*")
    each = _fixed if fixed else _matching
    for at_s in each(spec.cron, tz, after_s):
        if at_s >= END_S:
            return
        yield at_s * 1_000


def _every(spec: Spec, after_ms: int) -> Iterator[int]:
    """anchor + n × every_ms, n = 1, 2, …: nothing that happens in between moves it."""
    assert spec.every_ms is not None
    assert spec.anchor_at_ms is not None
    nth = max(0, (after_ms - spec.anchor_at_ms) // spec.every_ms) + 1
    at_ms = spec.anchor_at_ms + nth * spec.every_ms
    while at_ms <= INTEGER_MAX:
        yield at_ms
        at_ms += spec.every_ms


def _fixed(cron: str, tz: ZoneInfo, after_s: int) -> Iterator[int]:
    """Each local time once. Local times up to `after_s`'s have instants up to it, gap or not."""
    last_s = after_s
    for shown in _calendar(cron, _clock(after_s, _offset(tz, after_s))):
        at_s = _instant(tz, shown)
        if at_s > last_s:  # times inside one gap meet right after it
            yield at_s
            last_s = at_s


def _instant(tz: ZoneInfo, shown: datetime) -> int:
    """When a zone's clock first shows a local time, or jumps over it."""
    ahead_s = _seconds(shown.replace(tzinfo=tz, fold=0).utcoffset())
    at_s = _seconds(shown - EPOCH) - ahead_s
    if _offset(tz, at_s) == ahead_s:
        return at_s
    behind_s = _seconds(shown.replace(tzinfo=tz, fold=1).utcoffset())
    return _shift(tz, _seconds(shown - EPOCH) - behind_s, at_s)


def _matching(cron: str, tz: ZoneInfo, after_s: int) -> Iterator[int]:
    """Each instant at which the clock matches: between two shifts of it, a plain calendar."""
    while True:
        seen_s, offset_s = after_s, _offset(tz, after_s + 1)
        shifted_s = None
        for shown in _calendar(cron, _clock(after_s, offset_s)):
            at_s = _seconds(shown - EPOCH) - offset_s
            shifted_s = _shifted(tz, seen_s + 1, at_s, offset_s)
            if shifted_s is not None:
                break
            yield at_s
            seen_s = at_s
        if shifted_s is None:
            return
        after_s = shifted_s - 1


def _shifted(tz: ZoneInfo, from_s: int, to_s: int, offset_s: int) -> int | None:
    """The first second in (from_s, to_s] whose offset is not `offset_s`, which from_s has."""
    while from_s < to_s:
        look_s = min(to_s, from_s + WEEK_S)
        if _offset(tz, look_s) != offset_s:
            return _shift(tz, from_s, look_s)
        from_s = look_s
    return None


def _shift(tz: ZoneInfo, low_s: int, high_s: int) -> int:
    """The first second with another offset than low_s has; high_s has another."""
    offset_s = _offset(tz, low_s)
    while high_s - low_s > 1:
        middle_s = (low_s + high_s) // 2
        if _offset(tz, middle_s) == offset_s:
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s


def _calendar(cron: str, after: datetime) -> CronSim:
    """The local times after one that match, on a calendar without zones."""
    try:
        return CronSim(ONE_NUMBER.sub(r"\1", cron), after)
    except (CronSimError, ValueError, AssertionError) as error:
        raise _invalid("/cron", f"cannot be read: {str(error).lower() or 'bad step'}") from None


def _offset(tz: ZoneInfo, at_s: int) -> int:
    return _seconds(datetime.fromtimestamp(at_s, tz).utcoffset())


def _clock(at_s: int, offset_s: int) -> datetime:
    """What a clock so far from UTC shows."""
    return EPOCH + timedelta(seconds=at_s + offset_s)


def _seconds(span: timedelta | None) -> int:
    assert span is not None
    return span.days * 86_400 + span.seconds


def _invalid(pointer: str, detail: str) -> Refused:
    return Refused(
        "TRIGGER_INVALID",
        f"{pointer}: {detail}",
        errors=[{"pointer": pointer, "detail": detail}],
    )
