"""`feltd compact`: through the daemon, or alone under the lock; it says what went and what not."""

import json
import time
from contextlib import closing
from pathlib import Path

from feltd.store.connect import open_local
from tests.cli.conftest import Typed
from tests.daemon.running import Daemon, feltd

HOUR_MS = 3_600_000


def test_there_is_nothing_to_clear_in_a_young_database(local: Typed) -> None:
    found = local.json("compact", "--dry-run")
    assert found == {
        "pruned": {},
        "rewrote_log": False,
        "dry_run": True,
        "held_back": [],
        "more": False,
    }
    assert "nothing would be cleared" in local.ok("compact", "--dry-run")
    assert "nothing cleared" in local.ok("compact")


def test_it_needs_a_daemon_or_a_file(tmp_path: Path) -> None:
    ran = feltd("compact", "--data", str(tmp_path / "none.db"))
    assert ran.returncode == 1
    assert "no database at" in ran.stderr
    assert feltd("compact", "--wet-run").returncode == 2


def test_alone_it_clears_in_steps_and_tells_of_them(tmp_path: Path) -> None:
    """What is two days old goes; what a trigger has not judged stays, and it says so."""
    data = tmp_path / "feltd.db"
    Daemon(data).init()
    now_ms = int(time.time() * 1_000)
    with closing(open_local(data, read_only=False)) as conn:
        for tenant_id in ("acme", "beta"):
            conn.execute("INSERT INTO change_logs (tenant_id) VALUES (?)", [tenant_id])
            conn.execute(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300)"
                " INSERT INTO changes (tenant_id, seq, at_ms, kind, collection, record_id,"
                " version, before, after, actor) SELECT ?, i, ?, 'created', 'c', 'r' || i, 1, NULL,"
                " '{}', 'service:app' FROM n",
                [tenant_id, now_ms - 48 * HOUR_MS],
            )
            conn.execute(
                "INSERT INTO records (tenant_id, collection, record_id, version, value,"
                " change_seq, created_at_ms, created_by, updated_at_ms, updated_by, updated_key)"
                " SELECT tenant_id, collection, record_id, 1, after, seq, at_ms, actor, at_ms,"
                " actor, '' FROM changes WHERE tenant_id = ?",
                [tenant_id],
            )
            conn.execute("INSERT INTO collections VALUES (?, 'c', 300, 600)", [tenant_id])
            conn.execute("UPDATE change_logs SET head_seq = 300 WHERE tenant_id = ?", [tenant_id])
        conn.execute(
            "INSERT INTO triggers (tenant_id, trigger_id, application_id, kind, enabled,"
            " target_capability, work, requested_by, source_collection, change_kind, cursor_seq,"
            " judged_from_seq, disabled_at_ms, disabled_by, disabled_reason, defined_by,"
            " created_at_ms, updated_at_ms) VALUES ('beta', 'slow', 'docs', 'state', 0, 'x', '{}',"
            " 'service:app', 'other', 'any', 100, 100, ?, 'human:ann', 'late', 'service:app', 0,"
            " 0)",
            [now_ms - HOUR_MS],
        )
    told = feltd("compact", "--data", str(data), "--dry-run")
    assert told.returncode == 0, told.stderr
    assert "changes" in told.stdout
    assert "the log of beta is kept behind 100 for trigger:slow" in told.stdout
    ran = feltd("compact", "--data", str(data), "--json")
    assert ran.returncode == 0, ran.stderr
    outcome = json.loads(ran.stdout)
    assert outcome["pruned"] == {"changes": 400}
    assert outcome["held_back"] == [{"tenant_id": "beta", "by": "trigger:slow", "seq": 100}]
    assert not outcome["more"]
    checked = feltd("check", "--data", str(data))
    assert checked.returncode == 0, checked.stdout
