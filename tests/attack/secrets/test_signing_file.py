"""Two commands on one file of signing keys: neither takes back what the other did."""

from pathlib import Path

import pytest

from feltd.identity import keyring
from feltd.store import private
from feltd.store.connect import StoreProblem


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    file = tmp_path / "signing.keyring"
    private.create(file, keyring.render("aaaaaaaa", b"1" * 32))
    return file


def rotated(content: bytes) -> bytes:
    return keyring.rotated(content, "bbbbbbbb", b"2" * 32)


def test_a_rotation_begun_before_a_retirement_does_not_bring_the_key_back(ring: Path) -> None:
    """What was read before the other wrote would be written over it: the retired key verified."""
    private.change(ring, rotated)

    def slow(content: bytes) -> bytes:
        with pytest.raises(StoreProblem, match="another command is writing"):
            private.change(ring, lambda other: keyring.retired(other, "aaaaaaaa"))
        return keyring.rotated(content, "cccccccc", b"3" * 32)

    private.change(ring, slow)
    private.change(ring, lambda other: keyring.retired(other, "aaaaaaaa"))
    assert dict(keyring.standings(ring.read_bytes()))["aaaaaaaa"] == "retired"
    assert "cccccccc" in dict(keyring.standings(ring.read_bytes()))


def test_a_change_that_fails_changes_nothing_and_keeps_nobody_out(ring: Path) -> None:
    before = ring.read_bytes()

    def failing(content: bytes) -> bytes:
        raise ValueError("no such key")

    with pytest.raises(ValueError, match="no such key"):
        private.change(ring, failing)
    assert ring.read_bytes() == before
    assert [file.name for file in ring.parent.iterdir()] == [ring.name]
    private.change(ring, rotated)
    assert ring.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606])
def test_a_file_that_others_could_read_is_not_rewritten(ring: Path, mode: int) -> None:
    ring.chmod(mode)
    with pytest.raises(StoreProblem, match="may be read or changed by others"):
        private.change(ring, rotated)
    assert [file.name for file in ring.parent.iterdir()] == [ring.name]
