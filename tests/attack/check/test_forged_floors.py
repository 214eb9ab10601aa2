"""Who deletes the oldest history and says that retention took it is found out by the chain."""

import sqlite3

import pytest

from feltd.mesh import chain
from feltd.store.tx import Tx
from tests.daemon.test_chain import cleared, mark, mirror, wrong
from tests.daemon.test_chain import file as file


def raised(conn: sqlite3.Connection, seq: int, event_seq: int) -> None:
    """What retention would leave, but for its row in the chain."""
    conn.execute(
        "UPDATE floors SET seq = :seq, at_ms = 1, event_seq = :event_seq,"
        " hash = (SELECT hash FROM audit WHERE seq = :seq) WHERE name = 'audit'",
        {"seq": seq, "event_seq": event_seq},
    )
    conn.execute("UPDATE floors SET seq = ? WHERE name = 'events'", [event_seq])
    conn.execute("DELETE FROM audit WHERE seq <= ?", [seq])
    conn.execute("DELETE FROM events WHERE seq <= ?", [event_seq])


@pytest.mark.parametrize(("seq", "event_seq"), [(1, 0), (4, 6), (8, 12)])
def test_rows_taken_below_a_floor_that_somebody_raised_are_named(
    file: sqlite3.Connection, seq: int, event_seq: int
) -> None:
    head = mark(file)
    raised(file, seq, event_seq)
    told = wrong(file, head)
    rows = "audit 1 is gone" if seq == 1 else f"audit 1 to {seq} are gone"
    assert told[0].startswith(rows)


def test_events_taken_below_a_floor_that_somebody_raised_are_named(
    file: sqlite3.Connection,
) -> None:
    file.execute("UPDATE floors SET seq = 6 WHERE name = 'events'")
    file.execute("DELETE FROM events WHERE seq <= 6")
    assert wrong(file) == ["events up to 6 may be gone, and not by retention: no row tells of it"]


def test_a_floor_raised_above_what_retention_took_is_named_too(file: sqlite3.Connection) -> None:
    lines = mirror(file)
    cleared(file, 4, 6)
    assert wrong(file) == []
    raised(file, 6, 9)
    assert wrong(file)[0].startswith("audit 1 to 6 are gone")
    assert chain.compare(Tx(file), lines) == []
