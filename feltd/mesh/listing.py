"""Lists of workloads: newest first, page by page, never more than a bounded number of rows read.

A page walks narrow index streams below a sequence number and looks at each row's few filterable
columns; whole workloads are read only for what the page shows. Rows that come or change meanwhile
are neither skipped nor shown twice, because the sequence number of a row never changes.
"""

from collections.abc import Iterator, Mapping
from heapq import merge

from msgspec.json import decode, encode

from feltd.clock import Now
from feltd.mesh import workloads
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
       w.failure_kind, w.claim_worker_id, w.created_at_ms, w.labels
  FROM workloads w
 WHERE w.seq < :before
 ORDER BY w.seq DESC
 LIMIT :chunk_rows
"""

OF_APPLICATION = """
SELECT w.seq, w.workload_id, w.tenant_id, w.application_id, w.state, w.definition_id, w.trigger,
       w.failure_kind, w.claim_worker_id, w.created_at_ms, w.labels
  FROM workloads w
 WHERE w.tenant_id = :tenant_id
   AND w.application_id = :application_id
   AND w.seq < :before
 ORDER BY w.seq DESC
 LIMIT :chunk_rows
"""

OF_STATE = """
SELECT w.seq, w.workload_id, w.tenant_id, w.application_id, w.state, w.definition_id, w.trigger,
       w.failure_kind, w.claim_worker_id, w.created_at_ms, w.labels
  FROM workloads w
 WHERE w.tenant_id = :tenant_id
   AND w.state = :state
   AND w.seq < :before
 ORDER BY w.seq DESC
 LIMIT :chunk_rows
"""

OF_FAILURE = """
SELECT w.seq, w.workload_id, w.tenant_id, w.application_id, w.state, w.definition_id, w.trigger,
       w.failure_kind, w.claim_worker_id, w.created_at_ms, w.labels
  FROM workloads w
 WHERE w.tenant_id = :tenant_id
   AND w.state = 'DEAD_LETTERED'
   AND w.failure_kind = :failure_kind
   AND w.seq < :before
 ORDER BY w.seq DESC
 LIMIT :chunk_rows
"""

HELD_BY = """
SELECT w.seq, w.workload_id, w.tenant_id, w.application_id, w.state, w.definition_id, w.trigger,
       w.failure_kind, w.claim_worker_id, w.created_at_ms, w.labels
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE c.worker_id = :worker_id
   AND c.ended_at_ms IS NULL
 ORDER BY c.fencing_token
 LIMIT :held_max
"""

APPLICATIONS = """
SELECT a.tenant_id, a.application_id
  FROM applications a
 WHERE (a.tenant_id, a.application_id) > (:tenant_id, :application_id)
 ORDER BY a.tenant_id, a.application_id
 LIMIT :limit
"""

APPLICATIONS_OF_TENANT = """
SELECT a.tenant_id, a.application_id
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
    before = INTEGER_MAX if asked.before is None else asked.before
    if wanted.created_before_ms is not None:
        before = min(before, _first_at(tx, wanted.created_before_ms))
    items: list[Workload] = []
    size_bytes, last = 0, before
    for looked, row in enumerate(_streams(tx, ask.caller, wanted, before)):
        if looked == READ_ROWS_MAX:
            return Page(items, last)
        if wanted.created_after_ms is not None and row["created_at_ms"] <= wanted.created_after_ms:
            break
        if _meets(ask.caller, wanted, row):
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


def _streams(tx: Tx, caller: Caller, wanted: Filter, before: int) -> Iterator[Row]:
    """Rows below `before` in falling order, from the narrowest streams that hold all wanted."""
    worker_id = caller.worker_id or wanted.worker_id
    if worker_id is not None:
        held = tx.rows(HELD_BY, {"worker_id": worker_id, "held_max": HELD_MAX})
        below = [row for row in held if row["seq"] < before]
        return iter(sorted(below, key=_falling))
    pairs = _pairs(tx, caller, wanted)
    if pairs is None:
        return _stream(tx, OF_ALL, {}, before)
    streams = []
    if wanted.state is not None:
        dead_of_kind = wanted.state == "DEAD_LETTERED" and wanted.failure_kind is not None
        for tenant_id in sorted({tenant_id for tenant_id, _ in pairs}):
            owner = {"tenant_id": tenant_id}
            if dead_of_kind:
                params = {**owner, "failure_kind": wanted.failure_kind}
                streams.append(_stream(tx, OF_FAILURE, params, before))
            else:
                streams.append(_stream(tx, OF_STATE, {**owner, "state": wanted.state}, before))
    else:
        for tenant_id, application_id in pairs:
            owner = {"tenant_id": tenant_id, "application_id": application_id}
            streams.append(_stream(tx, OF_APPLICATION, owner, before))
    return merge(*streams, key=_falling)


def _pairs(tx: Tx, caller: Caller, wanted: Filter) -> list[tuple[str, str]] | None:
    """The (tenant, application) pairs to list; None when they are too many to merge."""
    tenants = caller.tenants if wanted.tenant_id is None else (wanted.tenant_id,)
    if "*" in tenants:
        rows = tx.rows(
            APPLICATIONS, {"tenant_id": "", "application_id": "", "limit": STREAMS_MAX + 1}
        )
    else:
        rows = []
        for tenant_id in sorted(set(tenants))[: STREAMS_MAX + 1]:
            if caller.may_see(tenant_id):
                limit = STREAMS_MAX + 1 - len(rows)
                rows += tx.rows(APPLICATIONS_OF_TENANT, {"tenant_id": tenant_id, "limit": limit})
    if len(rows) > STREAMS_MAX:
        return None
    return [
        (row["tenant_id"], row["application_id"])
        for row in rows
        if wanted.application_id in (None, row["application_id"])
    ]


def _stream(tx: Tx, sql: str, owner: Mapping[str, object], before: int) -> Iterator[Row]:
    chunk_rows = CHUNK_ROWS // 8
    while True:
        rows = tx.rows(sql, {**owner, "before": before, "chunk_rows": chunk_rows})
        yield from rows
        if len(rows) < chunk_rows:
            return
        before = rows[-1]["seq"]
        chunk_rows = min(CHUNK_ROWS, chunk_rows * 2)


def _meets(caller: Caller, wanted: Filter, row: Row) -> bool:
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


def _falling(row: Row) -> int:
    return -int(row["seq"])
