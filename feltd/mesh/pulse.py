"""What happened between two places in the feed, counted: creations, claims, and how claims ended.

Reads only. The cost is that of the events between, never of those before; one look counts a bounded
number of them and says where it stopped.
"""

from msgspec import Struct

from feltd.clock import Now
from feltd.mesh import measures
from feltd.model.base import Ask
from feltd.store.tx import Tx

#: Events counted in one look, some 15 ms of a reader.
EVENTS_MAX = 50_000
#: READY work that is for later is counted up to here: each is a row to fetch.
RETRYING_MAX = 10_000

HAPPENED = """
SELECT e.kind, e.end_kind, count(*) AS times
  FROM events e
 WHERE e.seq > :after_seq
   AND e.seq <= :until_seq
   AND e.workload_id IS NOT NULL
   AND (e.kind IN ('create', 'claim') OR (e.end_kind IS NOT NULL AND e.fencing_token IS NOT NULL))
 GROUP BY e.kind, e.end_kind
"""

# A workload that was claimed before and is for later waits for its next attempt.
RETRYING = """
SELECT count(*) AS workloads,
       coalesce(sum(r.again), 0) AS again
  FROM (SELECT w.fencing_token > 0
               AND (:whole = 1 OR w.tenant_id = :tenant_id) AS again
          FROM workloads w
         WHERE w.state = 'READY'
           AND w.due = 0
         ORDER BY w.eligible_at_ms, w.seq
         LIMIT :rows) r
"""

COUNT_OF_STATE = """
SELECT count(*) AS workloads
  FROM (SELECT w.seq
          FROM workloads w
         WHERE w.tenant_id = :tenant_id
           AND w.state = :state
         LIMIT :rows)
"""


class Pulse(Struct, frozen=True):
    """What came since, up to the event `seq`; `whole`: nothing more had come."""

    seq: int
    whole: bool
    creations: int = 0
    claims: int = 0
    completions: int = 0
    failures: int = 0


class Tally(Struct, frozen=True):
    """Workloads by state as far as they were counted, and those that wait for their next attempt.

    A count that reached `limit` is at least that many.
    """

    states: dict[str, int]
    retrying: int
    limit: int


def happened(tx: Tx, after_seq: int, now: Now) -> Pulse:
    """Count what came after the event `after_seq`, EVENTS_MAX of them at most."""
    last_seq = measures.last_event(tx, None, now)
    until_seq = min(last_seq, after_seq + EVENTS_MAX)
    counts = dict.fromkeys(("creations", "claims", "completions", "failures"), 0)
    for row in tx.rows(HAPPENED, {"after_seq": after_seq, "until_seq": until_seq}):
        if row["kind"] in ("create", "claim"):
            counts["creations" if row["kind"] == "create" else "claims"] += row["times"]
        elif row["end_kind"] is not None:
            counts["completions" if row["end_kind"] == "completed" else "failures"] += row["times"]
    return Pulse(until_seq, until_seq == last_seq, **counts)


def retrying(tx: Tx, ask: Ask[str], now: Now) -> int:
    """Workloads of a tenant ('*': of all) that wait for another attempt, up to RETRYING_MAX."""
    bounds = {"whole": ask.body == "*", "tenant_id": ask.body, "rows": RETRYING_MAX}
    row = tx.row(RETRYING, bounds)
    return int(row["again"]) if row else 0


def tally(tx: Tx, ask: Ask[tuple[str, ...]], now: Now) -> Tally:
    """Unfinished and dead workloads of the named tenants by state, RETRYING_MAX of each at most."""
    states: dict[str, int] = {}
    again = 0
    for tenant_id in ask.body:
        again += retrying(tx, Ask(caller=ask.caller, body=tenant_id), now)
        for state in ("PENDING", "READY", "CLAIMED", "RUNNING", "CHECKPOINTED", "DEAD_LETTERED"):
            left = RETRYING_MAX - states.get(state, 0)
            bounds = {"tenant_id": tenant_id, "state": state, "rows": left}
            row = tx.row(COUNT_OF_STATE, bounds)
            states[state] = states.get(state, 0) + (int(row["workloads"]) if row else 0)
    return Tally(states, min(again, RETRYING_MAX), RETRYING_MAX)
