"""Words of the command line as values: durations, labels, JSON from a file.

A value that does not fit is a usage error that shows what would.
"""

import re
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from feltd.clock import wall_ms

#: No call takes as much: a device or a wrong file ends here, not with the memory.
JSON_BYTES_MAX = 16 * 1024 * 1024

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


class Duration(click.ParamType[int]):
    """A time as a number and a unit: 500ms, 30s, 15m, 12h, 365d; becomes milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d{1,12})\s*(ms|s|m|h|d|w)", str(value).strip())
        if match is None:
            self.fail(f"{value!r} is no duration: write 30s, 15m, 12h or 365d", param, ctx)
        return int(match.group(1)) * _UNITS_MS[match.group(2)]


DURATION = Duration()


def expiry(after_ms: int) -> int:
    """The wall instant that lies so many milliseconds ahead."""
    return wall_ms() + after_ms


def labels(pairs: tuple[str, ...]) -> dict[str, str]:
    """`k=v` pairs as labels."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{pair!r} is no label: write key=value")
        found[key] = value
    return found


def json_value(text: str | None, option: str) -> Any:
    """JSON given on the command line; `@FILE` reads a file, `-` reads stdin."""
    if text is None:
        return None
    try:
        if text == "-":
            raw = sys.stdin.buffer.read(JSON_BYTES_MAX + 1)
        elif text.startswith("@"):
            with Path(text[1:]).open("rb") as file:
                raw = file.read(JSON_BYTES_MAX + 1)
        else:
            raw = text.encode()
    except OSError as error:
        raise click.UsageError(f"{option}: cannot read {text}: {error.strerror}") from error
    if len(raw) > JSON_BYTES_MAX:
        raise click.UsageError(f"{option}: {text} has more than {JSON_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise click.UsageError(
            f"{option} is not JSON ({error}): a string needs its quotes, as in --input '\"text\"'"
        ) from error


def refuse_existing(path: str | None) -> None:
    """A usage error where a file to be made is there already: before a secret is made for it."""
    if path is not None and Path(path).exists():
        raise click.UsageError(f"{path} exists: name a file that does not")


def write_private(path: str, text: str) -> None:
    """Write a secret to a new file that only its owner may read; an existing file is refused."""
    from feltd.store import private

    private.create(Path(path), f"{text}\n".encode())
