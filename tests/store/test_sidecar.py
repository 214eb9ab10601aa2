"""The mark is there whole, or it is not there."""

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from feltd.store import sidecar
from feltd.store.sidecar import Mark

MARK = Mark("boot", 7, "ab" * 32, 1_000, 2_000, False, "db_1")


def test_a_mark_is_read_as_it_was_written(path: Path) -> None:
    assert sidecar.read(path) is None
    sidecar.write(path, MARK)
    sidecar.write(path, Mark("boot", 8, "cd" * 32, 2_000, 2_000, True, "db_1"))

    assert sidecar.read(path) == Mark("boot", 8, "cd" * 32, 2_000, 2_000, True, "db_1")
    assert path.with_name("feltd.db.mark").stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.glob("feltd*")] == ["feltd.db.mark"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"boot": "x"}', b"\xff\xfe", b"null"])
def test_a_mark_that_cannot_be_understood_counts_as_lost(path: Path, content: bytes) -> None:
    path.with_name("feltd.db.mark").write_bytes(content)

    assert sidecar.read(path) is None


def test_a_kill_at_any_moment_leaves_one_whole_mark(path: Path) -> None:
    sidecar.write(path, MARK)

    def write_for_ever() -> None:
        seq = 8
        while True:
            sidecar.write(path, Mark("boot", seq, "ef" * 32, seq, seq, False, "db_1"))
            seq += 1

    for wait_s in (0.01, 0.013, 0.017, 0.02, 0.023):
        child = multiprocessing.get_context("fork").Process(target=write_for_ever)
        child.start()
        child.join(wait_s)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        found = sidecar.read(path)
        assert found is not None
        assert found.commit_seq >= 7


def test_a_mark_that_cannot_be_written_leaves_the_old_one(path: Path) -> None:
    sidecar.write(path, MARK)
    path.with_name("feltd.db.mark.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        sidecar.write(path, Mark("boot", 9, "", 1, 1, True, "db_1"))

    assert sidecar.read(path) == MARK


def test_the_boot_id_names_this_boot() -> None:
    assert len(sidecar.boot_id()) == 36
