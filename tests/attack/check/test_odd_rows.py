"""Rows that somebody made odd end no look at the others: they are named as any edited row is."""

import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from feltd.mesh import events
from feltd.store import sidecar
from tests.daemon.running import FELTD, Daemon
from tests.daemon.test_chain import file as file
from tests.daemon.test_chain import forge, mark, wrong


@pytest.mark.parametrize("number", ["9" * 6_000, "9" * 30, "²", "٣", "-1", ""])
def test_a_number_of_an_event_that_is_none_ends_no_walk(
    file: sqlite3.Connection, number: str
) -> None:
    head = mark(file)
    file.execute("UPDATE audit SET action = ?, subject = ? WHERE seq = 3", [events.SKIP, number])
    assert "audit 3 is not what was hashed" in wrong(file, head)
    forge(file)
    assert any("audit 9 is not the one that the sidecar names" in one for one in wrong(file, head))


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[Daemon]:
    """A database that served, and is served no more."""
    daemon = Daemon(tmp_path / "feltd.db").init().start()
    daemon.post("/v1/keys", {"name": "k", "tenants": ["t"]})
    daemon.stop()
    yield daemon
    daemon.close()


def checked(daemon: Daemon) -> "subprocess.CompletedProcess[str]":
    asked = [*FELTD, "check", "--data", str(daemon.data)]
    return subprocess.run(asked, capture_output=True, text=True, timeout=60)


def test_a_text_that_is_none_is_named_by_its_row(stopped: Daemon) -> None:
    connection = sqlite3.connect(stopped.data, isolation_level=None)
    drop = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'audit_stays'")
    text = drop.fetchone()[0]
    connection.execute("DROP TRIGGER audit_stays")
    connection.execute("UPDATE audit SET actor = CAST(x'ff61' AS TEXT) WHERE seq = 2")
    connection.execute(text)
    connection.close()
    found = checked(stopped)
    assert found.returncode == 1
    assert "audit 2 is not what was hashed" in found.stdout
    assert "held   every row keeps to the CHECKs" in found.stdout


@pytest.mark.parametrize("left", [None, b"", b"{}", b"\xff"])
def test_without_its_mark_a_file_is_not_said_to_be_compared(
    stopped: Daemon, left: bytes | None
) -> None:
    assert checked(stopped).stderr == ""
    beside = sidecar.mark_path(stopped.data)
    beside.unlink()
    if left is not None:
        beside.write_bytes(left)
    assert "no mark that can be read lies beside it" in checked(stopped).stderr
