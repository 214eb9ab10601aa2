"""Asking the promises stays linear: no question walks a table once for each row of another."""

from feltd.state.promises import PROMISES
from tests.state.compaction.world import Kept

#: Small by nature, or a list inside one row.
SMALL = ("VIRTUAL TABLE", "CONSTANT ROW", "holds", "worker_edges")


def test_no_promise_reads_a_table_for_each_row(kept: Kept) -> None:
    wrong = []
    for one in PROMISES:
        steps = kept.conn.execute("EXPLAIN QUERY PLAN " + one.sql).fetchall()
        inner = {row["id"] for row in steps if row["detail"].startswith("CORRELATED")}
        wrong += [
            f"{one.id}: {row['detail']}"
            for row in steps
            if row["parent"] in inner
            and row["detail"].startswith("SCAN")
            and not any(word in row["detail"] for word in SMALL)
        ]
    assert not wrong, "\n".join(wrong)
