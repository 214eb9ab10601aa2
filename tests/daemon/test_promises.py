"""Every promise that a query asks is found broken when somebody breaks it by hand."""

import sqlite3
from collections.abc import Iterator

import pytest

from feltd.clock import Now
from feltd.identity import bearer
from feltd.mesh import events, ledger
from feltd.state import promises
from feltd.store import dialect
from feltd.store.tx import Tx
from tests.store.ready import migrated
from tests.store.test_schema_edges import claim, shape, worker, workload

NOW = Now(1_000, 1_000)
BEARER = bearer.bearer("w", "A" * 12 + "b" * 43)
GRANT = (
    "INSERT INTO grants (grant_id, issuer, subject_kind, subject_id, tenant_id, application_id,"
    " capabilities, resources, constraints, issued_at_ms, expires_at_ms, chain_expires_at_ms)"
    " VALUES ('grant_1', 'human:h', 'service', 's', 't', 'a', '[\"worker:capability:c\"]', '[]',"
    " '{}', 1, 9, 9)"
)


@pytest.fixture
def file() -> Iterator[sqlite3.Connection]:
    """One READY workload at the head of its lane, one that is held, a worker and its grant."""
    conn = migrated()
    conn.execute("PRAGMA foreign_keys = OFF")
    conn.execute("BEGIN")
    tx = Tx(conn)
    ledger.begin(tx, "instance_1", NOW)
    conn.execute("UPDATE ledger SET recover_slack_ms = 100, served_at_ms = 1, lease_ms = 1000")
    conn.execute(
        "INSERT INTO applications (tenant_id, application_id, demand_generation, demands)"
        " VALUES ('t', 'a', 1, 1)"
    )
    conn.execute(
        "INSERT INTO demands (demand_id, tenant_id, application_id, definition_id,"
        " definition_revision, capabilities, resources, placement, digest, head_rank, head_seq)"
        " VALUES (1, 't', 'a', 'extract', '1', '[]', '{}', '{}', 'd', 0, 1)"
    )
    conn.execute("INSERT INTO lanes (lane_id, demand_id, head_rank, head_seq) VALUES (1, 1, 0, 1)")
    conn.execute(GRANT)
    worker(conn, "worker_a", authorization_grant_id="grant_1", declared_capabilities='["c"]')
    conn.execute("UPDATE workers SET lifecycle = 'READY', lifecycle_cause = 'verb'")
    for workload_id in ("workload_1", "workload_2"):
        workload(conn, workload_id, "READY")
        conn.execute("UPDATE workloads SET due = 1")
        told(tx, "create", workload_id, None, "READY")
    drop_triggers(conn)
    conn.execute("UPDATE workloads SET fencing_token = 0 WHERE seq = 1")
    claim(conn, "workload_2", fencing_token=7)
    moved(conn, "workload_2", "CLAIMED")
    conn.execute("UPDATE workloads SET due = 0, attempt_number = 1 WHERE seq = 2")
    told(tx, "claim", "workload_2", "READY", "CLAIMED", 7)
    events.seal(tx, NOW)
    yield conn
    conn.close()


def told(
    tx: Tx, kind: str, workload_id: str, before: str | None, after: str, token: int | None = None
) -> None:
    events.tell(
        tx,
        NOW,
        kind,
        tenant_id="t",
        application_id="a",
        workload_id=workload_id,
        from_state=before,
        to_state=after,
        fencing_token=token,
    )


def moved(conn: sqlite3.Connection, workload_id: str, state: str) -> None:
    columns = shape(state)
    settings = ", ".join(f"{name} = :{name}" for name in columns)
    statement = f"UPDATE workloads SET {settings} WHERE workload_id = '{workload_id}'"  # noqa: S608
    conn.execute(statement, columns)


def drop_triggers(conn: sqlite3.Connection) -> None:
    names = conn.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for name in [row[0] for row in names]:
        conn.execute(f"DROP TRIGGER {name}")
    conn.execute("DROP INDEX claims_one_live")
    conn.execute("PRAGMA ignore_check_constraints = ON")


def broken(conn: sqlite3.Connection, mark: int | None = None) -> set[str]:
    tx = Tx(conn)
    return {one.id for one in promises.ask(tx, mark) + promises.walk(tx)[1]}


def test_all_hold_where_nobody_cheated(file: sqlite3.Connection) -> None:
    assert broken(file, 0) == set()


SECOND_CLAIM = (
    "INSERT INTO claims (fencing_token, workload_id, tenant_id, application_id, worker_id,"
    " incarnation, number, lease_ms, issued_at_ms, expires_at_ms, how, rank, worker_lifecycle)"
    " SELECT 8, workload_id, tenant_id, application_id, worker_id, incarnation, 2, lease_ms,"
    " issued_at_ms, expires_at_ms, how, rank, worker_lifecycle FROM claims"
)
ENDED = (
    "UPDATE claims SET ended_at_ms = 9000, end_kind = 'completed', spent = 1,"
    " end_state = 'COMPLETED'"
)
LATE_RESULT = (
    "UPDATE claims SET ended_at_ms = 9000, end_kind = 'completed', spent = 1, started_at_ms = 1,"
    " end_state = 'COMPLETED'"
)
FORBIDDEN_ARTIFACTS = (
    "UPDATE workloads SET artifacts = '[\"s3://b/1\"]',"
    ' runtime_policy = \'{"artifact_policy":"none"}\' WHERE seq = 1'
)
LOST_EVENT = "DELETE FROM events WHERE seq = (SELECT max(seq) FROM events)"


@pytest.mark.parametrize(
    ("promise_id", "deed"),
    [
        ("I1", SECOND_CLAIM),
        ("I2", "UPDATE workloads SET state = 'READY' WHERE seq = 2"),
        ("I2", "UPDATE workloads SET claim_worker_id = 'worker_z' WHERE seq = 2"),
        ("I2", "DELETE FROM claims"),
        ("I3", SECOND_CLAIM.replace("SELECT 8", "SELECT 5")),
        ("I3", "UPDATE sqlite_sequence SET seq = 6 WHERE name = 'claims'"),
        ("I4", "UPDATE workloads SET fencing_token = 6 WHERE seq = 2"),
        ("I6", ENDED),
        ("I6", "UPDATE workloads SET started_at_ms = 9000, state = 'RUNNING' WHERE seq = 2"),
        ("I7", "UPDATE workloads SET state = 'CANCELLED' WHERE seq = 1"),
        ("I7", "DELETE FROM workloads WHERE seq = 1"),
        ("I7", LOST_EVENT),
        ("I8", "UPDATE events SET to_state = 'COMPLETED' WHERE to_state = 'CLAIMED'"),
        ("I8", "UPDATE events SET from_state = 'PENDING' WHERE to_state = 'CLAIMED'"),
        ("I9", "UPDATE workers SET concurrency = 0"),
        ("I11", "UPDATE claims SET tenant_id = 'u'"),
        ("I11", "UPDATE workloads SET application_id = 'b' WHERE seq = 2"),
        ("I11", "UPDATE grants SET tenant_id = 'u'"),
        ("I12", "UPDATE workloads SET capability_snapshot = '[\"c\"]' WHERE seq = 2"),
        ("I12", "UPDATE workers SET granted_capabilities = '[\"d\"]'"),
        ("I12", "UPDATE workers SET authority_live = 0"),
        ("I15", "UPDATE workloads SET attempts_spent = 4 WHERE seq = 2"),
        ("I15", "UPDATE claims SET number = 2"),
        ("I16", SECOND_CLAIM),
        ("I17", "UPDATE workloads SET eligible_at_ms = 2 WHERE seq = 2"),
        ("I18", "UPDATE workloads SET state = 'COMPLETED' WHERE seq = 2"),
        ("I18", "UPDATE claims SET end_kind = 'completed'"),
        ("I19", "UPDATE claims SET worker_lifecycle = 'DRAINING'"),
        ("I19", "UPDATE workers SET incarnation = 2"),
        ("I20", "UPDATE audit SET actor = 'human:other' WHERE seq = 1"),
        ("I20", "UPDATE events SET worker_id = 'worker_z' WHERE seq = 1"),
        ("I20", "DELETE FROM audit WHERE seq = 1"),
        ("I20", "DELETE FROM audit WHERE seq = 2"),
        ("I20", "INSERT INTO events (at_ms, kind) VALUES (1, 'create')"),
        ("I20", "UPDATE ledger SET audit_hash = ''"),
        ("I22", "UPDATE workloads SET expires_at_ms = 900 WHERE seq = 2"),
        ("I23", "UPDATE ledger SET commit_seq = 0"),
        ("JSON", "UPDATE workloads SET labels = '{x}' WHERE seq = 1"),
        ("JSON", "UPDATE workloads SET input = 'x' WHERE seq = 1"),
        ("JSON", "UPDATE workers SET granted_capabilities = '[x]'"),
        ("JSON", "UPDATE grants SET constraints = '{x}'"),
        ("TIMEOUTS", "INSERT INTO deadlines VALUES ('workload_1', 900)"),
        ("DEADLINES", "INSERT INTO deadlines VALUES ('workload_1', 2000)"),
        ("DEADLINES", "UPDATE workloads SET timeouts = '{\"total_ms\":5}' WHERE seq = 1"),
        ("IN_TIME", LATE_RESULT),
        ("ARTIFACTS", FORBIDDEN_ARTIFACTS),
        ("WAITS", "INSERT INTO dependency_waits VALUES ('workload_1', 2)"),
        ("WAITS", "INSERT INTO dependency_waits VALUES ('workload_9', 1)"),
        ("WAITS", "INSERT INTO dependency_waits VALUES ('group:t/g', 1)"),
        ("WAITS", "UPDATE workloads SET state = 'PENDING', due = 0 WHERE seq = 1"),
        ("WAITS", "INSERT INTO settlements VALUES ('workload_1', 900)"),
        ("DEPENDENCIES", "UPDATE workloads SET dependencies = '[\"workload_1\"]' WHERE seq = 2"),
        ("GROUPS", "UPDATE workloads SET group_name = 'g' WHERE seq = 1"),
        ("NEEDED", "INSERT INTO dependency_edges VALUES ('workload_9', 1)"),
        ("NEEDED", "INSERT INTO dependency_edges VALUES ('group:t/g', 1)"),
        ("NEEDED", "UPDATE workloads SET dependencies = '[\"workload_1\"]' WHERE seq = 2"),
        ("FLOORS", "UPDATE floors SET seq = 999 WHERE name = 'events'"),
        ("FLOORS", "UPDATE floors SET seq = 999 WHERE name = 'audit'"),
        ("FLOORS", "DELETE FROM floors WHERE name = 'tombstones'"),
        ("FEED", "UPDATE workloads SET attempt_number = 7 WHERE seq = 1"),
        ("FEED", "UPDATE workloads SET fencing_token = 7 WHERE seq = 1"),
        ("HEADS", "UPDATE lanes SET head_rank = NULL, head_seq = NULL"),
        ("HEADS", "UPDATE demands SET head_seq = 2"),
        ("HEADS", "UPDATE applications SET demands = 2"),
        ("HEADS", "UPDATE workloads SET due = 0, eligible_at_ms = 900 WHERE seq = 1"),
    ],
)
def test_a_broken_promise_is_found(file: sqlite3.Connection, promise_id: str, deed: str) -> None:
    if promise_id == "IN_TIME":
        file.execute("UPDATE workloads SET timeouts = '{\"execution_ms\":50}' WHERE seq = 2")
    assert file.execute(deed).rowcount != 0
    assert promise_id in broken(file, 1)


def test_a_text_that_only_looks_like_a_key_breaks_no_promise(file: sqlite3.Connection) -> None:
    """A worker may log such a text: it has no valid checksum, so it is nobody's key."""
    for text in ("see felt_s_0123456789AB_x", BEARER[:-1] + "_"):
        file.execute("UPDATE workloads SET failure_message = ? WHERE seq = 1", [text])
        assert "I21" not in broken(file)


@pytest.mark.parametrize(
    "deed",
    [
        "UPDATE workloads SET failure_message = 'no: ' || ? || '.' WHERE seq = 1",
        "UPDATE workloads SET labels = json_object('a', ?) WHERE seq = 1",
    ],
)
def test_a_secret_at_rest_is_found_and_not_shown(file: sqlite3.Connection, deed: str) -> None:
    file.execute(deed, [BEARER])
    shown = {one.id: one.rows for one in promises.ask(Tx(file))}
    assert shown["I21"] == ["place=workloads, id=workload_1"]


@pytest.mark.parametrize(
    ("route", "found"), [("create_key /v1/keys", True), ("transact acme", False)]
)
def test_an_answer_that_is_kept_holds_no_key_but_what_records_hold(
    file: sqlite3.Connection, route: str, found: bool
) -> None:
    sql = "INSERT INTO answers VALUES ('', 'r', ?, 'd', 200, json_object('value', ?), 1)"
    file.execute(sql, [route, BEARER])
    assert ("I21" in broken(file)) is found


def test_a_write_from_an_older_claim_is_found(file: sqlite3.Connection) -> None:
    tx = Tx(file)
    told(tx, "complete", "workload_2", "CLAIMED", "READY", 7)
    told(tx, "claim", "workload_2", "READY", "CLAIMED", 8)
    assert "I5" not in broken(file)
    told(tx, "start", "workload_2", "CLAIMED", "RUNNING", 7)
    assert "I5" in broken(file)


def test_one_key_names_one_workload(file: sqlite3.Connection) -> None:
    file.execute("PRAGMA writable_schema = ON")
    file.execute("CREATE TABLE twins AS SELECT * FROM workloads UNION ALL SELECT * FROM workloads")
    file.execute("ALTER TABLE workloads RENAME TO singles")
    file.execute("ALTER TABLE twins RENAME TO workloads")
    assert "I14" in broken(file)


def test_the_chain_can_be_walked_from_where_one_stood(file: sqlite3.Connection) -> None:
    tx = Tx(file)
    link, wrong = promises.walk(tx)
    assert not wrong
    told(tx, "cancel", "workload_1", "READY", "CANCELLED")
    events.seal(tx, NOW)
    further, wrong = promises.walk(tx, link)
    assert not wrong
    assert (further.seq, further.event_seq) == (link.seq + 1, link.event_seq + 1)


def test_what_is_shown_of_one_broken_promise_is_bounded(file: sqlite3.Connection) -> None:
    for number in range(100):
        workload(file, f"lost_{number}", "READY")
    shown = {one.id: one.rows for one in promises.ask(Tx(file))}
    assert len(shown["I7"]) == promises.SHOWN_MAX + 1
    assert shown["I7"][-1] == "and 180 more"


def test_the_counter_of_tokens_goes_up_and_never_down(file: sqlite3.Connection) -> None:
    tx = Tx(file)
    opening = ledger.Opening(ceiling=5_000_000, recover_slack_ms=1, storage="clean")
    assert ledger.open_run(tx, opening, NOW) == 5_000_000
    assert ledger.open_run(tx, opening._replace(ceiling=0), NOW) == 5_000_000
    late = Now(2_000, 1_800_000_000_000)
    assert ledger.open_run(tx, opening, late) == late.wall_ms * 1_000
    assert dialect.sequence(tx, "claims") == late.wall_ms * 1_000
    with pytest.raises(ValueError, match="no room"):
        ledger.open_run(tx, opening, Now(1, 2**53 // 1_000))
