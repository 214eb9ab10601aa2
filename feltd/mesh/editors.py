"""For who changes stored work: what it asks for, found again, and the bounds of the caller."""

from collections.abc import Collection, Mapping
from typing import Any

from msgspec.json import decode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import grants
from feltd.mesh import demands
from feltd.model.base import Caller
from feltd.model.policy import Concurrency, Placement, Rate
from feltd.model.workload import Resources
from feltd.store.tx import Row, Tx

LIMIT_OF_KEY = """
SELECT c.claims_max
  FROM concurrency_keys c
 WHERE c.tenant_id = :tenant_id
   AND c.application_id = :application_id
   AND c.name = :name
"""

LIMIT_OF_RATE = """
SELECT r.claims_max, r.period_ms
  FROM rate_keys r
 WHERE r.tenant_id = :tenant_id
   AND r.application_id = :application_id
   AND r.name = :name
"""


def demand_of(tx: Tx, row: Row | Mapping[str, Any], said: Collection[str] = ()) -> tuple[int, int]:
    """(demand_id, lane_id) of a workload as workloads.READ gives it, made when they are gone.

    A dead letter names none, so that the keeper may have deleted them meanwhile. The limit of a
    key stays what it is unless `said` names "concurrency" or "rate": stored work does not ask
    anew. Refuses as `demands.find`.
    """
    owner = {"tenant_id": row["tenant_id"], "application_id": row["application_id"]}
    return demands.find(
        tx,
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        definition_id=row["definition_id"],
        definition_revision=row["definition_revision"],
        capabilities=decode(row["capability_snapshot"], type=tuple[str, ...]),
        resources=decode(row["resources"], type=Resources),
        placement=decode(row["placement"], type=Placement),
        concurrency=_concurrency(tx, owner, row["concurrency"], "concurrency" in said),
        rate=_rate(tx, owner, row["rate"], "rate" in said),
    )


def permit_priority(tx: Tx, caller: Caller, now: Now, priority: int) -> None:
    """Refuse WORKLOAD_UNAUTHORIZED for a priority beyond the grant that the caller's key has.

    Nobody gets past his grant's max_priority by changing work instead of creating it. A key
    without a grant is bounded by its scope alone.
    """
    if caller.grant_id is None:
        return
    grant = grants.usable(tx, caller, now, None, code="WORKLOAD_UNAUTHORIZED")
    most = grant.constraints.max_priority
    if most is not None and priority > most:
        raise Refused("WORKLOAD_UNAUTHORIZED", f"the grant allows a priority up to {most}")


def _concurrency(
    tx: Tx, owner: Mapping[str, str], stored: str | None, said: bool
) -> Concurrency | None:
    if stored is None:
        return None
    asked = decode(stored, type=Concurrency)
    known = None if said else tx.row(LIMIT_OF_KEY, {**owner, "name": asked.key})
    return asked if known is None else Concurrency(asked.key, known["claims_max"])


def _rate(tx: Tx, owner: Mapping[str, str], stored: str | None, said: bool) -> Rate | None:
    if stored is None:
        return None
    asked = decode(stored, type=Rate)
    known = None if said else tx.row(LIMIT_OF_RATE, {**owner, "name": asked.key})
    return asked if known is None else Rate(asked.key, known["claims_max"], known["period_ms"])
