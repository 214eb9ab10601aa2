"""The promises about records find what a hand has done to the file."""

import pytest

from feltd.state import promises
from tests.state.world import State

#: A row typed by hand, and the promise it breaks. The schema's own guards are taken away first.
BROKEN = {
    "a change is missing": ("LOG", "DELETE FROM changes WHERE seq = 2"),
    "the newest change is missing": ("LOG", "DELETE FROM changes WHERE seq = 4"),
    "the head is ahead": ("LOG", "UPDATE change_logs SET head_seq = 9"),
    "the log is gone": ("LOG", "DELETE FROM change_logs"),
    "a change was rewritten": ("LOG", "UPDATE changes SET after = '7' WHERE seq = 1"),
    "a version was skipped": ("LOG", "UPDATE changes SET version = 9 WHERE seq = 2"),
    "a consumer is ahead": ("LOG", "UPDATE consumers SET ack_seq = 9"),
    "a value was typed": ("RECORDS", "UPDATE records SET value = '7'"),
    "a version was typed": ("RECORDS", "UPDATE records SET version = 7"),
    "a record is gone": ("RECORDS", "DELETE FROM records WHERE record_id = 'a'"),
    "an older change is named": ("RECORDS", "UPDATE records SET change_seq = 1 WHERE version = 2"),
    "a collection is miscounted": ("RECORDS", "UPDATE collections SET records = 5"),
    "bytes are miscounted": ("RECORDS", "UPDATE collections SET bytes = 5"),
    "a collection is forgotten": ("RECORDS", "DELETE FROM collections"),
    "a collection is made up": (
        "RECORDS",
        "INSERT INTO collections (tenant_id, collection) VALUES ('acme', 'made_up')",
    ),
    "a value is no JSON": ("JSON", "UPDATE records SET value = '{'"),
}


@pytest.fixture
def lived(state: State) -> State:
    """Records that were made, changed, deleted and made again, under a consumer."""
    state.put("a", {"n": 1})
    state.put("a", {"n": 2})
    state.put("b", 1)
    state.delete("b")
    state.hand(
        "INSERT INTO consumers (tenant_id, name, ack_seq, acked_at_ms, created_at_ms, created_by)"
        " VALUES ('acme', 'copy', 1, 0, 0, 'service:x')"
    )
    return state


def broken(state: State) -> set[str]:
    return {one.id for one in state.run(lambda tx, _, now: promises.ask(tx))}


def test_what_the_rules_wrote_holds(lived: State) -> None:
    assert broken(lived) == set()
    lived.cut(1)
    assert broken(lived) == set()
    lived.hand("DELETE FROM consumers")
    lived.cut(4)
    lived.put("a", {"n": 3})
    assert broken(lived) == set()


@pytest.mark.parametrize("what", BROKEN)
def test_what_a_hand_did_is_found(lived: State, what: str) -> None:
    promise, sql = BROKEN[what]
    for (name,) in lived.conn.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'"):
        lived.conn.execute(f"DROP TRIGGER {name}")

    lived.hand(sql)

    assert promise in broken(lived)
