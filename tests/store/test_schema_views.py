"""What an operator reads with his own shell: views with readable UTC times and no decision."""

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.ready import migrated
from tests.store.test_schema_edges import claim, placed, shape, worker, workload

VIEWS = ("v_workers", "v_queue", "v_live_claims", "v_dead_letters", "v_timeline")
MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"
#: 2026-11-30 06:40:00.250 UTC on the wall, an hour and a bit ahead of lease time.
WALL_MS = 1_796_020_800_250
OFFSET_MS = 3_600_123


@pytest.fixture
def shell() -> Iterator[sqlite3.Connection]:
    conn = migrated()
    conn.execute(
        "INSERT INTO ledger (id, instance_id, wall_offset_ms) VALUES (1, 'instance_1', ?)",
        (OFFSET_MS,),
    )
    worker(conn, "worker_a", concurrency=1, last_seen_at_ms=WALL_MS - OFFSET_MS)
    conn.execute("UPDATE workers SET lifecycle = 'READY', lifecycle_cause = 'verb'")
    yield conn
    conn.close()


def rows(conn: sqlite3.Connection, view: str) -> list[dict[str, object]]:
    return [dict(row) for row in conn.execute(f"SELECT * FROM {view}")]  # noqa: S608


def test_lease_time_is_shown_as_utc_on_the_wall(shell: sqlite3.Connection) -> None:
    shown = rows(shell, "v_workers")[0]
    assert shown["last_seen_at"] == "2026-11-30T06:40:00.250Z"
    assert (shown["lifecycle"], shown["claims"]) == ("READY", 0)


def test_a_worker_is_busy_when_its_claims_fill_it(shell: sqlite3.Connection) -> None:
    placed(shell, "READY")
    claim(shell, "workload_1")
    shown = rows(shell, "v_workers")[0]
    assert (shown["lifecycle"], shown["claims"], shown["concurrency"]) == ("BUSY", 1, 1)
    shell.execute("UPDATE workers SET removed_at_ms = 1")
    assert rows(shell, "v_workers")[0]["lifecycle"] == "REMOVED"


def test_a_held_workload_shows_its_holder_and_token(shell: sqlite3.Connection) -> None:
    placed(shell, "READY")
    claim(shell, "workload_1", fencing_token=7)
    columns = shape("CLAIMED") | {"expires_at_ms": WALL_MS - OFFSET_MS}
    settings = ", ".join(f"{name} = :{name}" for name in columns)
    shell.execute(f"UPDATE workloads SET {settings}", columns)  # noqa: S608
    held = rows(shell, "v_live_claims")[0]
    assert (held["claim_id"], held["worker"], held["state"]) == ("claim_7", "worker_a", "CLAIMED")
    assert held["expires_at"] == "2026-11-30T06:40:00.250Z"
    assert rows(shell, "v_queue") == []


def test_the_queue_is_in_the_order_of_taking(shell: sqlite3.Connection) -> None:
    for number, rank in ((1, 30), (2, 10), (3, 20)):
        workload(shell, f"workload_{number}", "READY")
        shell.execute(
            "UPDATE workloads SET rank = ? WHERE workload_id = ?", (rank, f"workload_{number}")
        )
    order = [row["workload_id"] for row in rows(shell, "v_queue")]
    assert order == ["workload_2", "workload_3", "workload_1"]


def test_the_timeline_of_one_workload_is_a_seek(shell: sqlite3.Connection) -> None:
    plan = shell.execute(
        "EXPLAIN QUERY PLAN SELECT * FROM v_timeline WHERE workload_id = 'workload_1'"
    ).fetchall()
    assert any("events_of_workload" in row["detail"] for row in plan), [row[3] for row in plan]


def test_dead_letters_come_newest_first(shell: sqlite3.Connection) -> None:
    for number in (1, 2):
        workload(shell, f"workload_{number}", "DEAD_LETTERED")
        shell.execute(
            "UPDATE workloads SET finished_at_ms = ? WHERE workload_id = ?",
            (number, f"workload_{number}"),
        )
    order = [row["workload_id"] for row in rows(shell, "v_dead_letters")]
    assert order == ["workload_2", "workload_1"]


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_told_about_and_reads_an_empty_database(
    shell: sqlite3.Connection, view: str
) -> None:
    rows(shell, view)
    text = (MIGRATIONS / "0005_views.sql").read_text()
    assert re.search(rf"^-- {view}: .+\nCREATE VIEW {view} AS$", text, re.MULTILINE)


def test_every_column_of_every_table_says_what_it_is_in_what_unit() -> None:
    silent = []
    for file in sorted(MIGRATIONS.glob("000[1-4]*.sql")):
        for line in file.read_text().splitlines():
            found = re.match(r"  ([a-z_]+)\s+(INTEGER|TEXT)\b", line)
            if found and found[1].endswith("_ms") and "--" not in line:
                silent.append(f"{file.name}: {found[1]}")
    assert silent == []
