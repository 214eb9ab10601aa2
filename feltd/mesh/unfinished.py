"""Why work is PENDING: each thing it still waits for, and what will keep it once that has ended.

For `why`; only reads.
"""

from feltd.clock import Now
from feltd.mesh import causes, parents, underway, waiting
from feltd.mesh.workloads import SETTLED_STATES
from feltd.model.base import Ask
from feltd.model.why import Cause
from feltd.store.tx import Row, Tx

#: Dependencies told one by one.
TOLD_MAX = 8
#: Unfinished work of a group that is counted.
GROUP_COUNT_MAX = 1_000

# A workload names at most 64 dependencies.
WAITS = """
SELECT d.parent, w.state, w.definition_id
  FROM dependency_waits d
  LEFT JOIN workloads w ON w.workload_id = d.parent
 WHERE d.child_seq = :seq
 ORDER BY d.parent
"""

UNFINISHED = """
SELECT count(*) AS workloads
  FROM (SELECT w.seq
          FROM workloads w
         WHERE w.tenant_id = :tenant_id
           AND w.group_name = :name
           AND w.state IN ('PENDING', 'READY', 'CLAIMED', 'RUNNING', 'CHECKPOINTED')
         LIMIT :rows)
"""


def causes_of(tx: Tx, ask: Ask[None], row: Row, now: Now) -> list[Cause]:
    """What a PENDING workload waits for, from its row as why.READ gives it."""
    waits = tx.rows(WAITS, {"seq": row["seq"]})
    told = [of_parent(tx, row["tenant_id"], wait) for wait in waits[:TOLD_MAX]]
    more = len(waits) - len(told)
    if more > 0:
        told.append(
            Cause(
                code="DEPENDENCIES_MORE",
                detail=f"and {more} of its dependencies more",
                remedy=f"see them all: feltd workload show {row['workload_id']}",
            )
        )
    if row["timeout_at_ms"] is not None and row["timeout_at_ms"] <= now.lease_ms:
        told.insert(0, underway.passed(now, row["timeout_at_ms"]))
    return told + waiting.later(waiting.beside_time(tx, ask.caller, row, now))


def of_parent(tx: Tx, tenant_id: str, wait: Row) -> Cause:
    """One thing that is waited for, from a row with parent, state and definition_id."""
    name = parents.shown(wait["parent"])
    if parents.is_id(wait["parent"]):
        state = wait["state"]
        if state is None or state in SETTLED_STATES:
            return _settling(f"{name} has ended")
        return Cause(
            code="DEPENDENCY_UNFINISHED",
            detail=f"it waits for {name} ({wait['definition_id']}), which is {state}",
            remedy=f"see what keeps that: feltd why {name}",
        )
    group = name.partition(":")[2]
    asked = {"tenant_id": tenant_id, "name": group, "rows": GROUP_COUNT_MAX}
    count = tx.rows(UNFINISHED, asked)[0]["workloads"]
    if count == 0:
        return _settling(f"the group {group} has ended")
    more = "at least " if count == GROUP_COUNT_MAX else ""
    return Cause(
        code="DEPENDENCY_UNFINISHED",
        detail=f"it waits for the group {group}: {more}{causes.many(count, 'workload')} unfinished",
        remedy=f"see what keeps them: feltd group show {group} --tenant {tenant_id}",
    )


def _settling(what: str) -> Cause:
    return Cause(
        code="SETTLING",
        detail=f"{what}, and it is about to be told",
        remedy="wait a moment; if it stays so: feltd health",
    )
