"""The copy of the audit chain in a file of its own: one row a line as JSON, only ever appended to.

Kept elsewhere it is the anchor a changed database cannot argue with. It goes on after the last
whole line; a line cut off by a crash is taken away and written again. A file that was moved away
(logrotate) is followed by a new one, which begins where the old one ends.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from feltd.model.audit import AuditRow
from feltd.store.tx import Row

#: Far more than one row takes: the end of the file that is read to find the last one.
TAIL_BYTES = 64 * 1024
#: Far more than a line takes in any file of ours.
LINE_BYTES_MAX = 1024 * 1024
#: A pipe is told at once to be none of ours, instead of waited for.
OPEN = os.O_CLOEXEC | os.O_NONBLOCK
#: How every line begins.
FIRST_BYTES = b'{"seq":'


class AuditFile:
    """One file. `seq` and `hash` are those of the last row written, None and '' before `look`.

    Blocks: not for the loop.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seq: int | None = None
        self.hash = ""
        #: Which file it was and how long, when it was left.
        self._left: tuple[int, int, int] | None = None

    def look(self) -> None:
        """Make the file (mode 0600), or find the last row in it where it is not as it was left.

        Where it is empty it goes on after the row written last. Raises OSError, or ValueError when
        it holds something else.
        """
        if self._left is not None and self._left == _identity(self.path):
            return
        handle = _plain(self.path, os.open(self.path, OPEN | os.O_CREAT | os.O_RDWR, 0o600))
        with os.fdopen(handle, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - TAIL_BYTES)
            file.seek(start)
            tail = file.read()
            whole = tail.rfind(b"\n") + 1
            last = self._last(tail[:whole], tail[whole:], alone=start == 0)
            if whole < len(tail):
                file.truncate(start + whole)
        if last is not None:
            self.seq, self.hash = last.seq, last.hash
        elif self.seq is None:
            self.seq, self.hash = 0, ""
        self._left = _identity(self.path)

    def forget(self) -> None:
        """Know nothing of the file any more: the next look tells what is in it, or begins anew."""
        self.seq, self.hash, self._left = None, "", None

    def _last(self, lines: bytes, rest: bytes, *, alone: bool) -> AuditRow | None:
        """The last whole line; None where there is none, or only a first one cut off.

        Nothing is taken away from a file before it is known to be ours.
        """
        try:
            if lines:
                return msgspec.json.decode(lines.splitlines()[-1], type=AuditRow)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ValueError(f"{self.path} is no audit file") from None
        first = alone and rest[: len(FIRST_BYTES)] == FIRST_BYTES[: len(rest)]
        if rest and not first:
            raise ValueError(f"{self.path} is no audit file")
        return None

    def append(self, rows: list[Row]) -> None:
        """Write rows behind the last one; on disk when this returns."""
        lines = b"".join(msgspec.json.encode(dict(row)) + b"\n" for row in rows)
        # Half a line may stand there after an error: then it is looked at before the next one.
        self._left = None
        flags = OPEN | os.O_WRONLY | os.O_APPEND | os.O_CREAT
        handle = _plain(self.path, os.open(self.path, flags, 0o600))
        try:
            written = os.write(handle, lines)
            while written < len(lines):
                written += os.write(handle, lines[written:])
            os.fsync(handle)
            found = os.fstat(handle)
        finally:
            os.close(handle)
        self._left = (found.st_dev, found.st_ino, found.st_size)
        self.seq, self.hash = rows[-1]["seq"], rows[-1]["hash"]


def lines(path: Path, end: int) -> Iterator[tuple[int, AuditRow]]:
    """The whole lines of such a file within its first `end` bytes, with their numbers.

    A daemon may be writing to it: what is cut off at the end is no line yet. Raises OSError, or
    ValueError naming the line that is none.
    """
    decoder = msgspec.json.Decoder(AuditRow)
    with os.fdopen(_plain(path, os.open(path, OPEN | os.O_RDONLY)), "rb") as file:
        number = place = 0
        while line := file.readline(LINE_BYTES_MAX):
            number, place = number + 1, place + len(line)
            if len(line) == LINE_BYTES_MAX:
                raise ValueError(f"{path} line {number} is no row of an audit file")
            if place > end or not line.endswith(b"\n"):
                return
            try:
                yield number, decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise ValueError(f"{path} line {number} is no row of an audit file") from None


def _plain(path: Path, handle: int) -> int:
    """The handle of a plain file; ValueError, and it is closed, for a pipe, a device or the like.

    What has no end would be read without one.
    """
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError(f"{path} is no plain file")
    return handle


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size
