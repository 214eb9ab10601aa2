"""`feltd sql` beside a running daemon: it reads, briefly, without secrets, in three shapes."""

import csv
import io
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from feltd.store import query
from feltd.store.query import QueryProblem
from tests.daemon.running import Daemon, create, feltd, people


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(tmp_path_factory.mktemp("sql") / "feltd.db", "--tick-ms", "200")
    running.init().start()
    mesh = people(running)
    for number in range(3):
        create(running, mesh, f"k{number}", input={"note": 'a "word", a\ttab'})
    yield running
    running.close()


def asked(daemon: Daemon, sql: str, **given: object) -> list[tuple[object, ...]]:
    return query.ask(daemon.data, sql, given, rows_max=100, timeout_s=5).rows


def refused(daemon: Daemon, sql: str, **given: object) -> str:
    with pytest.raises(QueryProblem) as problem:
        query.ask(daemon.data, sql, given, rows_max=100, timeout_s=0.2)
    return str(problem.value)


ONLY_READS = "a question only reads: SELECT, EXPLAIN, and settings that tell"


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM keys",
        "UPDATE keys SET name = 'mine'",
        "INSERT INTO keys SELECT * FROM keys",
        "REPLACE INTO ledger SELECT * FROM ledger",
        "DROP TABLE keys",
        "DROP TRIGGER audit_stays",
        "CREATE TABLE mine (a)",
        "CREATE TEMP TABLE mine (a)",
        "CREATE TEMP TRIGGER t AFTER INSERT ON keys BEGIN SELECT 1; END",
        "ALTER TABLE keys ADD COLUMN mine",
        "ATTACH '/tmp/other.db' AS other",
        "VACUUM",
        "VACUUM INTO '/tmp/copy.db'",
        "BEGIN EXCLUSIVE",
        "SAVEPOINT mine",
        "REINDEX",
        "ANALYZE",
        "PRAGMA query_only = OFF",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA writable_schema = ON",
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "PRAGMA user_version = 7",
        "PRAGMA optimize",
        "UPDATE sqlite_master SET sql = ''",
    ],
)
def test_nothing_but_reading_is_done(daemon: Daemon, sql: str) -> None:
    before = daemon.get("/v1/audit?limit=1")["head"]
    assert refused(daemon, sql) == ONLY_READS
    assert daemon.get("/v1/audit?limit=1")["head"] == before


def test_a_file_cannot_be_read_nor_code_loaded(daemon: Daemon) -> None:
    assert "load_extension" in refused(daemon, "SELECT load_extension('x')")
    assert refused(daemon, "SELECT readfile('/etc/passwd')") == "no such function: readfile"
    assert refused(daemon, "SELECT * FROM sqlite_dbpage") in (
        "no such table: sqlite_dbpage",
        "access to sqlite_dbpage.pgno is prohibited",
    )


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM keys",
        "SELECT secret_digest FROM keys",
        "SELECT max(secret_digest) FROM keys",
        "SELECT quote(secret_digest) || '' FROM keys ORDER BY secret_digest",
        "WITH k AS (SELECT * FROM keys) SELECT * FROM k",
        "SELECT group_concat(secret_digest) FROM keys GROUP BY secret_digest",
        "SELECT hex(secret_digest), password_hash FROM keys, users",
        "SELECT * FROM (SELECT secret_digest AS innocent FROM keys UNION SELECT 1)",
    ],
)
def test_digests_of_secrets_read_as_nothing(daemon: Daemon, sql: str) -> None:
    with closing(sqlite3.connect(daemon.data)) as conn:
        digests = [row[0] for row in conn.execute("SELECT secret_digest FROM keys")]
    assert digests
    shown = repr(asked(daemon, sql))
    assert not [one for one in digests if one in shown or one[7:] in shown]
    assert "sha256" not in shown


def test_a_digest_cannot_be_guessed_at(daemon: Daemon) -> None:
    assert asked(daemon, "SELECT key_id FROM keys WHERE secret_digest LIKE 'sha256:%'") == []


def test_settings_that_tell_and_lists_inside_values_are_read(daemon: Daemon) -> None:
    assert asked(daemon, "PRAGMA journal_mode") == [("wal",)]
    assert ("key_id",) in asked(daemon, "SELECT name FROM pragma_table_info('keys')")
    [(pages,)] = asked(daemon, "SELECT page_count FROM pragma_page_count")
    assert pages
    assert asked(daemon, "SELECT value FROM json_each('[1, 2]')") == [(1,), (2,)]
    assert asked(daemon, "EXPLAIN QUERY PLAN SELECT * FROM v_workers")


def test_values_go_by_name_and_the_unnamed_are_null(daemon: Daemon) -> None:
    assert asked(daemon, "SELECT :a, :b, @a", a="x") == [("x", None, "x")]
    assert refused(daemon, "SELECT :a", b=1) == "the question has no :b"
    assert refused(daemon, "SELECT ?") == "a parameter has a name: write :name, not ?"


def test_it_ends_in_time_and_within_its_rows(daemon: Daemon) -> None:
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    assert "was ended after 0.2 s" in refused(daemon, f"{endless} WHERE i < 0")
    assert "was ended after 0.2 s" in refused(daemon, f"{endless} ORDER BY i")
    answer = query.ask(daemon.data, endless, {}, rows_max=3, timeout_s=5)
    assert (answer.rows, answer.more) == ([(1,), (2,), (3,)], True)
    assert refused(daemon, "SELECT randomblob(100000000)") == "string or blob too big"


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("", "the question is empty"),
        ("-- nothing", "the question is empty"),
        ("SELECT 1; SELECT 2", "one question at a time"),
        ("SELEC 1", 'near "SELEC": syntax error'),
        ("SELECT * FROM nowhere", "no such table: nowhere"),
    ],
)
def test_what_is_no_question_is_said_to_be_none(daemon: Daemon, sql: str, why: str) -> None:
    assert refused(daemon, sql) == why


def said(daemon: Daemon, *arguments: str) -> str:
    ran = feltd("sql", "--data", str(daemon.data), *arguments)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


SHAPES = "SELECT seq, input, NULL AS absent, x'00ff' AS bytes FROM workloads ORDER BY seq"


def test_the_same_rows_come_as_text_as_json_and_as_csv(daemon: Daemon) -> None:
    text = said(daemon, SHAPES).splitlines()
    assert text[0] == "seq\tinput\tabsent\tbytes"
    assert text[1].split("\t") == ["1", '{"note":"a \\"word\\", a\\ttab"}', "", "x'00ff'"]
    rows = json.loads(said(daemon, SHAPES, "--json"))
    assert rows[0] | {"input": None} == {
        "seq": 1,
        "input": None,
        "absent": None,
        "bytes": "x'00ff'",
    }
    lines = list(csv.reader(io.StringIO(said(daemon, SHAPES, "--csv"))))
    assert lines[0] == ["seq", "input", "absent", "bytes"]
    assert json.loads(lines[1][1]) == {"note": 'a "word", a\ttab'}


def test_more_rows_than_asked_for_are_told_of_on_stderr(daemon: Daemon) -> None:
    ran = feltd("sql", "--data", str(daemon.data), "SELECT 1 UNION SELECT 2", "--rows", "1")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "1\n1\n", "more than 1 rows: --rows\n")


def test_the_twenty_are_listed_shown_and_asked(daemon: Daemon) -> None:
    listed = said(daemon, "--questions")
    assert listed.splitlines()[0] == " 1  What waits, kind by kind, and what keeps each kind back?"
    assert "      --set minutes=60  in the last so many" in listed.splitlines()
    assert len(json.loads(said(daemon, "--questions", "--json"))) == 20
    shown = said(daemon, "--question", "16", "--show")
    assert shown.startswith("-- What happened to this workload")
    by_number = said(daemon, "--question", "11", "--csv")
    assert by_number == said(daemon, "--question", "capacity", "--csv")
    assert by_number.splitlines()[1].split(",")[0] == "t"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--question", "21"), "there is no question '21'"),
        (("--question", "20"), "of which? --set worker=…"),
        (("--question", "7", "--set", "hours=1"), "question 7 has no :hours"),
        (("--question", "7", "--set", "minutes"), "--set takes NAME=VALUE, not 'minutes'"),
        (("--question", "7", "SELECT 1"), "ask one question"),
        (("--show", "SELECT 1"), "--show prints the SQL of --question N"),
    ],
)
def test_a_command_that_does_not_fit_is_a_usage_error(
    daemon: Daemon, arguments: tuple[str, ...], told: str
) -> None:
    ran = feltd("sql", "--data", str(daemon.data), *arguments)
    assert ran.returncode == 2
    assert told in ran.stderr


def test_a_file_that_is_none_or_not_there_is_said_so(daemon: Daemon, tmp_path: Path) -> None:
    ran = feltd("sql", "SELECT 1", "--data", str(tmp_path / "none.db"))
    assert (ran.returncode, "run 'feltd init" in ran.stderr) == (1, True)
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as conn:
        conn.execute("CREATE TABLE a (b)")
        conn.commit()
    ran = feltd("sql", "SELECT 1", "--data", str(other))
    assert (ran.returncode, "another program" in ran.stderr) == (1, True)
    ran = feltd("sql", "DELETE FROM keys", "--data", str(daemon.data))
    assert (ran.returncode, ran.stderr) == (1, f"error: {ONLY_READS}\n")
