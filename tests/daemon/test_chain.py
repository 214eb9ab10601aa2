"""Whoever edits or deletes an audit row, or an event that one seals, is found by its number.

The deeds are those of a program that writes to the file: the triggers that would refuse them are
dropped first.
"""

import sqlite3
from collections.abc import Iterator

import pytest

from feltd.clock import Now
from feltd.identity import audit
from feltd.mesh import chain, events, ledger
from feltd.model.audit import AuditRow
from feltd.store.tx import Tx
from tests.store.ready import migrated

ROWS = 9
#: What a column may hold otherwise; each is of its type.
OTHERS = {
    "kind": "'other'",
    "at_ms": "at_ms + 1",
    "wall_at_ms": "wall_at_ms - 1",
    "first_event_seq": "ifnull(first_event_seq, 0) + 1",
    "last_event_seq": "ifnull(last_event_seq, 0) + 1",
    "actor": "'human:other'",
    "action": "'other'",
    "subject": "'other'",
    "reason": "'another reason'",
    "digest": "'0' || substr(digest, 2) || 'x'",
    "prev_hash": "'0' || prev_hash",
    "hash": "'0' || substr(hash, 2) || 'x'",
}
#: The first, one amid, the last that the mark names, the last of all; acts are odd, commits even.
PLACES = (1, 4, 5, 8, 9)


@pytest.fixture
def file() -> Iterator[sqlite3.Connection]:
    """Nine audit rows, deeds and commits by turns; four commits seal three events each."""
    conn = migrated()
    conn.execute("BEGIN")
    tx = Tx(conn)
    ledger.begin(tx, "instance_1", Now(1, 1))
    for number in range(1, 5):
        now = Now(number * 1_000, number * 1_000)
        for event in range(3):
            events.tell(tx, now, "create", tenant_id="t", workload_id=f"w{number}{event}")
        events.seal(tx, now)
        audit.act(tx, now, "human:ann", "drain", f"worker_{number}", reason="night")
        events.seal(tx, now)
    for trigger in ("audit_stays", "audit_is_gapless", "events_stay", "events_are_not_replaced"):
        conn.execute(f"DROP TRIGGER {trigger}")
    conn.execute("PRAGMA ignore_check_constraints = ON")
    assert conn.execute("SELECT count(*) FROM audit").fetchone()[0] == ROWS
    assert wrong(conn) == []
    yield conn
    conn.close()


def mark(conn: sqlite3.Connection, seq: int = ROWS) -> str:
    """What the sidecar names, as of row `seq`."""
    row = conn.execute("SELECT hash FROM audit WHERE seq = ?", [seq]).fetchone()
    return f"{seq}:{row[0]}"


def mirror(conn: sqlite3.Connection) -> list[tuple[int, AuditRow]]:
    """The lines of a file that has all rows."""
    rows = conn.execute("SELECT * FROM audit ORDER BY seq").fetchall()
    return [(number, AuditRow(*row)) for number, row in enumerate(rows, 1)]


def wrong(conn: sqlite3.Connection, audit_head: str = "") -> list[str]:
    """Every sentence about the chain."""
    tx = Tx(conn)
    return [row for one in chain.walk(tx)[1] + chain.marked(tx, audit_head) for row in one.rows]


def forge(conn: sqlite3.Connection) -> None:
    """Compute every hash anew, and have the ledger name the last: the chain holds in itself."""
    before = ""
    seq = 0
    for row in conn.execute("SELECT * FROM audit ORDER BY seq").fetchall():
        told = dict(row) | {"seq": seq + 1, "prev_hash": before}
        digest = audit.hash_of(told)
        conn.execute("DELETE FROM audit WHERE seq = ?", [row["seq"]])
        told["hash"] = digest
        conn.execute(
            "INSERT INTO audit VALUES (:seq, :kind, :at_ms, :wall_at_ms, :first_event_seq,"
            " :last_event_seq, :actor, :action, :subject, :reason, :digest, :prev_hash, :hash)",
            told,
        )
        before, seq = digest, seq + 1
    conn.execute("UPDATE ledger SET audit_seq = ?, audit_hash = ?", [seq, before])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("column", OTHERS)
def test_an_edited_column_names_its_row(file: sqlite3.Connection, column: str, place: int) -> None:
    head, lines = mark(file), mirror(file)
    edit = f"UPDATE audit SET {column} = {OTHERS[column]} WHERE seq = {place}"  # noqa: S608
    assert file.execute(edit).rowcount == 1

    told = wrong(file, head)

    assert any(one.startswith(f"audit {place} is not what was hashed") for one in told)
    [first, *_rest] = chain.compare(Tx(file), lines)
    assert first.startswith(f"audit {place} differs in {column}: ")


@pytest.mark.parametrize("place", PLACES)
def test_an_edited_number_names_its_row(file: sqlite3.Connection, place: int) -> None:
    lines = mirror(file)
    file.execute("UPDATE audit SET seq = 500 WHERE seq = ?", [place])
    assert any(f"audit {place} is missing" in one for one in wrong(file)) or place == ROWS
    assert "audit 500 is not what was hashed" in wrong(file)
    assert chain.compare(Tx(file), lines)[0] == f"audit {place} is missing in the database"


@pytest.mark.parametrize("place", PLACES)
def test_a_deleted_row_is_named(file: sqlite3.Connection, place: int) -> None:
    head, lines = mark(file), mirror(file)
    file.execute("DELETE FROM audit WHERE seq = ?", [place])
    told = wrong(file, head)
    assert any(one.startswith(f"audit {place} is missing") for one in told)
    assert chain.compare(Tx(file), lines)[0] == f"audit {place} is missing in the database"


def test_several_rows_that_are_gone_are_named_together(file: sqlite3.Connection) -> None:
    file.execute("DELETE FROM audit WHERE seq BETWEEN 3 AND 6")
    assert "audit 3 to 6 are missing" in wrong(file)
    file.execute("DELETE FROM audit")
    assert wrong(file) == [
        "audit 1 to 9 are missing at the end",
        "events after 0 are not sealed",
    ]


@pytest.mark.parametrize("place", [1, 4, 5, 9])
@pytest.mark.parametrize("column", ["actor", "reason", "wall_at_ms", "digest"])
def test_a_chain_computed_anew_is_not_the_one_that_the_mark_names(
    file: sqlite3.Connection, column: str, place: int
) -> None:
    """Who edits a row and all hashes behind it has not edited what was written down elsewhere."""
    head, lines = mark(file), mirror(file)
    file.execute(f"UPDATE audit SET {column} = {OTHERS[column]} WHERE seq = {place}")  # noqa: S608
    forge(file)

    told = wrong(file, head)

    assert told[-1].startswith("audit 9 is not the one that the sidecar names")
    assert chain.compare(Tx(file), lines)[0].startswith(f"audit {place} differs in {column}")


@pytest.mark.parametrize("place", [1, 5, 8])
def test_a_row_taken_out_of_a_chain_computed_anew_shows_at_the_mark(
    file: sqlite3.Connection, place: int
) -> None:
    head, lines = mark(file), mirror(file)
    file.execute("DELETE FROM audit WHERE seq = ?", [place])
    forge(file)
    assert "audit 9, which the sidecar names, is missing" in wrong(file, head)
    told = chain.compare(Tx(file), lines)
    assert told[0].startswith(f"audit {place} differs in kind")
    assert told[-1] == "audit 9 is missing in the database, which ends at 8"


def test_a_tail_that_was_cut_off_is_told_by_the_ledger_and_by_the_mark(
    file: sqlite3.Connection,
) -> None:
    head, lines = mark(file), mirror(file)
    file.execute("DELETE FROM audit WHERE seq >= 7")
    assert "audit 7 to 9 are missing at the end" in wrong(file)
    file.execute("DELETE FROM events WHERE seq > 9")
    file.execute(
        "UPDATE ledger SET audit_seq = 6, sealed_seq = 9,"
        " audit_hash = (SELECT hash FROM audit WHERE seq = 6)"
    )
    assert wrong(file) == []
    assert wrong(file, head) == ["audit 9, which the sidecar names, is missing"]
    assert chain.compare(Tx(file), lines) == [
        "audit 7 to 9 are missing in the database, which ends at 6"
    ]


def test_rows_behind_the_mark_are_held_by_the_ledger_alone(file: sqlite3.Connection) -> None:
    """The mark is a tick old: what came since can be computed anew, and no file knows of it."""
    head = mark(file, 7)
    file.execute("UPDATE audit SET reason = 'another' WHERE seq = 9")
    forge(file)
    assert wrong(file, head) == []


@pytest.mark.parametrize("seq", [1, 5, 12])
def test_an_edited_event_is_named_with_those_of_its_commit(
    file: sqlite3.Connection, seq: int
) -> None:
    first = (seq - 1) // 3 * 3 + 1
    row = 2 + (seq - 1) // 3 * 2
    file.execute("UPDATE events SET workload_id = 'other' WHERE seq = ?", [seq])
    assert wrong(file) == [
        f"audit {row} seals other events than there are: look at events {first} to {first + 2}"
    ]


@pytest.mark.parametrize("seq", [1, 5, 12])
def test_a_deleted_event_is_named(file: sqlite3.Connection, seq: int) -> None:
    row = 2 + (seq - 1) // 3 * 2
    file.execute("DELETE FROM events WHERE seq = ?", [seq])
    assert wrong(file) == [f"audit {row} seals event {seq}, which is missing"]


def test_an_event_that_somebody_adds_is_sealed_by_nobody(file: sqlite3.Connection) -> None:
    file.execute("INSERT INTO events (at_ms, kind) VALUES (1, 'create')")
    assert wrong(file) == ["events after 12 are not sealed"]


def cleared(conn: sqlite3.Connection, seq: int, event_seq: int) -> None:
    """What retention leaves when rows up to `seq` are past their time."""
    conn.execute(
        "UPDATE floors SET seq = :seq, event_seq = :event_seq,"
        " hash = (SELECT hash FROM audit WHERE seq = :seq) WHERE name = 'audit'",
        {"seq": seq, "event_seq": event_seq},
    )
    conn.execute("UPDATE floors SET seq = ? WHERE name = 'events'", [event_seq])
    chain.tell_cleared(Tx(conn), Now(9_000, 9_000))
    conn.execute("DELETE FROM audit WHERE seq <= ?", [seq])
    conn.execute("DELETE FROM events WHERE seq <= ?", [event_seq])


def test_what_retention_took_is_missed_by_nobody(file: sqlite3.Connection) -> None:
    lines = mirror(file)
    at_the_floor, below = mark(file, 4), mark(file, 2)
    cleared(file, 4, 6)
    assert wrong(file, at_the_floor) == wrong(file, below) == []
    assert chain.compare(Tx(file), lines) == []


def test_what_stands_above_the_floor_is_held_to_the_mirror_still(file: sqlite3.Connection) -> None:
    lines = mirror(file)
    cleared(file, 4, 6)
    file.execute("UPDATE audit SET reason = 'another' WHERE seq = 5")
    assert chain.compare(Tx(file), lines)[0] == (
        "audit 5 differs in reason: reason is 'another' in the database, 'night' in the mirror"
    )
    file.execute("UPDATE floors SET hash = 'x' WHERE name = 'audit'")
    assert "audit 5 goes on from another audit 4" in chain.compare(Tx(file), lines)
    assert any("audit 5 does not follow audit 4" in one for one in wrong(file))


def test_a_mirror_that_lacks_a_row_is_named_by_the_line_behind_it(file: sqlite3.Connection) -> None:
    lines = mirror(file)
    del lines[4]
    assert chain.compare(Tx(file), lines) == ["line 6: audit 6 does not follow audit 4"]


def test_a_mirror_may_begin_later_and_end_earlier(file: sqlite3.Connection) -> None:
    lines = mirror(file)
    assert chain.compare(Tx(file), lines[2:6]) == []
    assert chain.compare(Tx(file), []) == []


def test_what_a_forged_mirror_says_is_not_what_was_hashed(file: sqlite3.Connection) -> None:
    lines = mirror(file)
    row = lines[4][1]
    values = {name: getattr(row, name) for name in AuditRow.__struct_fields__}
    lines[4] = (5, AuditRow(**values | {"reason": "forged"}))
    told = chain.compare(Tx(file), lines)
    assert told[0] == "line 5: audit 5 is not what was hashed"
    assert told[1].startswith("audit 5 differs in reason")
