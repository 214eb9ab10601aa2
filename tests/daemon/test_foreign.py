"""Other programs at the file of a running daemon: what they did is noticed, audited and named."""

import json
import os
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.load import crew
from tests.daemon.running import PATIENCE_S, Daemon, create, feltd, people

BAD_PRIORITY = "UPDATE workloads SET priority = 5000"
NO_CHECKS = "PRAGMA ignore_check_constraints = ON;"


def shell(data: Path, sql: str) -> str:
    """The program of SQLite itself, as somebody in a hurry uses it."""
    ran = subprocess.run(
        ("sqlite3", "-cmd", ".timeout 5000", str(data), sql),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def foreign_acts(data: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(f"file:{data}?mode=ro", uri=True)) as conn:
        conn.row_factory = sqlite3.Row
        found = conn.execute("SELECT * FROM audit WHERE action = 'foreign_write' ORDER BY seq")
        return [dict(row) for row in found]


def until(found: Callable[[], Any]) -> Any:
    """Wait for something that comes by itself."""
    ends_s = time.monotonic() + PATIENCE_S
    while not (value := found()):
        assert time.monotonic() < ends_s
        time.sleep(0.02)
    return value


def reasons(daemon: Daemon) -> dict[str, str]:
    return {one["code"]: one["detail"] for one in daemon.get("/health")["reasons"]}


def broken(daemon: Daemon, *flags: str) -> dict[str, list[str]]:
    ran = feltd("check", "--data", str(daemon.data), "--json", *flags)
    told = json.loads(ran.stdout)
    assert ran.returncode == bool(told["broken"] or told["damage"])
    return {one["id"]: one["rows"] for one in told["broken"]}


@pytest.mark.needs("sqlite3")
def test_what_the_shell_writes_is_audited_with_its_span_and_looked_into(daemon: Daemon) -> None:
    mesh = people(daemon)
    made = create(daemon, mesh, "one")
    assert foreign_acts(daemon.data) == []
    before = daemon.get("/v1/audit?limit=1")["head"]

    shell(daemon.data, NO_CHECKS + BAD_PRIORITY)

    [act] = until(lambda: foreign_acts(daemon.data))
    assert (act["actor"], act["subject"]) == ("service:feltd", "database")
    assert act["seq"] > before
    first, _, last = act["reason"].partition(", before ")
    assert first.startswith("after commit ")
    assert first.partition(" of ")[2] < last
    rows = broken(daemon)
    assert rows["CHECKS"] == ["workloads seq=1 breaks CHECK (priority BETWEEN -1000 AND 1000)"]
    assert "I20" not in rows
    assert made["workload_id"]


@pytest.mark.needs("sqlite3")
def test_a_program_that_writes_all_the_time_fills_no_chain_and_stops_no_keeper(
    daemon: Daemon,
) -> None:
    """A row a second at most, and the last write is told of as well."""
    mesh = people(daemon)
    shell(daemon.data, "CREATE TABLE scratch (a)")
    began_s = time.monotonic()
    for number in range(30):
        shell(daemon.data, "INSERT INTO scratch VALUES (1)")
        create(daemon, mesh, f"k{number}")
    spent_s = time.monotonic() - began_s
    acts = until(lambda: foreign_acts(daemon.data))
    assert len(acts) <= spent_s + 2
    until(lambda: len(foreign_acts(daemon.data)) > 1)
    assert daemon.get("/health")["keeper"] == "healthy"
    assert broken(daemon) == {}


@pytest.mark.needs("sqlite3")
def test_a_broken_promise_is_told_until_it_is_put_right(daemon: Daemon) -> None:
    mesh = people(daemon)
    crew(daemon, mesh, 1)
    shell(daemon.data, "UPDATE workers SET granted_capabilities = '[\"root\"]'")
    told = until(lambda: reasons(daemon).get("FOREIGN_WRITE"))
    assert "I12" in told
    shell(daemon.data, "UPDATE workers SET granted_capabilities = declared_capabilities")
    until(lambda: "FOREIGN_WRITE" not in reasons(daemon))
    assert len(foreign_acts(daemon.data)) >= 1


@pytest.mark.needs("sqlite3")
def test_a_wal_cut_short_under_the_daemon_ends_it_and_the_loss_is_told(daemon: Daemon) -> None:
    mesh = people(daemon)
    create(daemon, mesh, "answered")
    mark = daemon.data.with_name(daemon.data.name + ".mark")
    newest = int(shell(daemon.data, "SELECT commit_seq FROM ledger"))
    until(lambda: json.loads(mark.read_text())["commit_seq"] >= newest)
    os.truncate(f"{daemon.data}-wal", 0)
    assert daemon.wait() == 1
    assert "was cut short by another program" in daemon.told()

    [told] = broken(daemon)["I23"]
    assert "in the sidecar" in told

    daemon.start()
    health = daemon.get("/health")
    assert (health["storage"], health["last_stop"]) == ("recovered-incomplete-write", "unclean")
    assert health["storage_detail"]["missing_commits"] >= 1
    assert broken(daemon) == {}


@pytest.fixture
def mirrored(daemons: Callable[..., Daemon], tmp_path: Path) -> tuple[Daemon, Path]:
    """A daemon that keeps a mirror of its chain."""
    file = tmp_path / "audit.jsonl"
    return daemons("feltd.db", "--audit", str(file)).start(), file


def caught_up(daemon: Daemon, file: Path) -> int:
    """Wait until the mirror has the newest row; its number."""
    head = int(daemon.get("/v1/audit?limit=1")["head"])
    until(lambda: file.exists() and (rows := numbers(file)) and rows[-1] >= head)
    return head


def numbers(file: Path) -> list[int]:
    return [json.loads(line)["seq"] for line in file.read_text().splitlines()]


@pytest.mark.needs("sqlite3")
def test_the_mirror_names_the_row_that_a_chain_computed_anew_hides(
    mirrored: tuple[Daemon, Path],
) -> None:
    daemon, file = mirrored
    people(daemon)
    caught_up(daemon, file)
    assert broken(daemon, "--audit", str(file)) == {}
    daemon.stop()
    shell(
        daemon.data,
        "DROP TRIGGER audit_stays; UPDATE audit SET actor = 'human:other' WHERE seq = 2",
    )
    rows = broken(daemon, "--audit", str(file))
    assert rows["I20"][0] == "audit 2 is not what was hashed"
    assert rows["MIRROR"][0].startswith(f"{file}: audit 2 differs in actor: actor is 'human:other'")
    assert rows["SCHEMA"] == ["trigger audit_stays is missing"]
    shell(daemon.data, "DELETE FROM audit WHERE seq = 2")
    rows = broken(daemon, "--audit", str(file))
    assert rows["I20"] == ["audit 2 is missing"]
    assert rows["MIRROR"] == [f"{file}: audit 2 is missing in the database"]


def test_a_mirror_that_is_rotated_goes_on_in_a_new_file(mirrored: tuple[Daemon, Path]) -> None:
    daemon, file = mirrored
    people(daemon)
    head = caught_up(daemon, file)
    old = file.with_name("audit.jsonl.1")
    file.rename(old)
    daemon.post("/v1/keys", {"name": "later", "tenants": ["t"]})
    caught_up(daemon, file)
    assert numbers(old)[-1] + 1 == numbers(file)[0] > head
    assert file.stat().st_mode & 0o777 == 0o600
    assert broken(daemon, "--audit", str(old), "--audit", str(file)) == {}


def test_a_mirror_of_another_history_is_left_alone_and_told(
    mirrored: tuple[Daemon, Path],
) -> None:
    """It is the anchor: after a database was put back, the old one can still be told from it."""
    daemon, file = mirrored
    people(daemon)
    caught_up(daemon, file)
    daemon.stop()
    lines = file.read_text().splitlines(keepends=True)
    beyond = json.loads(lines[-1]) | {"seq": len(lines) + 500}
    file.write_text("".join(lines) + json.dumps(beyond) + "\n")
    size = file.stat().st_size
    daemon.start()
    told = until(lambda: reasons(daemon).get("AUDIT_FILE"))
    assert f"it ends at audit {len(lines) + 500}, the database at" in told
    assert file.stat().st_size == size
    file.rename(file.with_name("kept"))
    until(lambda: "AUDIT_FILE" not in reasons(daemon))
    caught_up(daemon, file)
    assert numbers(file)[0] == 1


def test_what_is_no_mirror_is_said_to_be_none(daemon: Daemon, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("not ours\n")
    ran = feltd("check", "--data", str(daemon.data), "--audit", str(other))
    assert (ran.returncode, ran.stderr) == (
        1,
        f"error: {other} line 1 is no row of an audit file\n",
    )
    assert feltd("check", "--data", str(daemon.data), "--audit", "nowhere").returncode == 2
