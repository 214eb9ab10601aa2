"""What a person may have forgotten or not seen yet, counted: what is held, drained, silent or off.

For the first page of an operator, so it says how much of each and never which; each is a list of
its own. Reads only, some thousand rows: workers, holds and triggers are few beside workloads.
"""

from msgspec import Struct

from feltd.clock import Now
from feltd.model.base import Ask
from feltd.store.tx import Row, Tx

#: Silent ones are told of for a day; later they are history.
DAY_MS = 86_400_000

WORKERS_APART = """
SELECT k.tenant_id,
       sum(k.lifecycle = 'OFFLINE' AND k.offline_reason = 'failed' AND k.drain_by IS NULL
           AND k.last_seen_at_ms > :since_ms) AS silent,
       sum(k.drain_by IS NOT NULL AND k.lifecycle <> 'OFFLINE') AS drained,
       sum(k.quarantined_by IS NOT NULL) AS quarantined
  FROM workers k
 WHERE k.removed_at_ms IS NULL
 GROUP BY k.tenant_id
"""

HELD = """
SELECT h.tenant_id, count(*) AS holds
  FROM holds h
 WHERE h.ended_at_ms IS NULL
   AND (h.until_at_ms IS NULL OR h.until_at_ms > :wall_ms)
 GROUP BY h.tenant_id
"""

NOT_FIRING = """
SELECT t.tenant_id, sum(t.enabled = 0) AS off, sum(t.enabled = 1 AND t.failures > 0) AS failing
  FROM triggers t
 GROUP BY t.tenant_id
"""


class Notable(Struct, frozen=True):
    """How many of each there are in the caller's tenants."""

    silent: int
    drained: int
    quarantined: int
    holds: int
    triggers_off: int
    triggers_failing: int


def count(tx: Tx, ask: Ask[None], now: Now) -> Notable:
    """Count them; a hold on everybody's work is shown to those of tenants '*'."""

    def seen(rows: list[Row], name: str) -> int:
        return sum(row[name] for row in rows if ask.caller.may_see(row["tenant_id"]))

    apart = tx.rows(WORKERS_APART, {"since_ms": now.lease_ms - DAY_MS})
    held = tx.rows(HELD, {"wall_ms": now.wall_ms})
    off = tx.rows(NOT_FIRING, {})
    return Notable(
        silent=seen(apart, "silent"),
        drained=seen(apart, "drained"),
        quarantined=seen(apart, "quarantined"),
        holds=seen(held, "holds"),
        triggers_off=seen(off, "off"),
        triggers_failing=seen(off, "failing"),
    )
