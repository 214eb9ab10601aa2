"""Keys are rotated by several at once, and by somebody who is killed: none is lost, one signs."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from feltd.cli.signing_key import signing_key
from feltd.identity import keyring
from feltd.store.connect import StoreProblem
from tests.cases.test_restoring import killed
from tests.daemon.running import Daemon, feltd


def standings(ring: Path) -> dict[str, str]:
    """How each key of a file stands."""
    assert ring.stat().st_mode & 0o777 == 0o600
    return dict(keyring.standings(ring.read_bytes()))


def test_a_rotation_that_is_killed_has_happened_or_not(tmp_path: Path) -> None:
    """BC-079, of the other file: it is whole at every step, and the key that signed verifies.

    What is left of one that was killed is named with the way out, and is not taken for the file.
    """
    steps, rotated = 0, 0
    for step in range(1, 100):
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        daemon = Daemon(folder / "feltd.db").init()
        ring = folder / "signing.keyring"
        (first,) = standings(ring)

        def rotate(data: Path = daemon.data) -> None:
            signing_key.main(["rotate", "--data", str(data), "--json"], standalone_mode=False)

        if not killed(step, folder, rotate):
            break
        steps += 1
        found = standings(ring)
        assert sorted(found.values()) in (["active"], ["active", "verify"])
        rotated += len(found) - 1
        draft = ring.with_name("signing.keyring.next")
        if draft.exists():
            with pytest.raises(StoreProblem, match=f"remove {draft}; {ring} is whole"):
                rotate()
            draft.unlink()
        rotate()
        again = standings(ring)
        assert (again[first], len(again)) == ("verify", len(found) + 1)
        assert list(again.values()).count("active") == 1
    assert steps >= 4
    assert rotated


def test_rotations_at_once_lose_no_key(tmp_path: Path) -> None:
    """BC-037, BC-001: each is a change of what stands there, never of what was read before."""
    daemon = Daemon(tmp_path / "feltd.db").init()
    before = set(standings(tmp_path / "signing.keyring"))

    def rotate(_: int) -> int:
        return feltd("signing-key", "rotate", "--data", str(daemon.data)).returncode

    with ThreadPoolExecutor(4) as many:
        ended = list(many.map(rotate, range(4)))
    # Whoever met another at work was told so, and changed nothing.
    assert set(ended) <= {0, 1}
    found = standings(tmp_path / "signing.keyring")
    assert before < set(found)
    assert sorted(found.values()) == ["active", *["verify"] * ended.count(0)]
