"""Why a pull was given nothing: what waits in its application, and what keeps it from this worker.

Only reads. Each kind of work, a demand, is counted under the first thing that keeps it back: a
hold, its pool, a key, or that it does not fit. Counts are of kinds and bounded, so that a look of
somebody who waits stays cheap whatever the depth.
"""

from collections import Counter

from feltd.mesh import matching
from feltd.model.claim import Reason
from feltd.store.tx import Row, Tx

#: Kinds with due work that are looked at; as many as an application can have.
KINDS_MAX = 2_000
#: Kinds all of whose due work is kept back that are looked at, some 2 ms.
KEPT_BACK_MAX = 500

WAITING = """
SELECT d.demand_id, 0 AS pool_full, 0 AS key_full
  FROM demands d
 WHERE d.tenant_id = :tenant_id
   AND d.application_id = :application_id
   AND d.head_rank IS NOT NULL
 LIMIT :limit
"""

# A demand has no head while all of its due work is kept back.
KEPT_BACK = """
SELECT d.demand_id, d.pool_open = 0 AS pool_full,
       EXISTS (SELECT 1
                 FROM lanes b
                WHERE b.demand_id = d.demand_id
                  AND b.head_rank IS NOT NULL
                  AND (b.concurrency_open = 0 OR b.rate_open = 0)) AS key_full
  FROM demands d
 WHERE d.tenant_id = :tenant_id
   AND d.application_id = :application_id
   AND d.head_rank IS NULL
   AND (EXISTS (SELECT 1
                  FROM lanes b
                 WHERE b.demand_id = d.demand_id
                   AND b.head_rank IS NOT NULL
                   AND (b.concurrency_open = 0 OR b.rate_open = 0))
        OR (d.pool_open = 0
            AND EXISTS (SELECT 1
                          FROM lanes l
                         WHERE l.demand_id = d.demand_id
                           AND l.head_rank IS NOT NULL
                           AND l.concurrency_open = 1
                           AND l.rate_open = 1)))
 LIMIT :limit
"""

NO_WORK = Reason("NO_WORK", "nothing is waiting in this application")
SAYS = {
    "HELD": "work of {kinds} is held",
    "POOL_FULL": "work of {kinds} waits for its pool, which is at its ceiling",
    "KEY_FULL": "work of {kinds} waits for a concurrency or rate key, which is at its limit",
    "LEFT": "work of {kinds} is left for a worker that has more of its affinity labels",
    "NO_MATCH": "work of {kinds} is waiting, none of which fits this pull",
}


def reasons(tx: Tx, fit: matching.Fit) -> list[Reason]:
    """What waits and is not for this worker now, by what keeps it back; NO_WORK when nothing is.

    `demands` counts kinds of work, up to the bounds here. What fits is left for others.
    """
    owner = {"tenant_id": fit.tenant_id, "application_id": fit.application_id}
    waiting = tx.rows(WAITING, {**owner, "limit": KINDS_MAX})
    waiting += tx.rows(KEPT_BACK, {**owner, "limit": KEPT_BACK_MAX})
    counts = Counter(_kept_back_by(row, fit) for row in waiting)
    told = [_told(code, counts[code]) for code in SAYS if counts[code]]
    return told or [NO_WORK]


def _kept_back_by(row: Row, fit: matching.Fit) -> str:
    if row["demand_id"] in fit.held:
        return "HELD"
    if row["demand_id"] not in fit.demand_ids:
        return "NO_MATCH"
    if row["pool_full"]:
        return "POOL_FULL"
    return "KEY_FULL" if row["key_full"] else "LEFT"


def _told(code: str, count: int) -> Reason:
    kinds = "one kind" if count == 1 else f"{count} kinds"
    detail = SAYS[code].format(kinds=kinds)
    return Reason("NO_MATCH" if code == "LEFT" else code, detail, demands=count)
