"""Which demands fit a worker, and the best head among them.

What fits is a pure function of versions that are stored: of the worker, of the application's
demands, of its pools and holds. It is remembered until one of them grows. A pull then seeks among
the heads of what fits and never looks at another row; nothing is taken here.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.json import decode

from feltd.mesh import affinity, demands, holds, placement, pools
from feltd.mesh.fits import Fits
from feltd.store.tx import Row, Tx

#: Up to this many fitting demands their heads are sought one by one without a look at the others.
SEEK_MAX = 8
#: So many heads are looked at in order before those that fit are sought one by one: a worker that
#: fits most work finds it here, one that fits little is not made to read what others leave lying.
WALK_ROWS = 8
#: Digits of one id in the packed list that SEEK cuts up.
ID_WIDTH = 12

GENERATIONS = """
SELECT a.demand_generation, a.gate_generation
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
 LIMIT :rows
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


class Fit(Struct, frozen=True):
    """The demands of one application that fit one worker: what `head` seeks among.

    `held` would fit but for a hold. `leanings` are those of `demand_ids` that ask for affinity,
    with how many of its labels the worker has.
    """

    tenant_id: str
    application_id: str
    demand_ids: frozenset[int]
    packed: str
    held: frozenset[int]
    leanings: Mapping[int, affinity.Leaning]


class _Known(Struct):
    """The demands of one application as they were read, oldest first; `upto` is the newest id.

    `born` is the generation at which the list was begun: two lists of one have the same rows.
    """

    born: int
    generation: int
    upto: int
    wanted: list[tuple[int, placement.Wanted]]
    affine: dict[int, affinity.Affinity]


class _Held(Struct, frozen=True):
    """A fit as it was found: for which versions, over which list, how far into it.

    The list is named, not held: of a worker that is gone nothing large stays.
    """

    stamp: tuple[int, ...]
    generation: int
    born: int
    tested: int
    fit: Fit


def fitting(tx: Tx, worker: Row | Mapping[str, Any], kinds: tuple[str, ...] = ()) -> Fit:
    """The demands that fit a workers row, narrowed to `kinds` when a pull names some.

    Remembered in tx.memo until the worker's or the application's versions grow; then only demands
    that are new are compared. Costs no statement while nothing changed and the row carries the
    columns `demand_generation` and `gate_generation` (null: no such application yet), else a few.
    """
    generation, gates = _generations(tx, worker)
    stamp = (
        worker["incarnation"],
        worker["content_version"],
        worker["capability_version"],
        -1 if gates is None else gates,
    )
    fits: Fits[_Held] = tx.memo.get("fits") or tx.memo.setdefault("fits", Fits())
    held = fits.get(worker["worker_id"], kinds)
    if held is not None and held.stamp == stamp and held.generation == generation:
        return held.fit
    known = _known(tx, worker["tenant_id"], worker["application_id"], generation)
    before = None
    if held is not None and held.stamp == stamp and held.born == known.born:
        before = held
    fit = _compared(tx, worker, kinds, known, gates, before)
    found = _Held(stamp, generation, known.born, len(known.wanted), fit)
    ids = len(fit.demand_ids) + len(fit.held) + len(fit.leanings)
    fits.keep(worker["worker_id"], kinds, found, ids)
    return fit


def head(tx: Tx, fit: Fit, may: Callable[[Row], bool] | None = None) -> Row | None:
    """The best due row among the demands of a fit, or None when nothing of it is due.

    `may` passes over heads that this pull leaves lying. Gives seq, workload_id, lane_id, demand_id,
    rank, eligible_at_ms. One statement, whatever the number of rows and demands; a second when the
    best WALK_ROWS heads fit other workers only, or are left.
    """
    if not fit.demand_ids:
        return None
    if len(fit.demand_ids) > SEEK_MAX:
        owner = {"tenant_id": fit.tenant_id, "application_id": fit.application_id}
        heads = tx.rows(WALK, {**owner, "walk_rows": WALK_ROWS})
        for row in heads:
            if row["demand_id"] in fit.demand_ids and (may is None or may(row)):
                return row
        if len(heads) < WALK_ROWS:
            return None
    packed = {"packed": fit.packed, "packed_end": len(fit.packed)}
    if may is None:
        return tx.row(SEEK, {**packed, "rows": 1})
    every = tx.rows(SEEK, {**packed, "rows": demands.DEMANDS_MAX})
    return next((row for row in every if may(row)), None)


def _compared(
    tx: Tx,
    worker: Row | Mapping[str, Any],
    kinds: tuple[str, ...],
    known: _Known,
    gates: int | None,
    before: _Held | None,
) -> Fit:
    """Every demand that `before` has not seen compared with the worker, and added to it."""
    owner = (worker["tenant_id"], worker["application_id"])
    tested, fitting_ids, held_ids = 0, set[int](), set[int]()
    leanings: dict[int, affinity.Leaning] = {}
    if before is not None:
        tested = before.tested
        fitting_ids, held_ids = set(before.fit.demand_ids), set(before.fit.held)
        leanings.update(before.fit.leanings)
    pools_known = pools.of_application(tx, *owner, gates)
    holds_known = holds.of_application(tx, *owner, gates)
    offered = placement.of_worker(worker)
    for demand_id, wanted in known.wanted[tested:]:
        if kinds and not placement.takes(kinds, wanted):
            continue
        unfit = placement.unfit(offered, wanted, pools_known, holds_known)
        if unfit == ["held"]:
            held_ids.add(demand_id)
        elif not unfit:
            fitting_ids.add(demand_id)
            if demand_id in known.affine:
                leanings[demand_id] = affinity.leaning(known.affine[demand_id], offered)
    return Fit(
        tenant_id=owner[0],
        application_id=owner[1],
        demand_ids=frozenset(fitting_ids),
        packed="".join(f"{demand_id:0{ID_WIDTH}d}" for demand_id in sorted(fitting_ids)),
        held=frozenset(held_ids),
        leanings=leanings,
    )


def _generations(tx: Tx, worker: Row | Mapping[str, Any]) -> tuple[int, int | None]:
    row: Row | Mapping[str, Any] | None = worker
    if "demand_generation" not in worker.keys():  # noqa: SIM118 - a Row iterates over its values
        owner = {"tenant_id": worker["tenant_id"], "application_id": worker["application_id"]}
        row = tx.row(GENERATIONS, owner)
    if row is None or row["demand_generation"] is None:
        return 0, None
    return int(row["demand_generation"]), int(row["gate_generation"])


def _known(tx: Tx, tenant_id: str, application_id: str, generation: int) -> _Known:
    key = demands.known_as(tenant_id, application_id)
    known: _Known = tx.memo.setdefault(key, _Known(generation, 0, 0, [], {}))
    if known.generation != generation:
        owner = {"tenant_id": tenant_id, "application_id": application_id}
        for row in tx.rows(NEWER, {**owner, "after": known.upto}):
            known.upto = int(row["demand_id"])
            wanted = placement.of_demand(row)
            known.wanted.append((known.upto, wanted))
            asked = decode(row["placement"])
            if asked.get("affinity"):
                known.affine[known.upto] = affinity.asked(wanted, asked)
        known.generation = generation
    return known
