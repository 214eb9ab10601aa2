"""What waiting work asks for, and the best row of each kind, so that depth costs a pull nothing.

A demand is one distinct (definition#revision, capabilities, resources, placement) of a tenant and
application; it has a lane for each pair of keys its work names, which holds its due rows in the
order of (rank, seq). Both remember their head: who makes a row due offers it, who takes a due row
away withdraws it, in the same transaction. How a pull seeks among the heads stands in matching.py.
"""

import hashlib
from collections.abc import Iterable, Mapping

from msgspec.json import encode

from feltd.errors import Refused
from feltd.mesh import keys, lanes, rates
from feltd.model.policy import Concurrency, Placement, Rate, placement_text
from feltd.model.workload import Resources
from feltd.store.tx import Row, Tx

#: A worker is compared with every demand of its application once: 2,000 comparisons take 2 ms.
DEMANDS_MAX = 2_000
#: Demands without live work that one creation clears away when its application is full.
SPARED_MAX = 64

FIND = """
SELECT d.demand_id, l.lane_id
  FROM demands d
  LEFT JOIN lanes l ON l.demand_id = d.demand_id
                   AND l.concurrency_key = :concurrency_key
                   AND l.rate_key = :rate_key
 WHERE d.tenant_id = :tenant_id
   AND d.application_id = :application_id
   AND d.digest = :digest
"""

OPEN_APPLICATION = """
INSERT INTO applications (tenant_id, application_id)
VALUES (:tenant_id, :application_id)
ON CONFLICT (tenant_id, application_id) DO NOTHING
"""

COUNT_UP = """
UPDATE applications
   SET demands = demands + 1,
       demand_generation = demand_generation + 1
 WHERE tenant_id = :tenant_id
   AND application_id = :application_id
   AND demands < :demands_max
"""

MAKE = """
INSERT INTO demands (tenant_id, application_id, definition_id, definition_revision, capabilities,
                     resources, placement, pool_id, pool_open, digest)
VALUES (:tenant_id, :application_id, :definition_id, :definition_revision, :capabilities,
        :resources, :placement, :pool_id,
        CASE WHEN EXISTS (SELECT 1
                            FROM pools p
                           WHERE p.tenant_id = :tenant_id
                             AND p.pool_id = :pool_id
                             AND p.active >= p.max_concurrency) THEN 0 ELSE 1 END,
        :digest)
RETURNING demand_id
"""

OFFER_LANE = """
UPDATE lanes
   SET head_rank = :rank,
       head_seq = :seq
 WHERE lane_id = :lane_id
   AND (head_rank IS NULL OR (head_rank, head_seq) > (:rank, :seq))
"""

OFFER_DEMAND = """
UPDATE demands
   SET head_rank = :rank,
       head_seq = :seq
 WHERE demand_id = :demand_id
   AND pool_open = 1
   AND (head_rank IS NULL OR (head_rank, head_seq) > (:rank, :seq))
   AND EXISTS (SELECT 1
                 FROM lanes l
                WHERE l.lane_id = :lane_id
                  AND l.concurrency_open = 1
                  AND l.rate_open = 1)
"""

WITHDRAW_LANE = """
UPDATE lanes
   SET (head_rank, head_seq) = (SELECT w.rank, w.seq
                                  FROM workloads w
                                 WHERE w.lane_id = :lane_id
                                   AND w.state = 'READY'
                                   AND w.due = 1
                                 ORDER BY w.rank, w.seq
                                 LIMIT 1)
 WHERE lane_id = :lane_id
"""

DEAD_OF_APPLICATION = """
SELECT d.demand_id, d.tenant_id, d.application_id
  FROM demands d
 WHERE d.tenant_id = :tenant_id
   AND d.application_id = :application_id
   AND NOT EXISTS (SELECT 1 FROM workloads w WHERE w.demand_id = d.demand_id)
   AND NOT EXISTS (SELECT 1
                     FROM lanes l
                    WHERE l.demand_id = d.demand_id
                    LIMIT 1 OFFSET 64)
 ORDER BY d.demand_id
 LIMIT :limit
"""

DROP_LANES = """
DELETE FROM lanes
 WHERE demand_id = :demand_id
"""

DROP = """
DELETE FROM demands
 WHERE demand_id = :demand_id
"""

COUNT_DOWN = """
UPDATE applications
   SET demands = demands - :dropped,
       demand_generation = demand_generation + 1
 WHERE tenant_id = :tenant_id
   AND application_id = :application_id
"""


def find(
    tx: Tx,
    *,
    tenant_id: str,
    application_id: str,
    definition_id: str,
    definition_revision: str,
    capabilities: Iterable[str],
    resources: Resources,
    placement: Placement,
    concurrency: Concurrency | None = None,
    rate: Rate | None = None,
) -> tuple[int, int]:
    """(demand_id, lane_id) of what is asked, made when it is new.

    Another limit than its concurrency or rate key has becomes the limit of the key. Refuses
    WORKLOAD_INVALID when the application has DEMANDS_MAX others with live work. Never call it in
    an operation that also calls matching.fitting: taken back, its generation would be used again.
    """
    asked = {
        "definition_id": definition_id,
        "definition_revision": definition_revision,
        "capabilities": _text(sorted(set(capabilities))),
        "resources": _text(resources),
        "placement": placement_text(placement),
    }
    owner = {"tenant_id": tenant_id, "application_id": application_id}
    digest = hashlib.sha256(_text(list(asked.values())).encode()).hexdigest()
    key_seqs = {
        "concurrency_key": keys.find(tx, owner, concurrency),
        "rate_key": rates.find(tx, owner, rate),
    }
    found = tx.row(FIND, {**owner, **key_seqs, "digest": digest})
    if found is not None and found["lane_id"] is not None:
        return int(found["demand_id"]), int(found["lane_id"])
    if found is None:
        _count_up(tx, owner)
        pool = {"pool_id": placement.pool_id}
        found = tx.rows(MAKE, {**owner, **asked, **pool, "digest": digest})[0]
    demand_id = int(found["demand_id"])
    return demand_id, lanes.make(tx, demand_id, **key_seqs)


def offer(tx: Tx, lane_id: int, demand_id: int, rank: int, seq: int) -> None:
    """A row became due: it is the new head of its lane and demand when it is better than theirs.

    Of its demand only while its lane and pool stand open. One statement when it is not better,
    else two. Repeating is harmless.
    """
    if tx.change(OFFER_LANE, {"lane_id": lane_id, "rank": rank, "seq": seq}):
        head = {"demand_id": demand_id, "lane_id": lane_id, "rank": rank, "seq": seq}
        tx.change(OFFER_DEMAND, head)


def withdraw(tx: Tx, lane_id: int, demand_id: int) -> None:
    """A due row left: find both heads again, one seek each. Repeating is harmless."""
    tx.change(WITHDRAW_LANE, {"lane_id": lane_id})
    lanes.rehead(tx, demand_id)


def drop(tx: Tx, dead: list[Row]) -> int:
    """Delete demands that the caller found without live work; how many."""
    dropped: dict[tuple[str, str], int] = {}
    for row in dead:
        tx.change(DROP_LANES, {"demand_id": row["demand_id"]})
        tx.change(DROP, {"demand_id": row["demand_id"]})
        owner = (row["tenant_id"], row["application_id"])
        dropped[owner] = dropped.get(owner, 0) + 1
    for (tenant_id, application_id), count in dropped.items():
        tx.change(
            COUNT_DOWN,
            {"tenant_id": tenant_id, "application_id": application_id, "dropped": count},
        )
        # The list is read anew, or it would only grow.
        tx.memo.pop(known_as(tenant_id, application_id), None)
    return len(dead)


def known_as(tenant_id: str, application_id: str) -> tuple[str, str, str]:
    """Where in tx.memo stands what is known of an application's demands."""
    return ("demands", tenant_id, application_id)


def _count_up(tx: Tx, owner: Mapping[str, object]) -> None:
    bounds = {**owner, "demands_max": DEMANDS_MAX}
    if tx.change(COUNT_UP, bounds):
        return
    tx.change(OPEN_APPLICATION, owner)
    if tx.change(COUNT_UP, bounds):
        return
    # Full: those without live work do not count, though the keeper has not yet come by.
    drop(tx, tx.rows(DEAD_OF_APPLICATION, {**owner, "limit": SPARED_MAX}))
    if not tx.change(COUNT_UP, bounds):
        raise Refused(
            "WORKLOAD_INVALID",
            f"the application has unfinished work of {DEMANDS_MAX} kinds already: a kind is one "
            "definition, revision, capabilities, resources and placement",
            limit=DEMANDS_MAX,
            used=DEMANDS_MAX,
        )


def _text(value: object) -> str:
    return encode(value, order="deterministic").decode()
