"""What the end of work means for the work that waits for it: READY when it was the last, or dead.

`all_completed` dies of the first parent that ends otherwise, and so do those that wait for it in
turn; `all_finished` takes any end. A group is one parent and ends when it is sealed and all of it
has ended. Never ends a claim: what waits is held by nobody.
"""

from typing import NamedTuple

from feltd.clock import Now
from feltd.mesh import deadlines, demands, due, events, parents, retry
from feltd.mesh.workloads import SETTLED_STATES
from feltd.model.policy import GROUP_PREFIX
from feltd.store.tx import Row, Tx

#: Children told in the commit of the end they wait for, cascades included: some 8 ms.
SETTLED_MAX = 200
#: In a batch that has run so many statements only few are told: most ends have few children.
STATEMENTS_MANY = 1_000
SETTLED_FEW = 8
#: In one that has run so many all are left to the keeper.
STATEMENTS_MAX = 5_000
#: Parents whose children the keeper tells side by side: one of 100,000 must not keep the children
#: of all others waiting.
PARENTS_AT_ONCE = 25
#: Where in tx.memo stands which parent had its turn last.
TURN = "dependencies.turn"
#: Behind the name of every parent.
ALL_PARENTS = "\x7f"

CHILDREN = """
SELECT w.seq, w.workload_id, w.tenant_id, w.application_id, w.lane_id, w.demand_id, w.priority,
       w.not_before_at_ms, w.dependency_policy, w.timeouts, w.awaited, w.group_name,
       EXISTS (SELECT 1
                 FROM dependency_waits o
                WHERE o.child_seq = d.child_seq
                  AND o.parent <> d.parent) AS waits_on
  FROM dependency_waits d
  JOIN workloads w ON w.seq = d.child_seq
 WHERE d.parent = :parent
 ORDER BY d.child_seq
 LIMIT :limit
"""

READY = """
UPDATE workloads
   SET state = 'READY',
       due = :due,
       rank = :rank,
       eligible_at_ms = :eligible_at_ms,
       ready_at_ms = :now_ms
 WHERE seq = :seq
   AND state = 'PENDING'
"""

DEAD_LETTER = """
UPDATE workloads
   SET state = 'DEAD_LETTERED',
       lane_id = NULL,
       demand_id = NULL,
       finished_at_ms = :now_ms,
       failure_kind = 'dependency_failed',
       failure_message = :message
 WHERE seq = :seq
   AND state = 'PENDING'
"""

TELL_ONE = """
DELETE FROM dependency_waits
 WHERE parent = :parent
   AND child_seq = :seq
"""

FORGET = """
DELETE FROM dependency_waits
 WHERE child_seq = :seq
"""

LEAVE_FOR_LATER = """
INSERT INTO settlements (parent, at_ms)
SELECT d.parent, :now_ms
  FROM dependency_waits d
 WHERE d.parent = :parent
 LIMIT 1
ON CONFLICT (parent) DO NOTHING
"""

LEFT = """
SELECT s.parent, w.state
  FROM settlements s
  LEFT JOIN workloads w ON w.workload_id = s.parent
 WHERE s.parent > :after
   AND s.parent <= :until
 ORDER BY s.parent
 LIMIT :limit
"""

SETTLED = """
DELETE FROM settlements
 WHERE parent = :parent
   AND NOT EXISTS (SELECT 1
                     FROM dependency_waits d
                    WHERE d.parent = settlements.parent)
"""

CLOSE = """
DELETE FROM settlements
 WHERE parent = :parent
"""


class _Parent(NamedTuple):
    """Something that has ended: how it is named in dependency_waits, and what it ended as."""

    key: str
    state: str


def forget(tx: Tx, child_seq: int) -> None:
    """A PENDING workload ended by itself (cancelled, timed out): it waits for nobody any more."""
    tx.change(FORGET, {"seq": child_seq})


def ended(tx: Tx, now: Now, row: Row, state: str) -> None:
    """A workload became COMPLETED, CANCELLED or DEAD_LETTERED: tell those that wait for it.

    For whoever ends a workload that is awaited or of a group; the row has workload_id, tenant_id,
    awaited and group_name. Up to SETTLED_MAX children in this
    transaction, and theirs if they end too; the keeper goes on with the others in its next round,
    which is told to begin.
    """
    ends = [_Parent(row["workload_id"], state)] if row["awaited"] else []
    _settle(tx, now, ends + _group_end(tx, row["tenant_id"], row["group_name"]), _room(tx))


def settle(tx: Tx, limit: int, now: Now) -> int:
    """Tell up to `limit` children whose parents ended in an earlier commit; how many it told.

    Some parents at a time, each an equal share, then the next ones. Parents without children left
    count as well. A parent that was requeued meanwhile has not ended any more: its other children
    go on waiting. Whose turn it is stands in tx.memo: lost, it begins anew.
    """
    done = 0
    while done < limit and (turn := _in_turn(tx)):
        done += _share_out(tx, now, turn, limit - done)
    return done


def sealed(tx: Tx, now: Now, tenant_id: str, name: str) -> None:
    """A group was sealed: if all of it has ended already, that is its end; who waits is told."""
    _settle(tx, now, _group_end(tx, tenant_id, name), _room(tx))


def _in_turn(tx: Tx) -> list[Row]:
    """The parents whose turn it is, from behind the one that had it last, and round again."""
    last: str = tx.memo.get(TURN, "")
    rows = tx.rows(LEFT, {"after": last, "until": ALL_PARENTS, "limit": PARENTS_AT_ONCE})
    if last and len(rows) < PARENTS_AT_ONCE:
        left = PARENTS_AT_ONCE - len(rows)
        rows = [*rows, *tx.rows(LEFT, {"after": "", "until": last, "limit": left})]
    return rows


def _share_out(tx: Tx, now: Now, turn: list[Row], limit: int) -> int:
    """Tell each of these parents' children, what one leaves of its share to the others."""
    done, waiting = 0, turn
    while waiting and done < limit:
        share, more = max(1, limit // len(waiting)), []
        for row in waiting:
            room = min(share, limit - done)
            if room <= 0:
                break
            told = _go_on(tx, now, row, room)
            done += 1 + told
            if told >= room:
                more.append(row)
            if waiting is turn:
                tx.memo[TURN] = row["parent"]
        waiting = more
    return done


def _go_on(tx: Tx, now: Now, row: Row, room: int) -> int:
    """Tell up to `room` children of one parent that ended earlier; how many."""
    ends = _ends_of(tx, row)
    if not ends:
        tx.change(CLOSE, {"parent": row["parent"]})
    told = _settle(tx, now, ends, room)
    tx.change(SETTLED, {"parent": row["parent"]})
    return told


def _room(tx: Tx) -> int:
    if tx.statements < STATEMENTS_MANY:
        return SETTLED_MAX
    return SETTLED_FEW if tx.statements < STATEMENTS_MAX else 0


def _settle(tx: Tx, now: Now, ends: list[_Parent], room: int) -> int:
    """Tell children, and the children of those that die of it, while there is room; how many."""
    told = 0
    while ends:
        parent = ends.pop(0)
        rows = (
            tx.rows(CHILDREN, {"parent": parent.key, "limit": room - told}) if told < room else []
        )
        for row in rows:
            ends += _tell(tx, now, parent, row)
        told += len(rows)
        if told >= room and tx.change(
            LEAVE_FOR_LATER, {"parent": parent.key, "now_ms": now.lease_ms}
        ):
            tx.tell("settle", str(now.lease_ms))
    return told


def _tell(tx: Tx, now: Now, parent: _Parent, row: Row) -> list[_Parent]:
    """Tell one child of the end of a parent; what ended by that."""
    if parent.state != "COMPLETED" and row["dependency_policy"] == "all_completed":
        return _fail(tx, now, parent, row)
    if row["waits_on"]:
        tx.change(TELL_ONE, {"parent": parent.key, "seq": row["seq"]})
        return []
    forget(tx, row["seq"])
    eligible_at_ms = due.eligible_at_ms(now, row["not_before_at_ms"])
    rank = retry.rank(eligible_at_ms, row["priority"])
    is_due = eligible_at_ms <= now.lease_ms
    tx.change(
        READY,
        {
            "seq": row["seq"],
            "now_ms": now.lease_ms,
            "due": int(is_due),
            "rank": rank,
            "eligible_at_ms": eligible_at_ms,
        },
    )
    if is_due:
        demands.offer(tx, row["lane_id"], row["demand_id"], rank, row["seq"])
        tx.tell("ready", f"{row['tenant_id']}/{row['application_id']}")
    else:
        tx.tell("due", str(eligible_at_ms))
    _event(tx, now, row, "READY", eligible_at_ms)
    return []


def _fail(tx: Tx, now: Now, parent: _Parent, row: Row) -> list[_Parent]:
    message = parents.message(parents.shown(parent.key), parent.state)
    tx.change(DEAD_LETTER, {"seq": row["seq"], "now_ms": now.lease_ms, "message": message})
    forget(tx, row["seq"])
    _event(tx, now, row, "DEAD_LETTERED", None)
    tx.tell("workload", row["workload_id"])
    ends = [_Parent(row["workload_id"], "DEAD_LETTERED")] if row["awaited"] else []
    return ends + _group_end(tx, row["tenant_id"], row["group_name"])


def _event(tx: Tx, now: Now, row: Row, to_state: str, eligible_at_ms: int | None) -> None:
    if row["timeouts"] != deadlines.NONE:
        deadlines.arm(tx, now, row["workload_id"])
    events.tell(
        tx,
        now,
        "settle",
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        workload_id=row["workload_id"],
        from_state="PENDING",
        to_state=to_state,
        eligible_at_ms=eligible_at_ms,
        end_kind=None if to_state == "READY" else "dependency_failed",
    )


def _group_end(tx: Tx, tenant_id: str, name: str | None) -> list[_Parent]:
    """The end of a group, if all of it has ended and no more can come; who waits is told."""
    if name is None:
        return []
    group = parents.group(tx, tenant_id, name)
    if group is None or group["sealed_at_ms"] is None or group["unfinished"]:
        return []
    tx.tell("group", parents.told_key(tenant_id, name))
    return [_Parent(parents.group_key(tenant_id, name), parents.state_of(group))]


def _ends_of(tx: Tx, row: Row) -> list[_Parent]:
    key = row["parent"]
    if key.startswith(GROUP_PREFIX):
        tenant_id, _, name = key[len(GROUP_PREFIX) :].partition("/")
        return _group_end(tx, tenant_id, name)
    # A parent that is gone altogether cannot be completed any more.
    state = row["state"] or "CANCELLED"
    return [_Parent(key, state)] if state in SETTLED_STATES else []
