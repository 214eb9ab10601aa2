"""A state that is compacted: retention in a story's own terms, rounds, and every promise asked."""

from typing import Any

from feltd.model.compaction import Policy, Pruned, Slice, Table
from feltd.state import compaction, promises
from feltd.store.tx import Tx
from tests.state.world import State

HOUR_MS = 3_600_000
DAY_MS = 86_400_000

#: What the daemon does where nobody says otherwise.
DEFAULTS = Policy(
    changes_ms=DAY_MS,
    consumer_limit_ms=DAY_MS,
    workloads_ms=7 * DAY_MS,
    dead_letters_ms=0,
    deleted_ms=7 * DAY_MS,
    decisions_ms=7 * DAY_MS,
    events_ms=30 * DAY_MS,
    audit_ms=365 * DAY_MS,
    workers_ms=30 * DAY_MS,
    keys_ms=30 * DAY_MS,
)


class Kept(State):
    """A state with a policy; `compact` is a round as the daemon makes it."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = DEFAULTS

    def keeps(self, **members: int) -> None:
        """Change how long things are kept."""
        self.policy = self.policy._replace(**members)

    def slice(self, table: Table, limit: int = 500) -> Pruned:
        """One slice in a commit of its own."""
        return self.run(compaction.compact, Slice(table, limit, self.policy))

    def compact(self, limit: int = 500, *, whole: bool = True) -> dict[str, int]:
        """Slices of every table until none has more; what they cleared. Promises hold after each.

        `whole` False asks the promises at the end only.
        """
        cleared: dict[str, int] = {}
        for table in compaction.WALKS:
            for _ in range(100_000):
                pruned = self.slice(table, limit)
                assert not pruned.skipped, pruned.skipped
                for name, rows in pruned.counts.items():
                    cleared[name] = cleared.get(name, 0) + rows
                if whole and pruned.counts:
                    self.check()
                if not pruned.more:
                    break
            else:
                raise AssertionError(f"{table} never ends")
        self.run(lambda tx, _, now: compaction.told(tx, cleared, now))
        self.check()
        return cleared

    def check(self) -> None:
        """Every promise holds, and the audit chain is whole."""
        tx = Tx(self.conn)
        assert promises.ask(tx) == []
        assert promises.walk(tx)[1] == []
        assert self.conn.execute("PRAGMA foreign_key_check").fetchall() == []

    def count(self, table: str, where: str = "1", **params: Any) -> int:
        """How many rows of a table there are."""
        asked = f"SELECT count(*) FROM {table} WHERE {where}"  # noqa: S608
        found = self.conn.execute(asked, params).fetchone()
        return int(found[0])

    def done(self, **members: Any) -> str:
        """A workload of acme/docs that was claimed and completed; its id."""
        job = self.workload(**members)
        worker = self.crew()
        self.say("complete", self.claims(job, worker, start=True))
        return job

    def crew(self) -> str:
        """A worker of acme/docs that takes whatever a story has done."""
        row = self.conn.execute("SELECT worker_id FROM workers WHERE name = 'crew'").fetchone()
        if row is None:
            return self.worker("crew", capacity={"concurrency": 64})
        # Between two stories it beats: it is heard, whatever time went by.
        self.conn.execute(
            "UPDATE workers SET last_seen_at_ms = ? WHERE name = 'crew'", [self.now.lease_ms]
        )
        return str(row["worker_id"])
