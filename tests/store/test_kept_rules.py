"""What the schema would have refused is found in the rows, and what was done to the schema too."""

import sqlite3
from collections.abc import Iterator

import pytest

from feltd.store import migrate, schema
from tests.store.ready import migrated
from tests.store.test_schema_edges import worker, workload

ALL = len(migrate.migrations())


@pytest.fixture(scope="module")
def pure() -> sqlite3.Connection:
    return schema.shipped(ALL)


@pytest.fixture
def file() -> Iterator[sqlite3.Connection]:
    """A file with some rows, in the hands of somebody who asks SQLite not to look."""
    conn = migrated()
    worker(conn, "worker_a")
    for number in range(8):
        workload(conn, f"workload_{number}", "READY")
    conn.execute("PRAGMA ignore_check_constraints = ON")
    yield conn
    conn.close()


def test_a_file_that_nobody_touched_keeps_every_rule(
    file: sqlite3.Connection, pure: sqlite3.Connection
) -> None:
    assert schema.violations(file, pure) == []
    assert schema.altered(file, pure) == []


def test_every_check_of_the_schema_is_known_and_can_be_asked(pure: sqlite3.Connection) -> None:
    """None is lost to a comment, a bracket or a quote: SQLite counts them in the same text."""
    count = 0
    for row in pure.execute(schema.SCHEMA).fetchall():
        if row["type"] != "table":
            continue
        rules = list(schema.checks(row["sql"]))
        assert len(rules) == row["sql"].count("CHECK ("), row["name"]
        for rule in rules:
            assert rule.count("(") == rule.count(")")
            pure.execute(f"SELECT NOT ({rule}) FROM {row['name']}").fetchall()  # noqa: S608
        count += len(rules)
    assert count > 150


@pytest.mark.parametrize(
    ("deed", "told"),
    [
        (
            "UPDATE workloads SET priority = 5000 WHERE seq = 3",
            ["workloads seq=3 breaks CHECK (priority BETWEEN -1000 AND 1000)"],
        ),
        (
            "UPDATE workloads SET labels = 'x', state = 'DONE' WHERE seq = 2",
            [
                "workloads seq=2 breaks CHECK (state IN ('PENDING', 'READY', 'CLAIMED', 'RUNNING',"
                " 'CHECKPOINTED', 'COMPLETED', 'DEAD_LETTERED', 'CANCELLED'))"
            ],
        ),
        (
            "UPDATE workloads SET timeouts = '' WHERE seq = 5",
            ["workloads seq=5 breaks CHECK (timeouts GLOB '{*}')"],
        ),
        (
            "UPDATE workers SET heartbeat_timeout_ms = 1",
            [
                "workers worker_id=worker_a breaks CHECK (heartbeat_timeout_ms BETWEEN 2 *"
                " heartbeat_interval_ms AND 3600000)"
            ],
        ),
        (
            "INSERT INTO applications VALUES ('t', 'b', 0, 5000, 0)",
            [
                "applications tenant_id=t, application_id=b breaks CHECK (demands BETWEEN 0"
                " AND 2000)"
            ],
        ),
        (
            "UPDATE workloads SET rank = 0, max_attempts = 0",
            [
                *(
                    f"workloads seq={seq} breaks CHECK (max_attempts BETWEEN 1 AND 1000)"
                    for seq in range(1, 6)
                ),
                "workloads: and more",
            ],
        ),
    ],
)
def test_a_row_that_breaks_a_check_is_named_with_it(
    file: sqlite3.Connection, pure: sqlite3.Connection, deed: str, told: list[str]
) -> None:
    for trigger in ("workloads_keep_to_edges",):
        file.execute(f"DROP TRIGGER {trigger}")
    assert file.execute(deed).rowcount > 0
    assert schema.violations(file, pure) == told


def test_a_check_is_asked_also_where_somebody_took_it_out_of_the_file(
    file: sqlite3.Connection, pure: sqlite3.Connection
) -> None:
    """The rules asked are the shipped ones, not those that the file says it has."""
    file.execute("PRAGMA writable_schema = ON")
    file.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, 'CHECK (priority BETWEEN -1000 AND 1000)', '')"
        " WHERE name = 'workloads'"
    )
    file.execute("UPDATE workloads SET priority = 5000 WHERE seq = 1")
    assert len(schema.violations(file, pure)) == 1
    assert schema.altered(file, pure) == ["table workloads is not as it was shipped"]


@pytest.mark.parametrize(
    ("deed", "told"),
    [
        ("DROP TRIGGER audit_stays", "trigger audit_stays is missing"),
        ("DROP INDEX claims_one_live", "index claims_one_live is missing"),
        ("DROP VIEW v_why", "view v_why is missing"),
        (
            "CREATE TRIGGER mine AFTER INSERT ON keys BEGIN SELECT 1; END",
            "trigger mine on keys is somebody else's",
        ),
    ],
)
def test_what_was_done_to_the_schema_is_named(
    file: sqlite3.Connection, pure: sqlite3.Connection, deed: str, told: str
) -> None:
    file.execute(deed)
    assert schema.altered(file, pure) == [told]


def test_a_trigger_that_was_made_anew_with_another_text_is_named(
    file: sqlite3.Connection, pure: sqlite3.Connection
) -> None:
    file.execute("DROP TRIGGER audit_stays")
    file.execute("CREATE TRIGGER audit_stays BEFORE UPDATE ON audit BEGIN SELECT 1; END")
    assert schema.altered(file, pure) == ["trigger audit_stays is not as it was shipped"]


def test_tables_indexes_and_views_of_others_are_no_harm(
    file: sqlite3.Connection, pure: sqlite3.Connection
) -> None:
    file.execute("CREATE TABLE _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER)")
    file.execute("CREATE INDEX mine ON workloads (definition_id)")
    file.execute("CREATE VIEW mine_too AS SELECT 1")
    file.execute("CREATE TRIGGER theirs AFTER INSERT ON _litestream_seq BEGIN SELECT 1; END")
    assert schema.altered(file, pure) == []


def test_a_file_of_an_earlier_version_is_held_to_the_rules_of_that_version() -> None:
    for applied in range(1, ALL + 1):
        pure = schema.shipped(applied)
        assert schema.altered(pure, schema.shipped(applied)) == []
        pure.close()
