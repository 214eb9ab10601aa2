"""The copy of the audit chain in a file of its own: one row a line as JSON, only ever appended to.

Kept elsewhere it is the anchor a changed database cannot argue with. It goes on after the last
whole line; a line cut off by a crash is taken away and written again.
"""

import os
from pathlib import Path

import msgspec

from feltd.store.tx import Row

#: Far more than one row takes: the end of the file that is read to find the last one.
TAIL_BYTES = 64 * 1024
#: How every line begins.
FIRST_BYTES = b'{"seq":'


class _Line(msgspec.Struct):
    seq: int
    prev_hash: str
    hash: str


class AuditFile:
    """One file. `seq` is the last row in it, None before `resume`. Blocks: not for the loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seq: int | None = None

    def resume(self) -> None:
        """Make the file (mode 0600) or find the last row in it. Raises OSError, or ValueError when
        it holds something else."""
        handle = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - TAIL_BYTES)
            file.seek(start)
            tail = file.read()
            whole = tail.rfind(b"\n") + 1
            self.seq = self._last(tail[:whole], tail[whole:], alone=start == 0)
            if whole < len(tail):
                file.truncate(start + whole)

    def _last(self, lines: bytes, rest: bytes, *, alone: bool) -> int:
        """The number of the last whole line; 0 where there is none, or only a first one cut off.

        Nothing is taken away from a file before it is known to be ours.
        """
        try:
            if lines:
                return msgspec.json.decode(lines.splitlines()[-1], type=_Line).seq
        except msgspec.DecodeError:
            raise ValueError(f"{self.path} is no audit file") from None
        first = alone and rest[: len(FIRST_BYTES)] == FIRST_BYTES[: len(rest)]
        if rest and not first:
            raise ValueError(f"{self.path} is no audit file")
        return 0

    def append(self, rows: list[Row]) -> None:
        """Write rows behind the last one; on disk when this returns."""
        lines = b"".join(msgspec.json.encode(dict(row)) + b"\n" for row in rows)
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            written = os.write(handle, lines)
            while written < len(lines):
                written += os.write(handle, lines[written:])
            os.fsync(handle)
        except OSError:
            # Half a line may stand there now: look again before the next one.
            self.seq = None
            raise
        finally:
            os.close(handle)
        self.seq = rows[-1]["seq"]
