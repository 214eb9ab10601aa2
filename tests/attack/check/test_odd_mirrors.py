"""What is no mirror of the audit chain is told as none: not waited for, and not read whole."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from feltd.daemon import auditfile
from feltd.daemon.auditfile import LINE_BYTES_MAX, AuditFile


def piped(file: Path) -> None:
    os.mkfifo(file)


def endless(file: Path) -> None:
    file.symlink_to("/dev/zero")


def full(file: Path) -> None:
    file.symlink_to("/dev/full")


def deep(file: Path) -> None:
    file.write_text('{"seq":' + "[" * 30_000 + "\n")


def one_line(file: Path) -> None:
    file.write_bytes(b"x" * (LINE_BYTES_MAX + 1))


@pytest.mark.parametrize("odd", [piped, endless, full, deep, one_line])
def test_an_odd_mirror_is_a_plain_sentence(tmp_path: Path, odd: Callable[[Path], None]) -> None:
    file = tmp_path / "audit.jsonl"
    odd(file)
    with pytest.raises(ValueError, match="is no "):
        list(auditfile.lines(file, 2**40))
    with pytest.raises((ValueError, OSError)):
        AuditFile(file).look()
    assert file.exists()


def test_a_pipe_that_took_the_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    mirror = AuditFile(file)
    mirror.look()
    file.unlink()
    os.mkfifo(file)
    with pytest.raises((ValueError, OSError)):
        mirror.append([])
