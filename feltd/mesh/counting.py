"""How much of a kind of work waits and runs, counted along indexes and never beyond CAP.

A count that reached its cap says so; nobody is better served by the exact number of a queue of a
million. Only reads.
"""

from msgspec import Struct

from feltd.clock import Now
from feltd.store.tx import Tx

#: Workloads of one kind that are counted of each sort: 1 ms of a reader.
CAP = 10_000
#: Running workloads of a tenant that are looked at: each is a row to fetch, some 30 ms for all.
RUNNING_MAX = 10_000
#: Lanes of a kind whose heads are looked at for the oldest.
HEADS_MAX = 64

READY_OPEN = """
SELECT count(*) AS workloads
  FROM (SELECT w.seq
          FROM lanes l
          JOIN workloads w ON w.lane_id = l.lane_id
         WHERE l.demand_id = :demand_id
           AND l.head_rank IS NOT NULL
           AND l.concurrency_open = 1
           AND l.rate_open = 1
           AND w.state = 'READY'
           AND w.due = 1
         LIMIT :cap)
"""

READY_BLOCKED = """
SELECT count(*) AS workloads,
       coalesce(sum(b.key_full), 0) AS key_full
  FROM (SELECT w.seq, l.concurrency_open = 0 AS key_full
          FROM lanes l
          JOIN workloads w ON w.lane_id = l.lane_id
         WHERE l.demand_id = :demand_id
           AND l.head_rank IS NOT NULL
           AND (l.concurrency_open = 0 OR l.rate_open = 0)
           AND w.state = 'READY'
           AND w.due = 1
         LIMIT :cap) b
"""

OLDEST_OPEN = """
SELECT min(h.eligible_at_ms) AS oldest_at_ms
  FROM (SELECT w.eligible_at_ms
          FROM lanes l
          JOIN workloads w ON w.seq = l.head_seq
         WHERE l.demand_id = :demand_id
           AND l.head_rank IS NOT NULL
           AND l.concurrency_open = 1
           AND l.rate_open = 1
         ORDER BY l.head_rank, l.head_seq
         LIMIT :heads) h
"""

OLDEST_BLOCKED = """
SELECT min(h.eligible_at_ms) AS oldest_at_ms
  FROM (SELECT w.eligible_at_ms
          FROM lanes l
          JOIN workloads w ON w.seq = l.head_seq
         WHERE l.demand_id = :demand_id
           AND l.head_rank IS NOT NULL
           AND (l.concurrency_open = 0 OR l.rate_open = 0)
         LIMIT :heads) h
"""

# The terms of workloads_delayed stand as they do in the index, or it would not be used.
DELAYED = """
SELECT count(*) AS workloads,
       coalesce(sum(d.not_before_at_ms > :wall_ms), 0) AS not_before
  FROM (SELECT w.not_before_at_ms
          FROM workloads w
         WHERE w.demand_id = :demand_id
           AND w.due = 0
           AND w.state IN ('PENDING', 'READY')
           AND w.state = 'READY'
         LIMIT :cap) d
"""

PENDING = """
SELECT count(*) AS workloads
  FROM (SELECT w.seq
          FROM workloads w
         WHERE w.demand_id = :demand_id
           AND w.due = 0
           AND w.state IN ('PENDING', 'READY')
           AND w.state = 'PENDING'
         LIMIT :cap)
"""

RUNNING = """
SELECT r.demand_id, count(*) AS workloads
  FROM (SELECT w.demand_id
          FROM workloads w
         WHERE w.tenant_id = :tenant_id
           AND w.state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
         LIMIT :rows) r
 GROUP BY r.demand_id
"""


class Counts(Struct, frozen=True, kw_only=True):
    """The workloads of one kind that nobody holds.

    `open` and `blocked` are due; of those blocked `key_full` are behind a concurrency key, the
    others behind a rate key. `delayed` are for later, `pending` wait for other work.
    """

    open: int
    blocked: int
    key_full: int
    delayed: int
    not_before: int
    pending: int
    oldest_at_ms: int | None

    @property
    def ready(self) -> int:
        """What is due."""
        return self.open + self.blocked

    @property
    def backoff(self) -> int:
        """What waits after a failed attempt."""
        return self.delayed - self.not_before

    @property
    def capped(self) -> bool:
        """Whether a count stopped at its cap."""
        return CAP in (self.open, self.blocked, self.delayed, self.pending)


class Running:
    """How much of each kind runs, read once for each tenant that is asked for."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._of: dict[str, dict[int, int]] = {}
        #: A tenant has more than RUNNING_MAX: its counts are too low.
        self.capped = False

    def of(self, tenant_id: str, demand_id: int) -> int:
        """Running workloads of a kind."""
        known = self._of.get(tenant_id)
        if known is None:
            rows = self._tx.rows(RUNNING, {"tenant_id": tenant_id, "rows": RUNNING_MAX})
            known = {row["demand_id"]: row["workloads"] for row in rows}
            self._of[tenant_id] = known
            self.capped = self.capped or sum(known.values()) >= RUNNING_MAX
        return known.get(demand_id, 0)


def count(tx: Tx, now: Now, demand_id: int, due: bool) -> Counts:
    """Count one kind; `due` False where none of its lanes has a head, so that less is asked."""
    kind = {"demand_id": demand_id, "cap": CAP}
    opened = blocked = key_full = 0
    oldest: list[int] = []
    if due:
        opened = tx.rows(READY_OPEN, kind)[0]["workloads"]
        behind = tx.rows(READY_BLOCKED, kind)[0]
        blocked, key_full = behind["workloads"], behind["key_full"]
        heads = {"demand_id": demand_id, "heads": HEADS_MAX}
        found = [tx.rows(sql, heads)[0]["oldest_at_ms"] for sql in (OLDEST_OPEN, OLDEST_BLOCKED)]
        oldest = [one for one in found if one is not None]
    later = tx.rows(DELAYED, {**kind, "wall_ms": now.wall_ms})[0]
    return Counts(
        open=opened,
        blocked=blocked,
        key_full=key_full,
        delayed=later["workloads"],
        not_before=later["not_before"],
        pending=tx.rows(PENDING, kind)[0]["workloads"],
        oldest_at_ms=min(oldest, default=None),
    )
