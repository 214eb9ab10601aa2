"""The audit chain in a file of its own goes on after a crash, and takes nobody else's file."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from feltd.daemon.auditfile import TAIL_BYTES, AuditFile, lines
from feltd.model.audit import AuditRow


def row(seq: int) -> dict[str, Any]:
    """A row as the database gives it."""
    made = AuditRow(
        seq, "act", 1, 1, None, None, "human:ann", "drain", "w", None, "d", "a", f"h{seq}"
    )
    told: dict[str, Any] = msgspec.to_builtins(made)
    return told


def line(seq: int) -> bytes:
    return msgspec.json.encode(row(seq)) + b"\n"


MANY = b"".join(line(seq) for seq in range(1, 501))


@pytest.mark.parametrize(
    ("kept", "cut_off", "seq"),
    [
        (b"", b"", 0),
        (b"", line(1)[:3], 0),
        (b"", line(1)[:-1], 0),
        (line(1) + line(2), b"", 2),
        (line(1) + line(2), line(3)[:9], 2),
        (MANY + line(501), b"{", 501),
    ],
    ids=["empty", "begun", "one cut off", "two", "third cut off", "many"],
)
def test_it_goes_on_after_the_last_whole_line(
    tmp_path: Path, kept: bytes, cut_off: bytes, seq: int
) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(kept + cut_off)
    file = AuditFile(path)
    file.look()
    assert (file.seq, file.hash) == (seq, f"h{seq}" if seq else "")
    assert path.read_bytes() == kept


@pytest.mark.parametrize(
    "content",
    [
        b"a sentence",
        b"a line\nand another without its end",
        b'{"seq": 1}\n',
        b"\x00" * (2 * TAIL_BYTES),
        b'{"seq":1' * TAIL_BYTES,
    ],
    ids=["a sentence", "lines", "another's JSON", "zeros", "one long line"],
)
def test_a_file_of_somebody_else_is_refused_and_left_as_it_is(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "theirs"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is no audit file"):
        AuditFile(path).look()
    assert path.read_bytes() == content


def test_a_file_that_was_moved_away_is_followed_by_a_new_one(tmp_path: Path) -> None:
    """As logrotate does it, with and without a new file in the place of the old one."""
    path = tmp_path / "audit.jsonl"
    file = AuditFile(path)
    file.look()
    file.append([row(1), row(2)])  # type: ignore[list-item]
    path.rename(tmp_path / "audit.jsonl.1")
    file.look()
    file.append([row(3)])  # type: ignore[list-item]
    assert path.read_bytes() == line(3)
    path.rename(tmp_path / "audit.jsonl.2")
    path.touch()
    file.look()
    file.append([row(4)])  # type: ignore[list-item]
    assert path.read_bytes() == line(4)
    assert path.stat().st_mode & 0o777 in (0o600, 0o644)


def test_a_file_that_was_emptied_in_its_place_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    file = AuditFile(path)
    file.look()
    file.append([row(1), row(2)])  # type: ignore[list-item]
    path.write_bytes(b"")
    file.look()
    assert (file.seq, file.hash) == (2, "h2")


def test_a_file_in_its_place_that_holds_rows_says_where_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    file = AuditFile(path)
    file.look()
    file.append([row(1), row(2)])  # type: ignore[list-item]
    other = tmp_path / "other"
    other.write_bytes(line(7))
    other.replace(path)
    file.look()
    assert (file.seq, file.hash) == (7, "h7")


def test_lines_end_where_the_file_ended_and_at_a_line_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(line(1) + line(2) + line(3)[:-4])
    whole = len(line(1) + line(2))
    assert [(number, one.seq) for number, one in lines(path, 10_000)] == [(1, 1), (2, 2)]
    assert [one.seq for _number, one in lines(path, whole - 1)] == [1]


@pytest.mark.parametrize("strange", [b"x\n", b"{}\n", b"\xff\n", b'{"seq":"1"}\n'])
def test_a_line_that_is_no_row_is_named(tmp_path: Path, strange: bytes) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(line(1) + strange)
    with pytest.raises(ValueError, match="line 2 is no row"):
        list(lines(path, 10_000))
