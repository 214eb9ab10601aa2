"""One process holds a database, and says who it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from feltd.store import lock
from feltd.store.lock import LockHeld

HOLD = """
import sys
from pathlib import Path
from feltd.store import lock
held = lock.take(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_holder_is_told_who_the_first_is(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        first.stdout.readline()
        with pytest.raises(LockHeld) as refused:
            lock.take(path)
        assert refused.value.pid == first.pid
        found = lock.holder(path)
        assert found is not None
        assert (found.pid, found.since) == (first.pid, refused.value.since)
        first.kill()

    with lock.take(path):
        assert lock.holder(path) == lock.Held(os.getpid(), lock.holder(path).since)  # type: ignore[union-attr]


def test_nobody_holds_a_released_or_unknown_lock(path: Path) -> None:
    assert lock.holder(path) is None
    held = lock.take(path)
    held.release()
    held.release()

    assert lock.holder(path) is None
    assert path.with_name("feltd.db.lock").stat().st_mode & 0o777 == 0o600


def test_a_look_at_the_lock_does_not_take_it(path: Path) -> None:
    with lock.take(path):
        assert lock.holder(path) is not None
        with pytest.raises(LockHeld):
            lock.take(path)


def test_the_lock_never_touches_the_database(path: Path) -> None:
    with lock.take(path):
        assert not path.exists()


def test_a_lock_whose_file_was_removed_is_taken_anew(path: Path) -> None:
    with lock.take(path) as held:
        path.with_name(path.name + ".lock").unlink()
        assert lock.holder(path) is None

        held.renew()

        found = lock.holder(path)
        assert found is not None
        assert found.pid == os.getpid()
        with pytest.raises(LockHeld):
            lock.take(path)
    assert lock.holder(path) is None


def test_whoever_removed_the_file_and_took_the_lock_has_it(path: Path) -> None:
    with lock.take(path) as slow:
        path.with_name(path.name + ".lock").unlink()
        with lock.take(path), pytest.raises(LockHeld):
            slow.renew()
