"""What waiting work asks for, and the best row of each kind, so that depth costs a pull nothing.

A demand is one distinct (definition#revision, capabilities, resources, placement) of a tenant and
application; its lane holds its due rows in the order of (rank, seq). Both remember their head: who
makes a row due offers it, who takes a due row away withdraws it, in the same transaction. A pull
seeks the heads of the demands that fit its worker and never looks at another row.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.json import encode

from feltd.errors import Refused
from feltd.mesh import placement as rules
from feltd.mesh.fits import Fits
from feltd.model.policy import Placement, placement_text
from feltd.model.workload import Resources
from feltd.store.tx import Row, Tx

#: A worker is compared with every demand of its application once: 2,000 comparisons take 2 ms.
DEMANDS_MAX = 2_000
#: Up to this many fitting demands their heads are sought one by one without a look at the others.
SEEK_MAX = 8
#: So many heads are looked at in order before those that fit are sought one by one: a worker that
#: fits most work finds it here, one that fits little is not made to read what others leave lying.
WALK_ROWS = 8
#: Demands without live work that one creation clears away when its application is full.
SPARED_MAX = 64
#: How many demands with due work are counted for an empty answer.
COUNT_MAX = 1_000
#: Digits of one id in the packed list that SEEK cuts up.
ID_WIDTH = 12

FIND = """
SELECT d.demand_id, l.lane_id
  FROM demands d
  JOIN lanes l ON l.demand_id = d.demand_id
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
                     resources, placement, pool_id, digest)
VALUES (:tenant_id, :application_id, :definition_id, :definition_revision, :capabilities,
        :resources, :placement, :pool_id, :digest)
RETURNING demand_id
"""

MAKE_LANE = """
INSERT INTO lanes (demand_id)
VALUES (:demand_id)
RETURNING lane_id
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
   AND (head_rank IS NULL OR (head_rank, head_seq) > (:rank, :seq))
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

WITHDRAW_DEMAND = """
UPDATE demands
   SET (head_rank, head_seq) = (SELECT l.head_rank, l.head_seq
                                  FROM lanes l
                                 WHERE l.demand_id = :demand_id
                                   AND l.head_rank IS NOT NULL
                                 ORDER BY l.head_rank, l.head_seq
                                 LIMIT 1)
 WHERE demand_id = :demand_id
"""

GENERATION = """
SELECT a.demand_generation
  FROM applications a
 WHERE a.tenant_id = :tenant_id
   AND a.application_id = :application_id
"""

NEWER = """
SELECT d.demand_id, d.definition_id, d.definition_revision, d.capabilities, d.resources,
       d.placement
  FROM demands d
 WHERE d.tenant_id = :tenant_id
   AND d.application_id = :application_id
   AND d.demand_id > :after
 ORDER BY d.demand_id
"""

# The ids come packed, ID_WIDTH digits each, because a list cannot be a parameter.
SEEK = """
WITH RECURSIVE fitting (place, demand_id) AS (
  SELECT 1, CAST(substr(:packed, 1, 12) AS INTEGER)
  UNION ALL
  SELECT f.place + 12, CAST(substr(:packed, f.place + 12, 12) AS INTEGER)
    FROM fitting f
   WHERE f.place + 12 <= :packed_end
)
SELECT w.seq, w.workload_id, w.lane_id, w.demand_id, w.rank, w.eligible_at_ms
  FROM fitting f
  JOIN demands d ON d.demand_id = f.demand_id
  JOIN workloads w ON w.seq = d.head_seq
 WHERE d.head_rank IS NOT NULL
 ORDER BY d.head_rank, d.head_seq
 LIMIT 1
"""

WALK = """
SELECT w.seq, w.workload_id, w.lane_id, w.demand_id, w.rank, w.eligible_at_ms
  FROM demands d
  JOIN workloads w ON w.seq = d.head_seq
 WHERE d.tenant_id = :tenant_id
   AND d.application_id = :application_id
   AND d.head_rank IS NOT NULL
 ORDER BY d.head_rank, d.head_seq
 LIMIT :walk_rows
"""

COUNT_WAITING = """
SELECT count(*) AS demands
  FROM (SELECT d.demand_id
          FROM demands d
         WHERE d.tenant_id = :tenant_id
           AND d.application_id = :application_id
           AND d.head_rank IS NOT NULL
         LIMIT :count_max) AS waiting
"""

DEAD_OF_APPLICATION = """
SELECT d.demand_id, d.tenant_id, d.application_id
  FROM demands d
 WHERE d.tenant_id = :tenant_id
   AND d.application_id = :application_id
   AND NOT EXISTS (SELECT 1 FROM workloads w WHERE w.demand_id = d.demand_id)
 ORDER BY d.demand_id
 LIMIT :limit
"""

DROP_LANE = """
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


class Fit(Struct, frozen=True):
    """The demands of one application that fit one worker: what `head` seeks among."""

    tenant_id: str
    application_id: str
    demand_ids: frozenset[int]
    packed: str


class _Known(Struct):
    """The demands of one application as they were read, oldest first; `upto` is the newest id.

    `born` is the generation at which the list was begun: two lists of one have the same rows.
    """

    born: int
    generation: int
    upto: int
    wanted: list[tuple[int, rules.Wanted]]


class _Held(Struct, frozen=True):
    """A fit as it was found: for which versions, over which list, how far into it.

    The list is named, not held: of a worker that is gone nothing large stays.
    """

    stamp: tuple[int, ...]
    generation: int
    born: int
    tested: int
    fit: Fit


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
) -> tuple[int, int]:
    """(demand_id, lane_id) of what is asked, made when it is new.

    Refuses WORKLOAD_INVALID when the application has DEMANDS_MAX others with live work. Never call
    it in an operation that also calls `fitting`: taken back, its generation would be used again.
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
    found = tx.row(FIND, {**owner, "digest": digest})
    if found is not None:
        return int(found["demand_id"]), int(found["lane_id"])
    _count_up(tx, owner)
    made = tx.rows(MAKE, {**owner, **asked, "pool_id": placement.pool_id, "digest": digest})[0]
    lane = tx.rows(MAKE_LANE, {"demand_id": made["demand_id"]})[0]
    return int(made["demand_id"]), int(lane["lane_id"])


def offer(tx: Tx, lane_id: int, demand_id: int, rank: int, seq: int) -> None:
    """A row became due: it is the new head of its lane and demand when it is better than theirs.

    One statement when it is not, else two. Repeating is harmless.
    """
    if tx.change(OFFER_LANE, {"lane_id": lane_id, "rank": rank, "seq": seq}):
        tx.change(OFFER_DEMAND, {"demand_id": demand_id, "rank": rank, "seq": seq})


def withdraw(tx: Tx, lane_id: int, demand_id: int) -> None:
    """A due row left: find both heads again, one seek each. Repeating is harmless."""
    tx.change(WITHDRAW_LANE, {"lane_id": lane_id})
    tx.change(WITHDRAW_DEMAND, {"demand_id": demand_id})


def fitting(tx: Tx, worker: Row | Mapping[str, Any], kinds: tuple[str, ...] = ()) -> Fit:
    """The demands that fit a workers row, narrowed to `kinds` when a pull names some.

    Remembered in tx.memo until the worker's or the application's versions grow; then only demands
    that are new are compared. Costs no statement while nothing changed and the row carries the
    column `demand_generation` (null: no such application yet), else one or two.
    """
    generation = _generation(tx, worker)
    stamp = (worker["incarnation"], worker["content_version"], worker["capability_version"])
    fits: Fits[_Held] = tx.memo.get("fits") or tx.memo.setdefault("fits", Fits())
    held = fits.get(worker["worker_id"], kinds)
    if held is not None and held.stamp == stamp and held.generation == generation:
        return held.fit
    known = _known(tx, worker["tenant_id"], worker["application_id"], generation)
    tested, fitting_ids = 0, set[int]()
    if held is not None and held.stamp == stamp and held.born == known.born:
        tested, fitting_ids = held.tested, set(held.fit.demand_ids)
    offered = rules.of_worker(worker)
    for demand_id, wanted in known.wanted[tested:]:
        if not rules.unfit(offered, wanted) and (not kinds or rules.takes(kinds, wanted)):
            fitting_ids.add(demand_id)
    fit = Fit(
        tenant_id=worker["tenant_id"],
        application_id=worker["application_id"],
        demand_ids=frozenset(fitting_ids),
        packed="".join(f"{demand_id:0{ID_WIDTH}d}" for demand_id in sorted(fitting_ids)),
    )
    found = _Held(stamp, generation, known.born, len(known.wanted), fit)
    fits.keep(worker["worker_id"], kinds, found, len(fitting_ids))
    return fit


def head(tx: Tx, fit: Fit) -> Row | None:
    """The best due row among the demands of a fit, or None when nothing of it is due.

    Gives seq, workload_id, lane_id, demand_id, rank, eligible_at_ms. One statement, whatever the
    number of rows and demands; a second when the best WALK_ROWS heads fit other workers only.
    """
    if not fit.demand_ids:
        return None
    if len(fit.demand_ids) > SEEK_MAX:
        owner = {"tenant_id": fit.tenant_id, "application_id": fit.application_id}
        heads = tx.rows(WALK, {**owner, "walk_rows": WALK_ROWS})
        for row in heads:
            if row["demand_id"] in fit.demand_ids:
                return row
        if len(heads) < WALK_ROWS:
            return None
    return tx.row(SEEK, {"packed": fit.packed, "packed_end": len(fit.packed)})


def waiting(tx: Tx, tenant_id: str, application_id: str) -> int:
    """How many demands of an application have due work, counted up to COUNT_MAX.

    For the reasons of an empty pull: none is NO_WORK, else what waits is NO_MATCH.
    """
    owner = {"tenant_id": tenant_id, "application_id": application_id}
    return int(tx.rows(COUNT_WAITING, {**owner, "count_max": COUNT_MAX})[0]["demands"])


def drop(tx: Tx, dead: list[Row]) -> int:
    """Delete demands that the caller found without live work; how many."""
    dropped: dict[tuple[str, str], int] = {}
    for row in dead:
        tx.change(DROP_LANE, {"demand_id": row["demand_id"]})
        tx.change(DROP, {"demand_id": row["demand_id"]})
        owner = (row["tenant_id"], row["application_id"])
        dropped[owner] = dropped.get(owner, 0) + 1
    for (tenant_id, application_id), count in dropped.items():
        tx.change(
            COUNT_DOWN,
            {"tenant_id": tenant_id, "application_id": application_id, "dropped": count},
        )
        # The list is read anew, or it would only grow.
        tx.memo.pop(("demands", tenant_id, application_id), None)
    return len(dead)


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


def _generation(tx: Tx, worker: Row | Mapping[str, Any]) -> int:
    if "demand_generation" in worker.keys():  # noqa: SIM118 - a Row iterates over its values
        return int(worker["demand_generation"] or 0)
    owner = {"tenant_id": worker["tenant_id"], "application_id": worker["application_id"]}
    row = tx.row(GENERATION, owner)
    return 0 if row is None else int(row["demand_generation"])


def _known(tx: Tx, tenant_id: str, application_id: str, generation: int) -> _Known:
    key = ("demands", tenant_id, application_id)
    known: _Known = tx.memo.setdefault(key, _Known(generation, 0, 0, []))
    if known.generation != generation:
        owner = {"tenant_id": tenant_id, "application_id": application_id}
        for row in tx.rows(NEWER, {**owner, "after": known.upto}):
            known.wanted.append((int(row["demand_id"]), rules.of_demand(row)))
            known.upto = int(row["demand_id"])
        known.generation = generation
    return known


def _text(value: object) -> str:
    return encode(value, order="deterministic").decode()
