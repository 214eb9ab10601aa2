"""What the gauges show of the rows: counts by state, the oldest waiting workload, what happened.

Reads only, on a reader, asked at most every few seconds however often metrics are scraped. What
happened is counted from the events after the last look, so a counter misses nothing and the cost is
that of what is new.
"""

from typing import NamedTuple

from feltd.clock import Now
from feltd.mesh.retry import RESERVED
from feltd.store.tx import Tx

#: Events counted in one look; the rest waits for the next one.
EVENTS_MAX = 50_000
#: Ends that are told by name. A worker may call its failure what it likes: each such word would be
#: a series of its own for ever, and a tenant's word in everybody's graphs.
KNOWN_ENDS = RESERVED | {"completed", "timeout", "transient", "execution_error"}
OTHER_END = "other"
#: A grant or key that ends within this is worth a look.
EXPIRING_MS = 7 * 86_400_000

WORKLOADS = """
SELECT w.state, count(*) AS workloads
  FROM workloads w
 GROUP BY w.state
"""

OLDEST_OF_HEADS = """
SELECT min(w.eligible_at_ms) AS eligible_at_ms
  FROM demands d
  JOIN workloads w ON w.seq = d.head_seq
 WHERE d.head_rank IS NOT NULL
"""

WORKERS = """
SELECT CASE WHEN k.lifecycle = 'READY' AND k.concurrency <= (SELECT count(*)
                                                               FROM claims c
                                                              WHERE c.worker_id = k.worker_id
                                                                AND c.ended_at_ms IS NULL)
            THEN 'BUSY'
            ELSE k.lifecycle
       END AS lifecycle,
       count(*) AS workers
  FROM workers k
 WHERE k.removed_at_ms IS NULL
 GROUP BY 1
"""

LAST_EVENT = """
SELECT coalesce(max(e.seq), 0) AS seq
  FROM events e
"""

HAPPENED = """
SELECT e.to_state, e.end_kind, count(*) AS times
  FROM events e
 WHERE e.seq > :after_seq
   AND e.seq <= :until_seq
   AND e.fencing_token IS NOT NULL
   AND (e.to_state = 'CLAIMED' OR e.end_kind IS NOT NULL)
 GROUP BY e.to_state, e.end_kind
"""

EXPIRING = """
SELECT (SELECT count(*)
          FROM grants g
         WHERE g.status = 'ACTIVE'
           AND g.expires_at_ms > :wall_ms
           AND g.expires_at_ms <= :until_ms) AS grants,
       (SELECT count(*)
          FROM keys y
         WHERE y.revoked_at_ms IS NULL
           AND y.expires_at_ms > :wall_ms
           AND y.expires_at_ms <= :until_ms) AS keys
"""


# Of each log, the enabled trigger that is furthest behind; a seek a tenant.
TRIGGERS = """
SELECT (SELECT coalesce(max(l.head_seq - t.cursor_seq), 0)
          FROM change_logs l
          JOIN triggers t ON t.tenant_id = l.tenant_id
                         AND t.kind = 'state'
                         AND t.enabled = 1
                         AND t.cursor_seq = (SELECT min(b.cursor_seq)
                                               FROM triggers b
                                              WHERE b.tenant_id = l.tenant_id
                                                AND b.kind = 'state'
                                                AND b.enabled = 1)) AS lag,
       (SELECT count(*)
          FROM triggers t
         WHERE t.enabled = 0) AS disabled
"""


class Measures(NamedTuple):
    """One look. `claims` and `ends` are what came since the look before, up to `event_seq`.

    `ends` has a worker's own word for how it failed under OTHER_END.
    """

    event_seq: int
    workloads: dict[str, int]
    workers: dict[str, int]
    oldest_ready_ms: int
    claims: int
    ends: dict[str, int]
    grants_expiring: int
    keys_expiring: int
    trigger_lag_changes: int
    triggers_disabled: int


def last_event(tx: Tx, cmd: None, now: Now) -> int:
    """Where counting begins when the daemon starts."""
    row = tx.row(LAST_EVENT)
    return int(row["seq"]) if row else 0


def expiring(tx: Tx, cmd: None, now: Now) -> tuple[int, int]:
    """How many live grants and keys end within EXPIRING_MS by wall time."""
    until_ms = now.wall_ms + EXPIRING_MS
    [found] = tx.rows(EXPIRING, {"wall_ms": now.wall_ms, "until_ms": until_ms})
    return found["grants"], found["keys"]


def measure(tx: Tx, after_seq: int, now: Now) -> Measures:
    """Look once; `after_seq` is the `event_seq` of the look before."""
    until_seq = min(last_event(tx, None, now), after_seq + EVENTS_MAX)
    claims, ends = 0, dict[str, int]()
    for row in tx.rows(HAPPENED, {"after_seq": after_seq, "until_seq": until_seq}):
        if row["end_kind"] is not None:
            kind = row["end_kind"] if row["end_kind"] in KNOWN_ENDS else OTHER_END
            ends[kind] = ends.get(kind, 0) + row["times"]
        else:
            claims += row["times"]
    oldest = tx.row(OLDEST_OF_HEADS)
    eligible_at_ms = oldest["eligible_at_ms"] if oldest else None
    grants, keys = expiring(tx, None, now)
    [triggers] = tx.rows(TRIGGERS)
    return Measures(
        event_seq=until_seq,
        workloads={row["state"]: row["workloads"] for row in tx.rows(WORKLOADS)},
        workers={row["lifecycle"]: row["workers"] for row in tx.rows(WORKERS)},
        oldest_ready_ms=0 if eligible_at_ms is None else max(0, now.lease_ms - eligible_at_ms),
        claims=claims,
        ends=ends,
        grants_expiring=grants,
        keys_expiring=keys,
        trigger_lag_changes=triggers["lag"],
        triggers_disabled=triggers["disabled"],
    )
