"""What the schema refuses from anybody's shell: statements typed by hand, no rule runs."""

import itertools
import sqlite3
from collections.abc import Iterator

import pytest

from feltd.mesh.states import (
    LIVE_STATES,
    WORKER_EDGES,
    WORKER_LIFECYCLES,
    WORKLOAD_EDGES,
    WORKLOAD_STATES,
)
from feltd.store import dialect
from feltd.store.tx import Tx
from tests.store.ready import migrated

FINISHED = {"COMPLETED", "DEAD_LETTERED", "CANCELLED"}
CAUSES = ("verb", "lost", "resume", "register")


@pytest.fixture
def shell() -> Iterator[sqlite3.Connection]:
    """A database as an operator's shell sees it, with one worker and nothing to do."""
    conn = migrated()
    # Nobody's shell sets it, and without it a REPLACE deletes unseen.
    conn.execute("PRAGMA recursive_triggers = OFF")
    conn.execute("INSERT INTO ledger (id, instance_id) VALUES (1, 'instance_1')")
    worker(conn, "worker_a")
    yield conn
    conn.close()


def worker(
    conn: sqlite3.Connection, worker_id: str, *, verb: str = "INSERT", **members: object
) -> None:
    row: dict[str, object] = {
        "worker_id": worker_id,
        "tenant_id": "t",
        "application_id": "a",
        "name": worker_id,
        "runtime": "process",
        "version": "1",
        "capability_version": 1,
        "declared_capabilities": "[]",
        "granted_capabilities": "[]",
        "workload_kinds": "[]",
        "resource_profile": "{}",
        "labels": "{}",
        "concurrency": 4,
        "health": "UNKNOWN",
        "lifecycle": "REGISTERED",
        "lifecycle_cause": "register",
        "heartbeat_interval_ms": 10_000,
        "heartbeat_timeout_ms": 30_000,
        "registered_at_ms": 1,
        "last_seen_at_ms": 1,
    } | members
    insert(conn, "workers", row, verb)


def workload(
    conn: sqlite3.Connection,
    workload_id: str,
    state: str,
    *,
    verb: str = "INSERT",
    **members: object,
) -> None:
    row: dict[str, object] = {
        "workload_id": workload_id,
        "tenant_id": "t",
        "application_id": "a",
        "idempotency_key": workload_id,
        "rank": 0,
        "eligible_at_ms": 0,
        "max_attempts": 3,
        "priority": 0,
        "created_at_ms": 1,
        "environment": "production",
        "definition_id": "extract",
        "definition_revision": "1",
        "trigger": "manual",
        "requested_by": "service:s",
        "capability_snapshot": "[]",
        "connection_scopes": "[]",
        "retry_policy": "{}",
        "placement": "{}",
        "resources": "{}",
        "labels": "{}",
        "body_sha256": "0",
        "input": "null",
    } | shape(state)
    row |= members
    insert(conn, "workloads", row, verb)


def shape(state: str) -> dict[str, object]:
    """The columns that a row in this state must have to pass its CHECKs."""
    live, completed = state in LIVE_STATES, state == "COMPLETED"
    return {
        "state": state,
        "lane_id": None if state in FINISHED else 1,
        "demand_id": None if state in FINISHED else 1,
        "fencing_token": 7,
        "claim_worker_id": "worker_a" if live else None,
        "claim_incarnation": 1 if live else None,
        "expires_at_ms": 9_000 if live else None,
        "started_at_ms": 1 if live and state != "CLAIMED" else None,
        "finished_at_ms": 2 if state in FINISHED else None,
        "result_id": "result_1" if completed else None,
        "result_token": 7 if completed else None,
        "output": "null" if completed else None,
    }


def insert(conn: sqlite3.Connection, table: str, row: dict[str, object], verb: str) -> None:
    names = ", ".join(row)
    values = ", ".join(f":{name}" for name in row)
    conn.execute(f"{verb} INTO {table} ({names}) VALUES ({values})", row)


def claim(conn: sqlite3.Connection, workload_id: str, **members: object) -> None:
    row: dict[str, object] = {
        "workload_id": workload_id,
        "tenant_id": "t",
        "application_id": "a",
        "worker_id": "worker_a",
        "incarnation": 1,
        "number": 1,
        "lease_ms": 30_000,
        "issued_at_ms": 1,
        "expires_at_ms": 9_000,
        "how": "pull",
        "rank": 0,
        "worker_lifecycle": "READY",
    } | members
    insert(conn, "claims", row, "INSERT")


def placed(conn: sqlite3.Connection, state: str) -> None:
    """A workload that stands in `state`, put there past the triggers."""
    trigger = conn.execute(
        "SELECT sql FROM sqlite_schema WHERE name = 'workloads_begin_where_they_may'"
    ).fetchone()[0]
    conn.execute("DROP TRIGGER workloads_begin_where_they_may")
    workload(conn, "workload_1", state)
    conn.execute(trigger)


def moved(conn: sqlite3.Connection, state: str) -> None:
    columns = shape(state)
    settings = ", ".join(f"{name} = :{name}" for name in columns)
    conn.execute(f"UPDATE workloads SET {settings}", columns)  # noqa: S608


@pytest.mark.parametrize(
    ("from_state", "to_state"), list(itertools.product(WORKLOAD_STATES, WORKLOAD_STATES))
)
def test_a_workload_moves_along_its_edges_alone(
    shell: sqlite3.Connection, from_state: str, to_state: str
) -> None:
    placed(shell, from_state)
    if (from_state, to_state) in WORKLOAD_EDGES or from_state == to_state:
        moved(shell, to_state)
    else:
        with pytest.raises(sqlite3.IntegrityError, match="no such edge of a workload"):
            moved(shell, to_state)
        assert shell.execute("SELECT state FROM workloads").fetchone()[0] == from_state


@pytest.mark.parametrize("state", WORKLOAD_STATES)
def test_a_workload_begins_only_where_creation_leads(shell: sqlite3.Connection, state: str) -> None:
    if ("", state) in WORKLOAD_EDGES:
        workload(shell, "workload_1", state)
    else:
        with pytest.raises(sqlite3.IntegrityError, match="does not begin in this state"):
            workload(shell, "workload_1", state)


@pytest.mark.parametrize(
    ("from_lifecycle", "to_lifecycle", "cause"),
    list(itertools.product(WORKER_LIFECYCLES, WORKER_LIFECYCLES, CAUSES)),
)
def test_a_worker_moves_along_its_edges_and_by_their_cause_alone(
    shell: sqlite3.Connection, from_lifecycle: str, to_lifecycle: str, cause: str
) -> None:
    if from_lifecycle == "BUSY":
        with pytest.raises(sqlite3.IntegrityError):
            put(shell, "BUSY")
        return
    put(shell, from_lifecycle)
    statement = "UPDATE workers SET lifecycle = ?, lifecycle_cause = ?"
    stored = to_lifecycle != "BUSY"
    edge = (from_lifecycle, to_lifecycle, cause) in WORKER_EDGES
    if stored and (edge or from_lifecycle == to_lifecycle):
        shell.execute(statement, (to_lifecycle, cause))
    else:
        with pytest.raises(sqlite3.IntegrityError):
            shell.execute(statement, (to_lifecycle, cause))
        found = shell.execute("SELECT lifecycle FROM workers").fetchone()[0]
        assert found == from_lifecycle


def put(conn: sqlite3.Connection, lifecycle: str) -> None:
    """The worker in `lifecycle`, past the trigger; the CHECK stands."""
    trigger = conn.execute(
        "SELECT sql FROM sqlite_schema WHERE name = 'workers_keep_to_edges'"
    ).fetchone()[0]
    conn.execute("DROP TRIGGER workers_keep_to_edges")
    conn.execute("UPDATE workers SET lifecycle = ?", (lifecycle,))
    conn.execute(trigger)


@pytest.mark.parametrize("lifecycle", [one for one in WORKER_LIFECYCLES if one != "REGISTERED"])
def test_a_worker_begins_registered(shell: sqlite3.Connection, lifecycle: str) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        worker(shell, "worker_b", lifecycle=lifecycle)


def test_the_tables_of_edges_are_those_of_the_rules(shell: sqlite3.Connection) -> None:
    workers = {tuple(row) for row in shell.execute("SELECT * FROM worker_edges")}
    workloads = {tuple(row) for row in shell.execute("SELECT * FROM workload_edges")}
    assert workers == WORKER_EDGES
    assert workloads == WORKLOAD_EDGES


def test_a_second_live_claim_is_refused(shell: sqlite3.Connection) -> None:
    placed(shell, "READY")
    claim(shell, "workload_1")
    with pytest.raises(sqlite3.IntegrityError, match="live claim"):
        claim(shell, "workload_1", number=2)
    shell.execute("DROP TRIGGER claims_are_not_replaced")
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        claim(shell, "workload_1", number=2)


def test_a_lower_or_equal_token_is_refused_everywhere(shell: sqlite3.Connection) -> None:
    placed(shell, "READY")
    claim(shell, "workload_1", fencing_token=50)
    end(shell)
    for token in (-1, 0, 1, 49, 50):
        with pytest.raises(sqlite3.IntegrityError):
            claim(shell, "workload_1", fencing_token=token, number=2)
    shell.execute("UPDATE workloads SET fencing_token = 50")
    with pytest.raises(sqlite3.IntegrityError, match="never goes down"):
        shell.execute("UPDATE workloads SET fencing_token = 49")
    claim(shell, "workload_1", number=2)
    assert shell.execute("SELECT max(fencing_token) FROM claims").fetchone()[0] == 51


def test_tokens_grow_although_the_rows_are_gone(shell: sqlite3.Connection) -> None:
    placed(shell, "READY")
    claim(shell, "workload_1", fencing_token=50)
    end(shell)
    shell.execute("DELETE FROM claims")
    for token in (1, 49, 50):
        with pytest.raises(sqlite3.IntegrityError, match="greater than every one before"):
            claim(shell, "workload_1", fencing_token=token, number=2)
    claim(shell, "workload_1", number=2)
    assert shell.execute("SELECT fencing_token FROM claims").fetchone()[0] == 51


def test_the_floor_that_a_start_set_holds_for_hand_typed_tokens_too(
    shell: sqlite3.Connection,
) -> None:
    placed(shell, "READY")
    dialect.raise_sequence(Tx(shell), "claims", 1_000)
    with pytest.raises(sqlite3.IntegrityError, match="greater than every one before"):
        claim(shell, "workload_1", fencing_token=1_000)
    claim(shell, "workload_1")
    assert shell.execute("SELECT fencing_token FROM claims").fetchone()[0] == 1_001


def end(conn: sqlite3.Connection) -> None:
    conn.execute(
        "UPDATE claims SET ended_at_ms = 5, end_kind = 'released', spent = 0, end_state = 'READY'"
        " WHERE ended_at_ms IS NULL"
    )


def test_replace_and_upsert_take_no_place_of_a_row(shell: sqlite3.Connection) -> None:
    placed(shell, "READY")
    claim(shell, "workload_1")
    with pytest.raises(sqlite3.IntegrityError, match="this worker exists"):
        worker(shell, "worker_a", verb="REPLACE")
    with pytest.raises(sqlite3.IntegrityError, match="this worker exists"):
        worker(shell, "worker_b", verb="REPLACE", name="worker_a")
    with pytest.raises(sqlite3.IntegrityError, match="this workload exists"):
        workload(shell, "workload_1", "READY", verb="REPLACE")
    for members in ({"seq": 1}, {"idempotency_key": "workload_1"}):
        with pytest.raises(sqlite3.IntegrityError, match="this workload exists"):
            workload(shell, "workload_2", "READY", verb="REPLACE", **members)
    with pytest.raises(sqlite3.IntegrityError):
        shell.execute("REPLACE INTO claims SELECT * FROM claims")
    assert shell.execute("SELECT count(*) FROM claims").fetchone()[0] == 1


def test_what_a_live_claim_stands_on_is_not_deleted(shell: sqlite3.Connection) -> None:
    placed(shell, "READY")
    claim(shell, "workload_1")
    moved(shell, "CLAIMED")
    for table in ("claims", "workloads", "workers"):
        with pytest.raises(sqlite3.IntegrityError):
            shell.execute(f"DELETE FROM {table}")  # noqa: S608
        assert shell.execute(f"SELECT count(*) FROM {table}").fetchone()[0] == 1  # noqa: S608


def test_a_claim_is_rewritten_by_nobody_and_ends_once(shell: sqlite3.Connection) -> None:
    placed(shell, "READY")
    worker(shell, "worker_b")
    claim(shell, "workload_1", fencing_token=50)
    for change in ("worker_id = 'worker_b'", "fencing_token = 60", "number = 2", "incarnation = 2"):
        with pytest.raises(sqlite3.IntegrityError, match="never rewritten"):
            shell.execute(f"UPDATE claims SET {change}")  # noqa: S608
    end(shell)
    with pytest.raises(sqlite3.IntegrityError, match="ends once"):
        shell.execute("UPDATE claims SET ended_at_ms = 6")


def test_a_claim_crosses_neither_tenant_nor_application(shell: sqlite3.Connection) -> None:
    placed(shell, "READY")
    worker(shell, "worker_b", tenant_id="u")
    worker(shell, "worker_c", application_id="b")
    for members in (
        {"worker_id": "worker_b"},
        {"worker_id": "worker_b", "tenant_id": "u"},
        {"worker_id": "worker_c"},
        {"worker_id": "worker_c", "application_id": "b"},
        {"tenant_id": "u"},
    ):
        with pytest.raises(sqlite3.IntegrityError, match="crosses neither"):
            claim(shell, "workload_1", **members)


@pytest.mark.parametrize("state", WORKLOAD_STATES)
def test_a_state_and_its_columns_agree(shell: sqlite3.Connection, state: str) -> None:
    placed(shell, state)
    broken = ["due = 1"] if state != "READY" else []
    if state in LIVE_STATES:
        broken += ["claim_worker_id = NULL", "expires_at_ms = NULL", "claim_incarnation = NULL"]
    else:
        broken += ["claim_worker_id = 'worker_a'", "expires_at_ms = 5", "started_at_ms = 5"]
    broken += ["finished_at_ms = NULL"] if state in FINISHED else ["finished_at_ms = 5"]
    broken += ["output = NULL"] if state == "COMPLETED" else ["result_id = 'r'"]
    for change in broken:
        with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
            shell.execute(f"UPDATE workloads SET {change}")  # noqa: S608


def test_history_is_appended_to_and_never_rewritten(shell: sqlite3.Connection) -> None:
    shell.execute("INSERT INTO events (at_ms, kind) VALUES (1, 'create')")
    with pytest.raises(sqlite3.IntegrityError, match="never changed"):
        shell.execute("UPDATE events SET kind = 'cancel'")
    with pytest.raises(sqlite3.IntegrityError, match="this event exists"):
        shell.execute("REPLACE INTO events (seq, at_ms, kind) VALUES (1, 1, 'cancel')")
    columns = (
        "INSERT INTO audit (seq, kind, at_ms, wall_at_ms, actor, action, digest, prev_hash, hash)"
        " VALUES (?, 'act', 1, 1, 'human:h', 'drain', '', '', '')"
    )
    shell.execute(columns, (1,))
    with pytest.raises(sqlite3.IntegrityError, match="without gap"):
        shell.execute(columns, (3,))
    with pytest.raises(sqlite3.IntegrityError, match="never changed"):
        shell.execute("UPDATE audit SET actor = 'human:other'")


def test_what_is_revoked_stays_revoked_and_versions_only_grow(shell: sqlite3.Connection) -> None:
    shell.execute(
        "INSERT INTO keys (key_id, name, secret_digest, scopes, namespaces, tenants, subject_type,"
        " created_by, created_at_ms, revoked_at_ms, revoked_reason)"
        " VALUES ('k', 'k', 'sha256:' || hex(zeroblob(32)), '[]', '[]', '[]', 'service', 'x:y', 1,"
        " 1, 'revoked')"
    )
    with pytest.raises(sqlite3.IntegrityError, match="stays revoked"):
        shell.execute("UPDATE keys SET revoked_at_ms = NULL, revoked_reason = NULL")
    shell.execute("UPDATE workers SET incarnation = 3, capability_version = 3")
    for column in ("incarnation", "capability_version"):
        with pytest.raises(sqlite3.IntegrityError, match="never shrink"):
            shell.execute(f"UPDATE workers SET {column} = 2")  # noqa: S608


def test_a_secret_in_clear_is_no_digest(shell: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        shell.execute(
            "INSERT INTO keys (key_id, name, secret_digest, scopes, namespaces, tenants,"
            " subject_type, created_by, created_at_ms)"
            " VALUES ('k', 'k', 'felt_s_secret', '[]', '[]', '[]', 'service', 'x:y', 1)"
        )
