"""The machine under the simulated daemon: its two clocks, its backups and what a sidecar is."""

from typing import Any, NamedTuple

from feltd.clock import Now
from feltd.store.sidecar import Mark

# What a whole round of the keeper may not leave behind.
LEFT_BEHIND = """
SELECT 'a lapsed lease' AS what, w.workload_id AS id
  FROM workloads w
 WHERE w.state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
   AND w.expires_at_ms <= :now_ms
UNION ALL
SELECT 'work that is due', w.workload_id
  FROM workloads w
 WHERE w.state = 'READY'
   AND w.due = 0
   AND w.eligible_at_ms <= :now_ms
UNION ALL
SELECT 'a silent worker', k.worker_id
  FROM workers k
 WHERE k.lifecycle <> 'OFFLINE'
   AND k.last_seen_at_ms + k.heartbeat_timeout_ms <= :now_ms
UNION ALL
SELECT 'a timeout', d.workload_id
  FROM deadlines d
 WHERE d.at_ms <= :now_ms
UNION ALL
SELECT 'an unsettled worker', k.worker_id
  FROM workers k
 WHERE k.authority_unsettled = 1
UNION ALL
SELECT 'a change nobody judged', t.trigger_id
  FROM triggers t
  JOIN change_logs l ON l.tenant_id = t.tenant_id
 WHERE t.enabled = 1
   AND t.cursor_seq < l.head_seq
   AND ifnull(t.retry_at_ms, 0) <= :now_ms
UNION ALL
SELECT 'an instant', t.trigger_id
  FROM triggers t
 WHERE t.next_at_ms <= :wall_ms
   AND ifnull(t.retry_at_ms, 0) <= :now_ms
"""


class Clock:
    """Both times as the daemon has them, and the machine's time since boot under them."""

    def __init__(self, at_ms: int) -> None:
        self.lease_ms = self.wall_ms = at_ms

    def now(self) -> Now:
        """The present instant."""
        return Now(self.lease_ms, self.wall_ms)

    def begin(self, stored_ms: int) -> None:
        """A run starts: lease time begins at the greater of what was stored and the wall clock."""
        self.lease_ms = max(stored_ms, self.wall_ms)


class Backup(NamedTuple):
    """A copy of the database, and what was known when it was made."""

    image: bytes
    known: bytes


def replaced(mark: Mark, **members: Any) -> Mark:
    """A mark with some members changed."""
    return Mark(**{name: getattr(mark, name) for name in Mark.__struct_fields__} | members)
