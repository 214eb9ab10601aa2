"""Telling the commits of a replicating program from those of anybody else.

Litestream writes into two tables of its own whenever it checkpoints. SQLite only says that somebody
committed: it was Litestream where its counter has moved since. What another program commits between
the same two batches is taken for it; `feltd check` finds what harm that did.
"""

from feltd.store.tx import Tx

KNOWN = """
SELECT count(*) AS tables
  FROM sqlite_schema
 WHERE type = 'table'
   AND name IN ('_litestream_seq', '_litestream_lock')
"""

COUNTER = """
SELECT max(s.seq) AS seq
  FROM _litestream_seq s
"""

#: Tables that are there, and the counter.
State = tuple[int, int]


class Neighbour:
    """What was last seen of Litestream's tables. Used on the writer's thread alone."""

    def __init__(self) -> None:
        self._state: State = (0, 0)

    def wrote(self, tx: Tx) -> bool:
        """Whether its tables changed since the last look, which this is."""
        before, self._state = self._state, _state(tx)
        return self._state != before


def _state(tx: Tx) -> State:
    known = tx.row(KNOWN)
    tables = 0 if known is None else int(known["tables"])
    counter = tx.row(COUNTER) if tables == 2 else None
    return tables, 0 if counter is None else int(counter["seq"] or 0)
