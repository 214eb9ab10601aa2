"""A database of the first version, killed at work, is taken over with all its work."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from feltd.store import connect, migrate, sidecar
from tests.daemon.running import Daemon, Edge, Mesh, create, feltd

#: What the first version shipped.
FIRST = 5
ROWS = Path(__file__).with_name("spine.sql")


@pytest.fixture
def old(daemons: Callable[..., Daemon], tmp_path: Path) -> Daemon:
    """A daemon, not started, in front of the old file."""
    daemon = daemons()
    for path in daemon.data.parent.glob("feltd.db*"):
        path.unlink()
    shipped = tmp_path / "first"
    shipped.mkdir()
    for migration in migrate.migrations()[:FIRST]:
        (shipped / migration.name).write_text(migration.sql)
    conn = connect.open_local(daemon.data, read_only=False)
    migrate.apply(conn, shipped)
    shutil.rmtree(shipped)
    conn.execute("PRAGMA foreign_keys = OFF")
    # Its rows are put back as they were: the triggers that guard each step are made again after.
    named = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"
    triggers = conn.execute(named).fetchall()
    conn.execute("BEGIN")
    for name, _sql in triggers:
        conn.execute(f"DROP TRIGGER {name}")
    conn.execute("DELETE FROM sqlite_sequence")
    statement = ""
    for line in ROWS.read_text().splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            conn.execute(statement)
            statement = ""
    for _name, sql in triggers:
        conn.execute(sql)
    conn.execute("COMMIT")
    told = conn.execute("SELECT instance_id, lease_ms, token_floor FROM ledger").fetchone()
    conn.close()
    # The mark as the killed daemon left it: a tick behind.
    sidecar.write(
        daemon.data,
        sidecar.Mark("boot", 3, "", told[1] - 66, told[2] + 2**20, clean=False, database=told[0]),
    )
    # The clock of this machine may stand before the instants of the file.
    daemon.flags = (*daemon.flags, "--accept-clock")
    return daemon


def newest(data: Path) -> int:
    with closing(sqlite3.connect(data)) as shell:
        return int(shell.execute("PRAGMA user_version").fetchone()[0])


def key(old: Daemon, name: str, *options: str) -> str:
    ran = feltd("keys", "create", "--data", str(old.data), "--name", name, "--json", *options)
    assert ran.returncode == 0, ran.stderr
    return str(json.loads(ran.stdout)["secret"])


def test_migrate_tells_and_does_and_keeps_out_of_a_served_file(old: Daemon) -> None:
    """BC-079."""
    data = str(old.data)
    told = feltd("migrate", "--check", "--data", data)
    assert (told.returncode, "pending: 0006_mesh.sql" in told.stdout) == (0, True)
    assert newest(old.data) == FIRST, "asking changes nothing"
    done = feltd("migrate", "--data", data, "--json")
    assert "0006_mesh.sql" in json.loads(done.stdout)["applied"]
    assert newest(old.data) == len(migrate.migrations())
    assert feltd("migrate", "--data", data).stdout == "the database is up to date\n"
    old.start()
    assert feltd("migrate", "--data", data).returncode == 75
    assert feltd("migrate", "--check", "--data", data).returncode == 0
    assert feltd("init", "--data", data).returncode == 1, "it is there, whoever serves it"
    assert feltd("init", "--if-missing", "--data", data).returncode == 0


def test_work_held_and_waiting_goes_on_after_the_upgrade(old: Daemon) -> None:
    old.start()
    old.key = key(old, "admin", "--scope", "*", "--tenant", "*")
    states = {
        row["idempotency_key"]: row
        for row in old.get("/v1/workloads?limit=50&tenant_id=t")["items"]
    }
    assert {name: row["state"] for name, row in states.items()} == {
        "done": "COMPLETED",
        "running": "CHECKPOINTED",
        "released": "READY",
        "failed": "READY",
        "dead": "DEAD_LETTERED",
        "waiting": "READY",
        "later": "READY",
        "cancelled": "CANCELLED",
    }
    grant = states["done"]["authorization_grant_id"]
    of_crew = ("--tenant", "t", "--grant", grant, "--id", "crew")
    mesh = Mesh(
        key(old, "submitter", "--scope", "workloads:create", *of_crew),
        key(old, "registrar", "--scope", "workers:register", *of_crew),
    )
    # The same process, after the restart of its daemon: it goes on with what it holds.
    press = Edge(old, "press", mesh.registrar_key)
    assert press.beat().status == 200
    held = old.get(f"/v1/workloads/{states['running']['workload_id']}")
    claim = {"workload_id": held["workload_id"]} | held["current_claim"]
    assert press.fenced("complete", claim, output={"words": 5}).status == 200
    # What waits is handed out, the failed one after its backoff; tokens go on growing.
    given = press.pull(max=8, start=True)
    while len(given) < 3:
        given += press.pull(max=8, start=True, wait_ms=5_000)
    names = {row["workload_id"]: name for name, row in states.items()}
    assert {names[one["workload_id"]] for one in given} == {"released", "failed", "waiting"}
    assert min(one["fencing_token"] for one in given) > claim["fencing_token"]
    for one in given:
        assert press.fenced("complete", one).status == 200
    # A creation repeated by somebody who never heard the answer is still the same one.
    again = create(old, mesh, "waiting", input={"page": "waiting"})
    assert again["workload_id"] == states["waiting"]["workload_id"]
    checked = feltd("check", "--data", str(old.data))
    assert checked.returncode == 0, checked.stdout


CUT = """
SELECT seq, hash, last_event_seq
  FROM audit
 WHERE kind = 'commit'
 ORDER BY seq
 LIMIT 1
"""


def test_history_that_an_earlier_version_has_cleared_is_whole_after_the_upgrade(
    old: Daemon, tmp_path: Path
) -> None:
    """Earlier versions raised floors and told of it in no row; those floors are written down once.

    A floor raised by hand afterwards is named all the same.
    """
    shipped = tmp_path / "seventh"
    shipped.mkdir()
    for migration in migrate.migrations()[:7]:
        (shipped / migration.name).write_text(migration.sql)
    conn = connect.open_local(old.data, read_only=False)
    migrate.apply(conn, shipped)
    conn.close()
    with closing(sqlite3.connect(old.data)) as shell:
        row = dict(zip(("seq", "hash", "event_seq"), shell.execute(CUT).fetchone(), strict=True))
        shell.execute("DELETE FROM audit WHERE seq <= :seq", row)
        shell.execute("DELETE FROM events WHERE seq <= :event_seq", row)
        shell.execute("UPDATE floors SET seq = :event_seq WHERE name = 'events'", row)
        raised = "UPDATE floors SET seq = :seq, hash = :hash, event_seq = :event_seq"
        shell.execute(raised + " WHERE name = 'audit'", row)
        shell.commit()
    assert feltd("migrate", "--data", str(old.data)).returncode == 0
    with closing(sqlite3.connect(old.data)) as shell:
        # The rows of the file may be from a clock that stands ahead of this machine's.
        shell.execute("UPDATE schema_migrations SET applied_at_ms = ?", (2**52,))
        shell.commit()
    old.start()
    with closing(sqlite3.connect(old.data)) as shell:
        shell.execute("UPDATE schema_migrations SET applied_at_ms = 1")
        shell.commit()
    checked = old.check()
    assert checked.returncode == 0, checked.stdout
    old.stop()
    with closing(sqlite3.connect(old.data)) as shell:
        [told] = shell.execute("SELECT count(*) FROM audit WHERE action = 'clear'").fetchone()
        assert told == 1
        shell.execute("UPDATE floors SET seq = seq + 1 WHERE name = 'audit'")
        shell.commit()
    assert old.check().returncode == 1
