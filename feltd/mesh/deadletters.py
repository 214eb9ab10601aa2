"""Dead letters grouped by what they died of: counted over an index, never the whole table."""

from collections.abc import Iterator
from itertools import islice

from msgspec import Struct

from feltd.clock import Now
from feltd.mesh import listing
from feltd.model.base import Ask
from feltd.model.editing import DeadKind, DeadLetters
from feltd.model.workload import Filter
from feltd.store.tx import Row, Tx

#: Rows of one kind that are counted, so that a common death hides no rare one.
COUNT_MAX = 10_000
#: Rows one answer looks at in all, some 100 ms of a reader.
LOOK_ROWS_MAX = 60_000
#: Kinds are a worker's words: somebody may have made up very many.
KINDS_MAX = 200
#: To tell a kind's definitions apart each row is read itself: so many take some 50 ms.
DEFINITION_ROWS_MAX = 10_000

NEXT_KIND = """
SELECT w.failure_kind
  FROM workloads w
 WHERE w.tenant_id = :tenant_id
   AND w.state = 'DEAD_LETTERED'
   AND w.failure_kind > :after
 ORDER BY w.failure_kind
 LIMIT 1
"""

OF_KIND = """
SELECT count(*) AS workloads, max(d.seq) AS newest_seq
  FROM (SELECT w.seq
          FROM workloads w
         WHERE w.tenant_id = :tenant_id
           AND w.state = 'DEAD_LETTERED'
           AND w.failure_kind = :failure_kind
         ORDER BY w.seq DESC
         LIMIT :look_rows) AS d
"""

OF_KIND_IN_APPLICATION = """
SELECT count(*) AS looked,
       sum(CASE WHEN d.application_id = :application_id THEN 1 ELSE 0 END) AS workloads,
       max(CASE WHEN d.application_id = :application_id THEN d.seq ELSE 0 END) AS newest_seq
  FROM (SELECT w.seq, w.application_id
          FROM workloads w
         WHERE w.tenant_id = :tenant_id
           AND w.state = 'DEAD_LETTERED'
           AND w.failure_kind = :failure_kind
         ORDER BY w.seq DESC
         LIMIT :look_rows) AS d
"""

OF_KIND_BY_DEFINITION = """
SELECT d.definition_id, count(*) AS workloads, max(d.seq) AS newest_seq
  FROM (SELECT w.seq, w.definition_id
          FROM workloads w
         WHERE w.tenant_id = :tenant_id
           AND w.state = 'DEAD_LETTERED'
           AND w.failure_kind = :failure_kind
         ORDER BY w.seq DESC
         LIMIT :look_rows) AS d
 GROUP BY d.definition_id
 ORDER BY d.definition_id
"""

NEWEST = """
SELECT w.workload_id, w.definition_id, w.finished_at_ms, w.failure_message
  FROM workloads w
 WHERE w.seq = :seq
"""


class Grouping(Struct, frozen=True):
    """Whose dead letters: of one tenant and application, or of all the caller's."""

    tenant_id: str | None = None
    application_id: str | None = None


def by_kind(tx: Tx, ask: Ask[Grouping], now: Now) -> DeadLetters:
    """Dead letters the caller may see, by failure kind, most first.

    Looks at COUNT_MAX rows of a kind, LOOK_ROWS_MAX rows and KINDS_MAX kinds at most; `capped`
    says that there are more.
    """
    wanted = Filter(tenant_id=ask.body.tenant_id)
    tenants = listing.tenants(tx, ask.caller, wanted)
    capped = tenants is None
    counts: dict[str, int] = {}
    newest: dict[str, int] = {}
    left = LOOK_ROWS_MAX
    for tenant_id in tenants or []:
        for after in _kinds(tx, tenant_id):
            if left <= 0 or (after not in counts and len(counts) == KINDS_MAX):
                capped = True
                break
            look_rows = min(COUNT_MAX, left)
            looked, found = _count(tx, tenant_id, after, ask.body.application_id, look_rows)
            left -= looked
            capped = capped or looked == look_rows
            if found["workloads"]:
                counts[after] = counts.get(after, 0) + found["workloads"]
                newest[after] = max(newest.get(after, 0), found["newest_seq"])
    items = [_kind(tx, kind, counts[kind], newest[kind]) for kind in counts]
    items.sort(key=lambda item: (-item.workloads, item.failure_kind))
    return DeadLetters(items, capped)


def by_definition(tx: Tx, ask: Ask[Grouping], now: Now) -> DeadLetters:
    """As `by_kind`, a group for each kind and definition; `newest_definition_id` is its own.

    Looks at DEFINITION_ROWS_MAX rows in all, the newest of each kind. The application is not
    looked at.
    """
    tenants = listing.tenants(tx, ask.caller, Filter(tenant_id=ask.body.tenant_id))
    capped = tenants is None
    counts: dict[tuple[str, str], int] = {}
    newest: dict[tuple[str, str], int] = {}
    left, groups = DEFINITION_ROWS_MAX, list[tuple[str, str]]()
    for tenant_id in tenants or []:
        kinds = list(islice(_kinds(tx, tenant_id), KINDS_MAX + 1))
        capped = capped or len(kinds) > KINDS_MAX
        groups += [(tenant_id, kind) for kind in kinds[:KINDS_MAX]]
    for place, (tenant_id, kind) in enumerate(groups):
        # Each has its share of what is left, so that a common death hides no rare one.
        look_rows = max(left // (len(groups) - place), 1)
        params = {"tenant_id": tenant_id, "failure_kind": kind, "look_rows": look_rows}
        looked = 0
        for row in tx.rows(OF_KIND_BY_DEFINITION, params):
            group = (kind, row["definition_id"])
            counts[group] = counts.get(group, 0) + row["workloads"]
            newest[group] = max(newest.get(group, 0), row["newest_seq"])
            looked += row["workloads"]
        left -= looked
        capped = capped or looked == look_rows
    largest = sorted(counts, key=lambda group: (-counts[group], group))
    items = [_kind(tx, group[0], counts[group], newest[group]) for group in largest[:KINDS_MAX]]
    return DeadLetters(items, capped or len(largest) > KINDS_MAX)


def _kinds(tx: Tx, tenant_id: str) -> Iterator[str]:
    """The failure kinds of a tenant's dead letters, each found by a seek."""
    after = ""
    while (row := tx.row(NEXT_KIND, {"tenant_id": tenant_id, "after": after})) is not None:
        after = row["failure_kind"]
        yield after


def _count(
    tx: Tx, tenant_id: str, kind: str, application_id: str | None, look_rows: int
) -> tuple[int, Row]:
    params = {"tenant_id": tenant_id, "failure_kind": kind, "look_rows": look_rows}
    if application_id is None:
        found = tx.rows(OF_KIND, params)[0]
        return int(found["workloads"]), found
    found = tx.rows(OF_KIND_IN_APPLICATION, {**params, "application_id": application_id})[0]
    return int(found["looked"]), found


def _kind(tx: Tx, kind: str, workloads: int, newest_seq: int) -> DeadKind:
    row = tx.rows(NEWEST, {"seq": newest_seq})[0]
    return DeadKind(
        failure_kind=kind,
        workloads=workloads,
        newest_workload_id=row["workload_id"],
        newest_definition_id=row["definition_id"],
        newest_at_ms=row["finished_at_ms"],
        newest_message=row["failure_message"],
    )
