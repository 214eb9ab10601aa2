"""One change to all that a filter lets through, in chunks, repeated until nothing is left.

`find` walks the lists beside the writer and names what still needs the change; `change` then looks
at each of those again where it commits, so what moved in between is left alone. A row that needs
no change is never touched, so repeating ends.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from heapq import merge

from msgspec import Struct, structs
from msgspec.json import encode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import audit, principals
from feltd.mesh import cancel, demands, editors, events, listing, requeue, retry, workloads
from feltd.mesh.states import FINAL_STATES, LIVE_STATES
from feltd.model.base import Ask, Caller
from feltd.model.editing import CHUNK_ROWS, REMAINING_MAX, Action, BulkAnswer
from feltd.model.workload import Filter
from feltd.store.tx import Row, Tx

#: Bytes of input and output that one chunk may rewrite: a changed row is written whole.
CHUNK_BYTES_MAX = 4 * 1024 * 1024

ROW = """
SELECT w.seq, w.workload_id, w.tenant_id, w.application_id, w.state, w.lane_id, w.demand_id, w.due,
       w.priority, w.eligible_at_ms, w.fencing_token, w.claim_worker_id, w.cancel_requested,
       w.created_at_ms, w.definition_id, w.trigger, w.failure_kind, w.labels, w.timeouts,
       w.awaited, w.group_name, length(w.input) + coalesce(length(w.output), 0) AS text_chars
  FROM workloads w
 WHERE w.workload_id = :workload_id
"""

REPRIORITISE = """
UPDATE workloads
   SET priority = :priority,
       rank = :rank
 WHERE workload_id = :workload_id
   AND state IN ('PENDING', 'READY', 'DEAD_LETTERED')
"""

#: Where a change may find what it is for.
STATES: Mapping[Action, tuple[str, ...]] = {
    "cancel": ("PENDING", "READY", "CLAIMED", "RUNNING", "CHECKPOINTED", "DEAD_LETTERED"),
    "requeue": ("DEAD_LETTERED",),
    "reprioritise": ("PENDING", "READY", "DEAD_LETTERED"),
}


class Plan(Struct, frozen=True):
    """A bulk change as the rules take it; `priority` is there when it is to be set."""

    action: Action
    filter: Filter
    priority: int | None = None


class Search(Struct, frozen=True):
    """One slice of a search: below `before`, `wanted` ids at most, `count` more only counted."""

    plan: Plan
    wanted: int
    count: int
    before: int | None = None


class Found(Struct, frozen=True):
    """What a slice found: ids, how many in all, and where the next one begins (None: the end)."""

    workload_ids: list[str]
    count: int
    before: int | None


class Chunk(Struct, frozen=True):
    """What one operation is to change, and how many more were counted beyond it."""

    plan: Plan
    workload_ids: list[str]
    beyond: int


def find(tx: Tx, ask: Ask[Search], now: Now) -> Found:
    """Look through READ_ROWS_MAX rows for those that need the change, newest first."""
    search = ask.body
    plan = search.plan
    before = listing.begin(tx, plan.filter, search.before)
    ids: list[str] = []
    count = 0
    for looked, row in enumerate(_rows(tx, ask.caller, plan, before)):
        if looked == listing.READ_ROWS_MAX or count == search.wanted + search.count:
            return Found(ids, count, before)
        after_ms = plan.filter.created_after_ms
        if after_ms is not None and row["created_at_ms"] <= after_ms:
            break
        if _needs(plan, row) and listing.meets(ask.caller, plan.filter, row):
            count += 1
            if len(ids) < search.wanted:
                ids.append(row["workload_id"])
        before = row["seq"]
    return Found(ids, count, None)


def change(tx: Tx, ask: Ask[Chunk], now: Now) -> BulkAnswer:
    """Change one chunk: each row that still meets the filter and needs it, with its own event.

    At most CHUNK_ROWS rows and some CHUNK_BYTES_MAX of their texts; the audit says once what was
    done. A row that is refused stays and counts as remaining; raises the first refusal when
    nothing at all could be changed. Refuses WORKLOAD_UNAUTHORIZED for a priority beyond the
    caller's grant.
    """
    principals.confirm(tx, ask.caller, now)
    principals.require_scope(ask.caller, "workloads:operate")
    plan = ask.body.plan
    if plan.priority is not None:
        editors.permit_priority(tx, ask.caller, now, plan.priority)
    actor = str(ask.caller.subject)
    changed: list[str] = []
    refusals: list[Refused] = []
    lanes: set[tuple[int, int]] = set()
    left, text_chars = 0, 0
    for place, workload_id in enumerate(ask.body.workload_ids[:CHUNK_ROWS]):
        if text_chars > CHUNK_BYTES_MAX:
            left += len(ask.body.workload_ids) - place
            break
        row = tx.row(ROW, {"workload_id": workload_id})
        if row is None or not _needs(plan, row) or not listing.meets(ask.caller, plan.filter, row):
            continue
        text_chars += row["text_chars"]
        try:
            if ACTIONS[plan.action](tx, now, row, plan, actor):
                changed.append(workload_id)
        except Refused as refused:
            refusals.append(refused)
            continue
        if row["due"] and plan.action == "reprioritise":
            lanes.add((row["lane_id"], row["demand_id"]))
    if refusals and not changed:
        raise refusals[0]
    for lane_id, demand_id in sorted(lanes):
        demands.withdraw(tx, lane_id, demand_id)
    if changed:
        told = encode([plan, changed], order="deterministic")
        audit.act(tx, now, actor, f"bulk_{plan.action}", f"{len(changed)} workloads", body=told)
    remaining = min(ask.body.beyond + left + len(refusals), REMAINING_MAX)
    return BulkAnswer(changed=len(changed), remaining=remaining)


def _rows(tx: Tx, caller: Caller, plan: Plan, before: int) -> Iterator[Row]:
    """Rows in the states that the change is for, newest first."""
    asked = plan.filter.state
    if plan.filter.worker_id is not None:
        return listing.streams(tx, caller, plan.filter, before)
    streams = [
        listing.streams(tx, caller, structs.replace(plan.filter, state=state), before)
        for state in STATES[plan.action]
        if asked in (None, state)
    ]
    return merge(*streams, key=listing.falling)


def _needs(plan: Plan, row: Row) -> bool:
    """Whether the change would change this row."""
    if row["state"] in FINAL_STATES or row["state"] not in STATES[plan.action]:
        return False
    if plan.action == "reprioritise":
        return bool(row["priority"] != plan.priority)
    return not (row["state"] in LIVE_STATES and row["cancel_requested"])


def _cancel(tx: Tx, now: Now, row: Row, plan: Plan, actor: str) -> bool:
    return cancel.call_off(tx, now, row, actor, force=False)


def _requeue(tx: Tx, now: Now, row: Row, plan: Plan, actor: str) -> bool:
    whole = tx.rows(workloads.READ, {"workload_id": row["workload_id"]})[0]
    priority = whole["priority"] if plan.priority is None else plan.priority
    text = whole["input"]
    tx.attempt(partial(requeue.bring_back, tx, now, whole, actor, priority=priority, text=text))
    return True


def _reprioritise(tx: Tx, now: Now, row: Row, plan: Plan, actor: str) -> bool:
    assert plan.priority is not None
    params = {
        "workload_id": row["workload_id"],
        "priority": plan.priority,
        "rank": retry.rank(row["eligible_at_ms"], plan.priority),
    }
    tx.change(REPRIORITISE, params)
    # The heads of its lane are found again once for the chunk. No state changes.
    events.tell(
        tx,
        now,
        "edit",
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        workload_id=row["workload_id"],
        eligible_at_ms=row["eligible_at_ms"],
        actor=actor,
    )
    return True


ACTIONS: Mapping[Action, Callable[[Tx, Now, Row, Plan, str], bool]] = {
    "cancel": _cancel,
    "requeue": _requeue,
    "reprioritise": _reprioritise,
}
