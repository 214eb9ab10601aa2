"""The audit chain in a file of its own goes on after a crash, and takes nobody else's file."""

from pathlib import Path

import pytest

from feltd.daemon.auditfile import TAIL_BYTES, AuditFile

LINE = b'{"seq":%d,"kind":"act","prev_hash":"a","hash":"b"}\n'


@pytest.mark.parametrize(
    ("kept", "cut_off", "seq"),
    [
        (b"", b"", 0),
        (b"", LINE[:3], 0),
        (b"", (LINE % 1)[:-1], 0),
        (LINE % 1 + LINE % 2, b"", 2),
        (LINE % 1 + LINE % 2, (LINE % 3)[:9], 2),
        (LINE % 6 * 2_000 + LINE % 7, b"{", 7),
    ],
)
def test_it_goes_on_after_the_last_whole_line(
    tmp_path: Path, kept: bytes, cut_off: bytes, seq: int
) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(kept + cut_off)
    file = AuditFile(path)
    file.resume()
    assert file.seq == seq
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
        AuditFile(path).resume()
    assert path.read_bytes() == content
