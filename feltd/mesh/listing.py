"""Lists of workloads: newest first, page by page, never more than a bounded number of rows read.

A page walks narrow index streams below a sequence number and looks at each row's few filterable
columns; whole workloads are read only for what the page shows. Rows that come or change meanwhile
are neither skipped nor shown twice, because the sequence number of a row never changes.
"""

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge

from msgspec.json import decode, encode

from feltd.clock import Now
from feltd.mesh import workloads
from feltd.mesh.states import WORKLOAD_STATES
from feltd.model.base import INTEGER_MAX, Ask, Caller
from feltd.model.workload import ANSWER_BYTES_MAX, Filter, Listing, Page, Workload
from feltd.store.tx import Row, Tx

#: Rows one page looks at, at most 40 ms of a reader; then the page is short and the cursor goes on.
READ_ROWS_MAX = 20_000
#: Rows read at a time: a full page without a filter needs one or two reads.
CHUNK_ROWS = 256
#: Streams merged for one page: a caller of more (tenant, application) pairs walks all rows.
STREAMS_MAX = 64
#: What a workload and each of its attempts take in an answer beside the text stored of them.
WORKLOAD_BYTES = 2_048
ATTEMPT_BYTES = 320
#: A worker holds at most 1,024 claims.
HELD_MAX = 1_024

OF_ALL = """
SELECT w.seq, w.workload_id, w.tenant_id, w.application_id, w.state, w.definition_id, w.trigger,
       w.failure_kind, w.claim_worker_id, w.created_at_ms, w.labels, w.priority,
       w.cancel_requested
  FROM workloads w
 WHERE w.seq < :before
 ORDER BY w.seq DESC
 LIMIT :chunk_rows
"""

OF_APPLICATION = """
SELECT w.seq, w.workload_id, w.tenant_id, w.application_id, w.state, w.definition_id, w.trigger,
       w.failure_kind, w.claim_worker_id, w.created_at_ms, w.labels, w.priority,
       w.cancel_requested
  FROM workloads w
 WHERE w.tenant_id = :tenant_id
   AND w.application_id = :application_id
   AND w.seq < :before
 ORDER BY w.seq DESC
 LIMIT :chunk_rows
"""

OF_STATE = """
SELECT w.seq, w.workload_id, w.tenant_id, w.application_id, w.state, w.definition_id, w.trigger,
       w.failure_kind, w.claim_worker_id, w.created_at_ms, w.labels, w.priority,
       w.cancel_requested
  FROM workloads w
 WHERE w.tenant_id = :tenant_id
   AND w.state = :state
   AND w.seq < :before
 ORDER BY w.seq DESC
 LIMIT :chunk_rows
"""

OF_FAILURE = """
SELECT w.seq, w.workload_id, w.tenant_id, w.application_id, w.state, w.definition_id, w.trigger,
       w.failure_kind, w.claim_worker_id, w.created_at_ms, w.labels, w.priority,
       w.cancel_requested
  FROM workloads w
 WHERE w.tenant_id = :tenant_id
   AND w.state = 'DEAD_LETTERED'
   AND w.failure_kind = :failure_kind
   AND w.seq < :before
 ORDER BY w.seq DESC
 LIMIT :chunk_rows
"""

OF_GROUP = """
SELECT w.seq, w.workload_id, w.tenant_id, w.application_id, w.state, w.definition_id, w.trigger,
       w.failure_kind, w.claim_worker_id, w.created_at_ms, w.labels, w.priority,
       w.cancel_requested
  FROM workloads w
 WHERE w.tenant_id = :tenant_id
   AND w.group_name = :group_name
   AND w.state = :state
   AND w.seq < :before
 ORDER BY w.seq DESC
 LIMIT :chunk_rows
"""

HELD_BY = """
SELECT w.seq, w.workload_id, w.tenant_id, w.application_id, w.state, w.definition_id, w.trigger,
       w.failure_kind, w.claim_worker_id, w.created_at_ms, w.labels, w.priority,
       w.cancel_requested
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE c.worker_id = :worker_id
   AND c.ended_at_ms IS NULL
 ORDER BY c.fencing_token
 LIMIT :held_max
"""

IN_GROUP = """
SELECT w.seq
  FROM workloads w
 WHERE w.seq = :seq
   AND w.group_name = :group_name
"""

NEXT_TENANT = """
SELECT a.tenant_id
  FROM applications a
 WHERE a.tenant_id > :after
 ORDER BY a.tenant_id
 LIMIT 1
"""

APPLICATIONS_OF_TENANT = """
SELECT a.application_id
  FROM applications a
 WHERE a.tenant_id = :tenant_id
 ORDER BY a.application_id
 LIMIT :limit
"""

NEWEST_AT = """
SELECT w.seq, w.created_at_ms
  FROM workloads w
 WHERE w.seq <= :seq
 ORDER BY w.seq DESC
 LIMIT 1
"""


def page(tx: Tx, ask: Ask[Listing], now: Now) -> Page:
    """One page of the workloads a caller may see and the filter lets through, newest first.

    Looks at READ_ROWS_MAX rows and answers ANSWER_BYTES_MAX bytes at most, so it may be short;
    `before` is then where the next page begins. A tenant that is not the caller's has none.
    """
    asked = ask.body
    wanted = asked.filter
    before = begin(tx, wanted, asked.before)
    items: list[Workload] = []
    size_bytes, last = 0, before
    for looked, row in enumerate(streams(tx, ask.caller, wanted, before)):
        if looked == READ_ROWS_MAX:
            return Page(items, last)
        if wanted.created_after_ms is not None and row["created_at_ms"] <= wanted.created_after_ms:
            break
        if meets(ask.caller, wanted, row):
            if len(items) == asked.limit:
                return Page(items, last)
            full = tx.rows(workloads.READ, {"workload_id": row["workload_id"]})[0]
            item = workloads.shown(tx, full)
            size_bytes += _size_bytes(full, item)
            if items and size_bytes > ANSWER_BYTES_MAX:
                return Page(items, last)
            items.append(item)
        last = row["seq"]
    return Page(items, None)


def begin(tx: Tx, wanted: Filter, before: int | None) -> int:
    """The sequence number below which the rows stand that a filter and a cursor ask for."""
    before = INTEGER_MAX if before is None else before
    if wanted.created_before_ms is not None:
        before = min(before, _first_at(tx, wanted.created_before_ms))
    return before


def streams(tx: Tx, caller: Caller, wanted: Filter, before: int) -> Iterator[Row]:
    """Rows below `before` in falling order, from the narrowest streams that hold all wanted.

    They hold others as well: `meets` tells. Whoever reads bounds how many.
    """
    worker_id = caller.worker_id or wanted.worker_id
    if worker_id is not None:
        held = tx.rows(HELD_BY, {"worker_id": worker_id, "held_max": HELD_MAX})
        below = [row for row in held if row["seq"] < before]
        return _of_group(tx, sorted(below, key=falling), wanted.group)
    those = tenants(tx, caller, wanted)
    if those is None:
        return _of_group(tx, _stream(tx, OF_ALL, {}, before), wanted.group)
    if wanted.group is not None or wanted.state is not None:
        found = [
            _stream(tx, sql, {"tenant_id": tenant_id, **params}, before)
            for tenant_id in those
            for sql, params in _by_state(wanted)
        ]
    else:
        pairs = _pairs(tx, those, wanted)
        if pairs is None:
            return _stream(tx, OF_ALL, {}, before)
        found = [
            _stream(
                tx,
                OF_APPLICATION,
                {"tenant_id": tenant_id, "application_id": application_id},
                before,
            )
            for tenant_id, application_id in pairs
        ]
    return merge(*found, key=falling)


def _by_state(wanted: Filter) -> list[tuple[str, dict[str, object]]]:
    """The streams of one tenant where a state or a group narrows them."""
    if wanted.group is not None:
        states = WORKLOAD_STATES if wanted.state is None else (wanted.state,)
        return [(OF_GROUP, {"group_name": wanted.group, "state": state}) for state in states]
    if wanted.state == "DEAD_LETTERED" and wanted.failure_kind is not None:
        return [(OF_FAILURE, {"failure_kind": wanted.failure_kind})]
    return [(OF_STATE, {"state": wanted.state})]


def _of_group(tx: Tx, rows: Iterable[Row], group: str | None) -> Iterator[Row]:
    """Those of a group, where no stream of its own gives them."""
    for row in rows:
        named = {"seq": row["seq"], "group_name": group}
        if group is None or tx.row(IN_GROUP, named) is not None:
            yield row


def tenants(tx: Tx, caller: Caller, wanted: Filter) -> list[str] | None:
    """The tenants to list, ascending; None when they are too many to merge."""
    if wanted.tenant_id is not None:
        return [wanted.tenant_id] if caller.may_see(wanted.tenant_id) else []
    if "*" not in caller.tenants:
        named = sorted(set(caller.tenants))
        return None if len(named) > STREAMS_MAX else named
    found: list[str] = []
    while (row := tx.row(NEXT_TENANT, {"after": found[-1] if found else ""})) is not None:
        if len(found) == STREAMS_MAX:
            return None
        found.append(row["tenant_id"])
    return found


def _pairs(tx: Tx, those: list[str], wanted: Filter) -> list[tuple[str, str]] | None:
    """The (tenant, application) pairs to list; None when they are too many to merge."""
    if wanted.application_id is not None:
        return [(tenant_id, wanted.application_id) for tenant_id in those]
    found: list[tuple[str, str]] = []
    for tenant_id in those:
        limit = STREAMS_MAX + 1 - len(found)
        for row in tx.rows(APPLICATIONS_OF_TENANT, {"tenant_id": tenant_id, "limit": limit}):
            found.append((tenant_id, row["application_id"]))
    return None if len(found) > STREAMS_MAX else found


def _stream(tx: Tx, sql: str, owner: Mapping[str, object], before: int) -> Iterator[Row]:
    chunk_rows = CHUNK_ROWS // 8
    while True:
        rows = tx.rows(sql, {**owner, "before": before, "chunk_rows": chunk_rows})
        yield from rows
        if len(rows) < chunk_rows:
            return
        before = rows[-1]["seq"]
        chunk_rows = min(CHUNK_ROWS, chunk_rows * 2)


def meets(caller: Caller, wanted: Filter, row: Row) -> bool:
    """Whether a row of `streams` is one the caller may see and the filter lets through."""
    if caller.worker_id is None and not caller.may_see(row["tenant_id"]):
        return False
    for member, column in (
        (wanted.tenant_id, "tenant_id"),
        (wanted.application_id, "application_id"),
        (wanted.state, "state"),
        (wanted.definition_id, "definition_id"),
        (wanted.trigger, "trigger"),
        (wanted.failure_kind, "failure_kind"),
        (wanted.worker_id, "claim_worker_id"),
    ):
        if member is not None and row[column] != member:
            return False
    before_ms = wanted.created_before_ms
    if before_ms is not None and row["created_at_ms"] >= before_ms:
        return False
    if not wanted.labels:
        return True
    labels = decode(row["labels"])
    return all(labels.get(key) == text for key, text in wanted.labels.items())


def _first_at(tx: Tx, instant_ms: int) -> int:
    """The sequence number below which every row was created before an instant.

    Lease time never steps, so rows stand in its order: halving finds it in some 40 seeks.
    """
    newest = tx.row(NEWEST_AT, {"seq": INTEGER_MAX})
    low, high = 0, 0 if newest is None else int(newest["seq"])
    while low < high:
        middle = (low + high + 1) // 2
        row = tx.row(NEWEST_AT, {"seq": middle})
        if row is None or row["created_at_ms"] < instant_ms:
            low = middle
        else:
            high = int(row["seq"]) - 1
    return low + 1


def _size_bytes(row: Row, item: Workload) -> int:
    """What a workload takes in an answer: its columns, its checkpoint, what its attempts say."""
    stored = sum(len(column.encode()) for column in row if isinstance(column, str))
    kept = 0 if item.checkpoint is None else len(bytes(item.checkpoint))
    said = sum(len(encode(one.failure)) for one in item.attempts if one.failure is not None)
    return WORKLOAD_BYTES + stored + kept + ATTEMPT_BYTES * len(item.attempts) + said


def falling(row: Row) -> int:
    """The order of every stream: newest first."""
    return -int(row["seq"])
