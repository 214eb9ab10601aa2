"""What a round of compaction would clear now, without clearing it.

Counts stop at COUNTED_MAX a table and are an upper bound: what other rows of the round free, or
hold, is not followed. Only reads.
"""

from feltd.clock import Now
from feltd.model.compaction import COUNTED_MAX, Outcome, Policy
from feltd.state import compaction, log_floors
from feltd.store.tx import Tx

NEWEST_WORKLOAD = """
SELECT w.seq
  FROM workloads w
 ORDER BY w.seq DESC
 LIMIT 1
"""

WORKLOAD_AT = """
SELECT w.created_at_ms AS at_ms
  FROM workloads w
 WHERE w.seq <= :seq
 ORDER BY w.seq DESC
 LIMIT 1
"""

WORKLOADS = """
SELECT count(*) AS found
  FROM (SELECT 1
          FROM workloads w
         WHERE w.seq <= :last_seq
           AND ((w.state IN ('COMPLETED', 'CANCELLED') AND w.finished_at_ms <= :before_ms)
                OR (w.state = 'DEAD_LETTERED' AND w.finished_at_ms <= :dead_before_ms))
           AND NOT EXISTS (SELECT 1
                             FROM dependency_edges e
                             JOIN workloads c ON c.seq = e.child_seq
                            WHERE e.parent = w.workload_id
                              AND c.state NOT IN ('COMPLETED', 'CANCELLED'))
         LIMIT :counted_max)
"""

AUDIT_ROWS = """
SELECT l.audit_seq AS newest, a.seq AS audit_floor, e.seq AS events_floor
  FROM ledger l
  JOIN floors a ON a.name = 'audit'
  JOIN floors e ON e.name = 'events'
 WHERE l.id = 1
"""

AUDIT_AT = """
SELECT a.at_ms
  FROM audit a
 WHERE a.seq = :seq
"""

SEALED_UP_TO = """
SELECT a.last_event_seq
  FROM audit a
 WHERE a.seq <= :seq
   AND a.kind = 'commit'
 ORDER BY a.seq DESC
 LIMIT 1
"""

TOMBSTONES = """
SELECT count(*) AS found
  FROM (SELECT 1
          FROM tombstones t
         WHERE t.at_ms <= :before_ms
         LIMIT :counted_max)
"""

RECORDS = """
SELECT count(*) AS found
  FROM (SELECT 1
          FROM records r
         WHERE r.value IS NULL
           AND r.updated_at_ms <= :before_ms
         LIMIT :counted_max)
"""

NEWEST_DECISION = """
SELECT d.decision_id AS seq
  FROM decisions d
 ORDER BY d.decision_id DESC
 LIMIT 1
"""

DECISION_AT = """
SELECT d.at_ms
  FROM decisions d
 WHERE d.decision_id <= :seq
 ORDER BY d.decision_id DESC
 LIMIT 1
"""

DECISIONS = """
SELECT count(*) AS found
  FROM (SELECT 1
          FROM decisions d
         WHERE d.decision_id <= :last_seq
         LIMIT :counted_max)
"""


def forecast(tx: Tx, policy: Policy, now: Now) -> Outcome:
    """What would be cleared and who holds logs back; `more` where a count stopped at the most."""
    pruned = {
        "changes": _changes(tx, policy, now),
        "workloads": _workloads(tx, policy, now),
        **_chain(tx, policy, now),
        "records": _old(tx, RECORDS, now.lease_ms, policy.deleted_ms),
        "tombstones": _old(tx, TOMBSTONES, now.lease_ms, policy.deleted_ms),
        "decisions": _decisions(tx, policy, now),
    }
    return Outcome(
        pruned={table: rows for table, rows in pruned.items() if rows},
        rewrote_log=False,
        dry_run=True,
        held_back=compaction.held_back(tx, policy, now),
        more=any(rows >= COUNTED_MAX for rows in pruned.values()),
    )


def _changes(tx: Tx, policy: Policy, now: Now) -> int:
    floors = log_floors.floors(tx, now, policy, compaction.HELD_MAX)
    return sum(floor.seq - floor.floor_seq for floor in floors)


def _workloads(tx: Tx, policy: Policy, now: Now) -> int:
    ages = [kept_ms for kept_ms in (policy.workloads_ms, policy.dead_letters_ms) if kept_ms]
    newest = tx.row(NEWEST_WORKLOAD)
    if newest is None or not ages:
        return 0
    params = {
        "last_seq": _last(tx, WORKLOAD_AT, newest["seq"], now.lease_ms - min(ages)),
        "before_ms": _before(now.lease_ms, policy.workloads_ms),
        "dead_before_ms": _before(now.lease_ms, policy.dead_letters_ms),
        "counted_max": COUNTED_MAX,
    }
    return int(tx.rows(WORKLOADS, params)[0]["found"])


def _chain(tx: Tx, policy: Policy, now: Now) -> dict[str, int]:
    [counts] = tx.rows(AUDIT_ROWS)
    found = {"events": 0, "audit": 0}
    floor, last = counts["audit_floor"], counts["newest"] - 1
    if policy.events_ms:
        seq = _last(tx, AUDIT_AT, last, now.lease_ms - policy.events_ms, floor)
        sealed = tx.row(SEALED_UP_TO, {"seq": seq})
        if sealed is not None:
            found["events"] = max(0, sealed["last_event_seq"] - counts["events_floor"])
    if policy.audit_ms and policy.events_ms:
        kept_ms = max(policy.audit_ms, policy.events_ms)
        found["audit"] = _last(tx, AUDIT_AT, last, now.lease_ms - kept_ms, floor) - floor
    return found


def _decisions(tx: Tx, policy: Policy, now: Now) -> int:
    newest = tx.row(NEWEST_DECISION)
    if newest is None or not policy.decisions_ms:
        return 0
    last_seq = _last(tx, DECISION_AT, newest["seq"], now.lease_ms - policy.decisions_ms)
    return int(tx.rows(DECISIONS, {"last_seq": last_seq, "counted_max": COUNTED_MAX})[0]["found"])


def _old(tx: Tx, sql: str, now_ms: int, kept_ms: int) -> int:
    params = {"before_ms": _before(now_ms, kept_ms), "counted_max": COUNTED_MAX}
    return int(tx.rows(sql, params)[0]["found"])


def _before(now_ms: int, kept_ms: int) -> int:
    """The instant up to which rows are past their time; before every row: for ever."""
    return now_ms - kept_ms if kept_ms else -1


def _last(tx: Tx, sql: str, high: int, before_ms: int, low: int = 0) -> int:
    """The last number whose row is at or before an instant, by halving; `low`: none is."""
    while low < high:
        middle = (low + high + 1) // 2
        row = tx.row(sql, {"seq": middle})
        if row is None or row["at_ms"] <= before_ms:
            low = middle
        else:
            high = middle - 1
    return low
