"""A client that knows nothing but the feed, and what it makes of it."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from feltd.mesh.states import LIVE_STATES
from feltd.store.tx import Row, Tx

LIFECYCLES = """
SELECT k.worker_id, k.lifecycle
  FROM workers k
 ORDER BY k.worker_id
"""

WORKLOADS = """
SELECT w.workload_id, w.state, w.fencing_token,
       (SELECT c.fencing_token
          FROM claims c
         WHERE c.workload_id = w.workload_id
           AND c.ended_at_ms IS NULL) AS held_token,
       (SELECT count(*)
          FROM claims c
         WHERE c.workload_id = w.workload_id) AS attempts
  FROM workloads w
 ORDER BY w.workload_id
"""

EVENTS_OF_WORKERS = """
SELECT e.worker_id, e.from_state, e.to_state, e.kind, e.seq
  FROM events e
 WHERE e.workload_id IS NULL
   AND e.worker_id IS NOT NULL
   AND e.to_state IS NOT NULL
   AND e.seq > :after
 ORDER BY e.seq
"""


class Known(NamedTuple):
    """What is known of one workload."""

    state: str = ""
    fencing_token: int = 0
    claim_id: str | None = None
    attempts: int = 0


class Rebuilt:
    """Every workload as the events so far tell it; `wrong` is what does not follow."""

    def __init__(self) -> None:
        self.workloads: dict[str, Known] = {}
        self.seq = 0
        self.wrong: list[str] = []

    def take(self, event: Mapping[str, Any]) -> None:
        """One event, as the wire shows it."""
        if event["seq"] <= self.seq:
            self.wrong.append(f"{event['seq']} came after {self.seq}")
        self.seq = event["seq"]
        workload_id, to = event.get("workload_id"), event.get("to")
        if workload_id is None or to is None:
            return
        known = self.workloads.get(workload_id, Known())
        if event.get("from", "") != known.state:
            self.wrong.append(f"{event} does not follow {known}")
        if event["kind"] == "claim":
            token = event["fencing_token"]
            known = known._replace(fencing_token=token, attempts=known.attempts + 1)
        held = f"claim_{known.fencing_token}" if to in LIVE_STATES else None
        self.workloads[workload_id] = known._replace(state=to, claim_id=held)


def stored(rows: Iterable[Any]) -> dict[str, Known]:
    """The same as the rows of WORKLOADS have it."""
    return {
        row["workload_id"]: Known(
            row["state"],
            row["fencing_token"],
            None if row["held_token"] is None else f"claim_{row['held_token']}",
            row["attempts"],
        )
        for row in rows
    }


class Lives:
    """Each worker's lifecycle as the events tell it, edge by edge."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._seq = 0

    def wrong(self, tx: Tx) -> list[str]:
        """Edges that do not begin where the last one ended, and lifecycles no event tells of."""
        found: list[str] = []
        event: Row
        for event in tx.rows(EVENTS_OF_WORKERS, {"after": self._seq}):
            if event["from_state"] != self._known.get(event["worker_id"]):
                found.append(f"{tuple(event)} does not follow")
            self._known[event["worker_id"]], self._seq = event["to_state"], event["seq"]
        for row in tx.rows(LIFECYCLES):
            if row["lifecycle"] != self._known.get(row["worker_id"]):
                found.append(f"{row['worker_id']} is {row['lifecycle']}, which no event tells")
        return found
