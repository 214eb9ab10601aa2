"""What work may wait for: workloads and sealed groups by name, looked up when it is asked for.

A dependency names what already is, so no cycle can form. Another tenant's workload or group answers
exactly as one made up. A row of dependency_waits stands for each unfinished parent of a PENDING
child and for nothing else; one of dependency_edges for each parent, finished or not, for as long as
the child may run: what it reads is not cleared away under it.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.json import decode

from feltd.errors import Refused
from feltd.mesh.workloads import SETTLED_STATES
from feltd.model.policy import GROUP_PREFIX
from feltd.model.workload import State
from feltd.store.tx import Row, Tx

#: workload_ + 32 digits: ids are packed one behind the other, because a list is no parameter.
ID_WIDTH = 41

NAMED = """
WITH RECURSIVE named (place, workload_id) AS (
  SELECT 1, substr(:packed, 1, 41)
  UNION ALL
  SELECT n.place + 41, substr(:packed, n.place + 41, 41)
    FROM named n
   WHERE n.place + 41 <= :packed_end
)
SELECT w.workload_id, w.state
  FROM named n
  JOIN workloads w ON w.workload_id = n.workload_id
 WHERE w.tenant_id = :tenant_id
   AND w.application_id = :application_id
"""

WAIT = """
INSERT INTO dependency_waits (parent, child_seq)
WITH RECURSIVE named (place, workload_id) AS (
  SELECT 1, substr(:packed, 1, 41)
  UNION ALL
  SELECT n.place + 41, substr(:packed, n.place + 41, 41)
    FROM named n
   WHERE n.place + 41 <= :packed_end
)
SELECT n.workload_id, :child_seq
  FROM named n
"""

AWAIT = """
WITH RECURSIVE named (place, workload_id) AS (
  SELECT 1, substr(:packed, 1, 41)
  UNION ALL
  SELECT n.place + 41, substr(:packed, n.place + 41, 41)
    FROM named n
   WHERE n.place + 41 <= :packed_end
)
UPDATE workloads
   SET awaited = 1
 WHERE awaited = 0
   AND workload_id IN (SELECT n.workload_id
                         FROM named n)
"""

KEEP = """
INSERT INTO dependency_edges (parent, child_seq)
WITH RECURSIVE named (place, workload_id) AS (
  SELECT 1, substr(:packed, 1, 41)
  UNION ALL
  SELECT n.place + 41, substr(:packed, n.place + 41, 41)
    FROM named n
   WHERE n.place + 41 <= :packed_end
)
SELECT DISTINCT n.workload_id, :child_seq
  FROM named n
"""

KEEP_GROUP = """
INSERT INTO dependency_edges (parent, child_seq)
VALUES (:parent, :child_seq)
"""

WAIT_FOR_GROUP = """
INSERT INTO dependency_waits (parent, child_seq)
VALUES (:parent, :child_seq)
"""

GROUP = """
SELECT g.application_id, g.sealed_at_ms,
       EXISTS (SELECT 1
                 FROM workloads w
                WHERE w.tenant_id = :tenant_id
                  AND w.group_name = :name
                  AND w.state IN ('PENDING', 'READY', 'CLAIMED', 'RUNNING', 'CHECKPOINTED')
              ) AS unfinished,
       EXISTS (SELECT 1
                 FROM workloads w
                WHERE w.tenant_id = :tenant_id
                  AND w.group_name = :name
                  AND w.state IN ('DEAD_LETTERED', 'CANCELLED')) AS failed
  FROM workload_groups g
 WHERE g.tenant_id = :tenant_id
   AND g.name = :name
"""


class Standing(NamedTuple):
    """Where new work stands: the unfinished it waits for, or why it is a dead letter at once."""

    waits: tuple[str, ...] = ()
    failed: str | None = None

    @property
    def state(self) -> State:
        """The state it begins in."""
        if self.failed is not None:
            return "DEAD_LETTERED"
        return "PENDING" if self.waits else "READY"


def look(
    tx: Tx, tenant_id: str, application_id: str, named: tuple[str, ...], policy: str
) -> Standing:
    """What stands of the dependencies that a creation names, in the order it names them.

    Refuses WORKLOAD_DEPENDENCY_INVALID for a workload that is not of this tenant and application
    (another's answers as one made up) and for a group that is not sealed.
    """
    states = _states(tx, tenant_id, application_id, named)
    for place, name in enumerate(named):
        if name not in states:
            raise _invalid(place, name)
    if policy == "all_completed":
        for name in named:
            if states[name] in ("DEAD_LETTERED", "CANCELLED"):
                return Standing(failed=message(name, states[name]))
    return Standing(_unfinished(tenant_id, states))


def again(tx: Tx, tenant_id: str, application_id: str, named: tuple[str, ...]) -> Standing:
    """What a requeued dead letter waits for: the unfinished; what has ended is forgiven."""
    return Standing(_unfinished(tenant_id, _states(tx, tenant_id, application_id, named)))


def dead(tx: Tx, tenant_id: str, application_id: str, named: tuple[str, ...]) -> str | None:
    """The first of these that is a dead letter, or a group with one that has ended; else None."""
    states = _states(tx, tenant_id, application_id, named)
    return next((name for name in named if states.get(name) == "DEAD_LETTERED"), None)


def register(tx: Tx, child_seq: int, standing: Standing) -> None:
    """Have a PENDING workload wait, and have those it waits for know that somebody does."""
    ids = [parent for parent in standing.waits if not parent.startswith(GROUP_PREFIX)]
    if ids:
        packed = "".join(ids)
        params = {"packed": packed, "packed_end": len(packed), "child_seq": child_seq}
        tx.change(WAIT, params)
        tx.change(AWAIT, params)
    for parent in standing.waits:
        if parent.startswith(GROUP_PREFIX):
            tx.change(WAIT_FOR_GROUP, {"parent": parent, "child_seq": child_seq})


def keep(tx: Tx, child_seq: int, tenant_id: str, dependencies: str) -> None:
    """Have everything that a workload names (JSON array) be kept while it may run.

    Its rows are useless once it is COMPLETED or CANCELLED; compaction takes them then.
    """
    named = dict.fromkeys(decode(dependencies, type=tuple[str, ...]))
    packed = "".join(name for name in named if is_id(name))
    if packed:
        params = {"packed": packed, "packed_end": len(packed), "child_seq": child_seq}
        tx.change(KEEP, params)
    for name in named:
        if not is_id(name):
            parent = group_key(tenant_id, name[len(GROUP_PREFIX) :])
            tx.change(KEEP_GROUP, {"parent": parent, "child_seq": child_seq})


def group(tx: Tx, tenant_id: str, name: str) -> Row | None:
    """A group's application_id and sealed_at_ms, and whether it has unfinished or failed work."""
    return tx.row(GROUP, {"tenant_id": tenant_id, "name": name})


def told_key(tenant_id: str, name: str) -> str:
    """How the end of a group is told: under the topic "group"."""
    return f"{tenant_id}/{name}"


def group_key(tenant_id: str, name: str) -> str:
    """How a group is named as a parent."""
    return GROUP_PREFIX + told_key(tenant_id, name)


def is_id(name: str) -> bool:
    """Whether a parent is one workload, not a group."""
    return not name.startswith(GROUP_PREFIX)


def shown(key: str) -> str:
    """A parent as its children name it."""
    return key if is_id(key) else GROUP_PREFIX + key.partition("/")[2]


def state_of(ended: Row) -> str:
    """What a group came to of which all has ended: COMPLETED if each of it is."""
    return "DEAD_LETTERED" if ended["failed"] else "COMPLETED"


def message(name: str, state: str | None) -> str:
    """Why a child of it is a dead letter."""
    if is_id(name):
        return f"its dependency {name} is {state}"
    return f"not all of its dependency {name} is COMPLETED"


def _states(
    tx: Tx, tenant_id: str, application_id: str, named: Iterable[str]
) -> dict[str, str | None]:
    """State by name; None: an unfinished group. What may not be named is missing."""
    owner = {"tenant_id": tenant_id, "application_id": application_id}
    packed = "".join(name for name in named if len(name) == ID_WIDTH and is_id(name))
    states: dict[str, str | None] = {}
    if packed:
        params = {**owner, "packed": packed, "packed_end": len(packed)}
        for row in tx.rows(NAMED, params):
            states[row["workload_id"]] = row["state"]
    for name in named:
        if is_id(name):
            continue
        found = group(tx, tenant_id, name[len(GROUP_PREFIX) :])
        if found is None or found["sealed_at_ms"] is None:
            continue
        if found["application_id"] == application_id:
            states[name] = None if found["unfinished"] else state_of(found)
    return states


def _unfinished(tenant_id: str, states: Mapping[str, str | None]) -> tuple[str, ...]:
    return tuple(
        name if is_id(name) else group_key(tenant_id, name[len(GROUP_PREFIX) :])
        for name, state in states.items()
        if state not in SETTLED_STATES
    )


def _invalid(place: int, name: str) -> Refused:
    detail = (
        "names no workload of this tenant and application"
        if is_id(name)
        else "names no sealed group (feltd group seal) of this tenant and application"
    )
    return Refused(
        "WORKLOAD_DEPENDENCY_INVALID",
        f"/dependencies/{place}: {detail}",
        errors=[{"pointer": f"/dependencies/{place}", "detail": detail}],
    )
