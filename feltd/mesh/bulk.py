"""One change to all that a filter lets through, in chunks, repeated until nothing is left.

`find` walks the lists beside the writer and names what still needs the change; `change` then looks
at each of those again where it commits, so what moved in between is left alone. A row that needs
no change is never touched, so repeating ends.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from heapq import merge
from typing import NamedTuple

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
       w.awaited, w.group_name, w.input, w.output
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

#: What a row is read with, where ROW does not do.
READ_FOR: Mapping[Action, str] = {"requeue": workloads.READ}
#: Dead letters that are equal in these ask for the same.
ASKED = (
    "tenant_id",
    "application_id",
    "definition_id",
    "definition_revision",
    "capability_snapshot",
    "resources",
    "placement",
    "concurrency",
    "rate",
)

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


class _Work(NamedTuple):
    """What one chunk knows: places of dead letters by what they ask for, lanes to be put right."""

    plan: Plan
    actor: str
    places: dict[tuple[object, ...], tuple[int, int]]
    lanes: set[tuple[int, int]]


def find(tx: Tx, ask: Ask[Search], now: Now) -> Found:
    """Look through READ_ROWS_MAX rows for those that need the change, newest first.

    Of more than `wanted` the newest are named, for a requeue the oldest: what needs other work is
    newer than it, so it is called off first and brought back last.
    """
    search = ask.body
    plan = search.plan
    before = listing.begin(tx, plan.filter, search.before)
    ids: list[str] = []
    oldest: deque[str] = deque(maxlen=search.wanted)
    count = 0
    for looked, row in enumerate(_rows(tx, ask.caller, plan, before)):
        if looked == listing.READ_ROWS_MAX or count == search.wanted + search.count:
            return Found(ids or [*oldest], count, before)
        after_ms = plan.filter.created_after_ms
        if after_ms is not None and row["created_at_ms"] <= after_ms:
            break
        if _needs(plan, row) and listing.meets(ask.caller, plan.filter, row):
            count += 1
            if plan.action == "requeue":
                oldest.append(row["workload_id"])
            elif len(ids) < search.wanted:
                ids.append(row["workload_id"])
        before = row["seq"]
    return Found(ids or [*oldest], count, None)


def kept(plan: Plan, ids: list[str], more: list[str], wanted: int) -> list[str]:
    """Which of two slices' ids a chunk is for: the newest, for a requeue the oldest."""
    both = ids + more
    return both[-wanted:] if plan.action == "requeue" else both[:wanted]


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
    work = _Work(plan, actor, {}, set())
    left, text_chars = 0, 0
    ids = ask.body.workload_ids[:CHUNK_ROWS]
    for place, workload_id in enumerate(ids[::-1] if plan.action == "requeue" else ids):
        if text_chars > CHUNK_BYTES_MAX:
            left += len(ask.body.workload_ids) - place
            break
        row = tx.row(READ_FOR.get(plan.action, ROW), {"workload_id": workload_id})
        if row is None or not _needs(plan, row) or not listing.meets(ask.caller, plan.filter, row):
            continue
        text_chars += len(row["input"]) + len(row["output"] or "")
        try:
            if ACTIONS[plan.action](tx, now, row, work):
                changed.append(workload_id)
        except Refused as refused:
            refusals.append(refused)
    if refusals and not changed:
        raise refusals[0]
    for demand_id, lane_id in sorted(work.lanes):
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


def _cancel(tx: Tx, now: Now, row: Row, work: _Work) -> bool:
    return cancel.call_off(tx, now, row, work.actor, force=False)


def _requeue(tx: Tx, now: Now, row: Row, work: _Work) -> bool:
    requeue.require_parents_first(tx, row)
    asks = tuple(row[name] for name in ASKED)
    place = work.places.get(asks)
    priority = row["priority"] if work.plan.priority is None else work.plan.priority
    bring_back = partial(
        requeue.bring_back,
        tx,
        now,
        row,
        work.actor,
        priority=priority,
        text=row["input"],
        place=place,
    )
    # Only a demand that is new can be refused, and leave something behind.
    work.places[asks] = tx.attempt(bring_back) if place is None else bring_back()
    return True


def _reprioritise(tx: Tx, now: Now, row: Row, work: _Work) -> bool:
    priority = work.plan.priority
    assert priority is not None
    rank = retry.rank(row["eligible_at_ms"], priority)
    tx.change(
        REPRIORITISE,
        {"workload_id": row["workload_id"], "priority": priority, "rank": rank},
    )
    if row["due"]:
        # The heads are found again once for the chunk.
        work.lanes.add((row["demand_id"], row["lane_id"]))
    # No state changes: the event names none.
    events.tell(
        tx,
        now,
        "edit",
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        workload_id=row["workload_id"],
        eligible_at_ms=row["eligible_at_ms"],
        actor=work.actor,
    )
    return True


ACTIONS: Mapping[Action, Callable[[Tx, Now, Row, _Work], bool]] = {
    "cancel": _cancel,
    "requeue": _requeue,
    "reprioritise": _reprioritise,
}
