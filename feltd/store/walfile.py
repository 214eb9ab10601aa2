"""Reads the -wal once, before SQLite first opens the database, to see what recovery will drop.

SQLite says nothing when it discards frames behind the last commit: an unfinished transaction of a
killed daemon, or commits behind a damaged frame. Frames of an older generation (other salts than
the header's) are leftovers of a finished checkpoint and count for nothing. Never called while the
process has the database open: closing the file here would drop SQLite's locks.
"""

import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

from feltd.store.connect import StoreProblem

HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24
#: The lowest bit says in which byte order checksums are made.
MAGIC = 0x377F0682
VERSION = 3_007_000
MASK = 0xFFFFFFFF


class Tail(NamedTuple):
    """What recovery discards: from which byte of the -wal, and how many bytes."""

    byte_offset: int
    discarded_bytes: int


class _Header(NamedTuple):
    order: str
    page_bytes: int
    salts: bytes
    sums: tuple[int, int]


def read_tail(path: Path) -> Tail | None:
    """The unfinished or damaged tail of the -wal of the database at `path`; None when it is whole.

    Reads and checks every frame (about 0.2 ms each). Raises StoreProblem when it cannot be read.
    """
    try:
        with path.with_name(path.name + "-wal").open("rb") as wal:
            return _tail(wal)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreProblem(
            f"{path}-wal cannot be read: {error.strerror}.",
            "It belongs to the database: make it readable for the daemon.",
        ) from error


def _tail(wal: BinaryIO) -> Tail | None:
    head = wal.read(HEADER_BYTES)
    if not head:
        return None
    size = wal.seek(0, 2)
    header = _header(head)
    if header is None:
        # Without its header the whole WAL is dropped, whatever lies behind.
        return Tail(0, size)
    good_end = _last_commit_end(wal, header)
    end = _own_end(wal, header, good_end, size)
    return Tail(good_end, end - good_end) if end > good_end else None


def _header(head: bytes) -> _Header | None:
    if len(head) < HEADER_BYTES:
        return None
    magic, version, page_bytes = struct.unpack(">III", head[:12])
    if magic & ~1 != MAGIC or version != VERSION:
        return None
    if page_bytes & (page_bytes - 1) or not 512 <= page_bytes <= 65_536:
        return None
    order = ">" if magic & 1 else "<"
    sums = _checksum(order, head[:24], (0, 0))
    if sums != struct.unpack(">II", head[24:]):
        return None
    return _Header(order, page_bytes, head[16:24], sums)


def _last_commit_end(wal: BinaryIO, header: _Header) -> int:
    """Where the last frame that recovery keeps ends."""
    frame_bytes = FRAME_HEADER_BYTES + header.page_bytes
    sums, place = header.sums, HEADER_BYTES
    good_end = place
    wal.seek(place)
    while len(frame := wal.read(frame_bytes)) == frame_bytes:
        page, pages_after_commit = struct.unpack(">II", frame[:8])
        sums = _checksum(header.order, frame[:8], sums)
        sums = _checksum(header.order, frame[FRAME_HEADER_BYTES:], sums)
        if not page or frame[8:16] != header.salts or sums != struct.unpack(">II", frame[16:24]):
            break
        place += frame_bytes
        if pages_after_commit:
            good_end = place
    return good_end


def _own_end(wal: BinaryIO, header: _Header, start: int, size: int) -> int:
    """Where the last frame of this generation ends, be it whole or torn; `start` when none does."""
    frame_bytes = FRAME_HEADER_BYTES + header.page_bytes
    end = start
    older = False
    for place in range(start, size, frame_bytes):
        wal.seek(place)
        salts = wal.read(16)[8:]
        if len(salts) == 8:
            if salts == header.salts:
                end = min(place + frame_bytes, size)
            else:
                older = True
        elif not older:
            # Too short to say whose it is; behind our own frames it is ours.
            end = size
    return end


def _checksum(order: str, content: bytes, sums: tuple[int, int]) -> tuple[int, int]:
    """SQLite's running checksum over 32-bit words in pairs."""
    first, second = sums
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & MASK
        second = (second + odd + first) & MASK
    return first, second
