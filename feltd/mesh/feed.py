"""The feed: what happened, in the order it happened, none of it missing.

Events are numbered by the one writer and seen only once committed, so a reader that goes on behind
the last number it saw misses nothing. Everything here only reads. What retention has taken lies
below the floor, or the oldest row that is left: a reader that stands there is told so, never moved
on silently.
"""

from collections.abc import Iterator
from heapq import merge
from itertools import islice

from feltd.clock import Now
from feltd.errors import Refused
from feltd.mesh.workloads import lookup
from feltd.model.base import Ask
from feltd.model.event import Event, Events, Following, Happenings
from feltd.model.workload import After
from feltd.store.tx import Row, Tx

#: A reader of many tenants asks each for so many rows at first: most have few new ones.
FEW_ROWS_MIN = 8

BOUNDS = """
SELECT l.sealed_seq AS head,
       coalesce((SELECT e.seq
                   FROM events e
                  WHERE e.seq > f.seq
                  ORDER BY e.seq
                  LIMIT 1), l.sealed_seq + 1) AS oldest,
       EXISTS (SELECT 1
                 FROM events e
                WHERE e.seq = :after) AS known
  FROM ledger l
  JOIN floors f ON f.name = 'events'
 WHERE l.id = 1
"""

OF_ALL = """
SELECT e.seq, e.at_ms, e.kind, e.tenant_id, e.application_id, e.workload_id, e.worker_id,
       e.fencing_token, e.from_state, e.to_state, e.eligible_at_ms, e.expires_at_ms, e.end_kind,
       e.actor
  FROM events e
 WHERE e.seq > :after
   AND e.seq <= :head
 ORDER BY e.seq
 LIMIT :limit
"""

OF_TENANT = """
SELECT e.seq, e.at_ms, e.kind, e.tenant_id, e.application_id, e.workload_id, e.worker_id,
       e.fencing_token, e.from_state, e.to_state, e.eligible_at_ms, e.expires_at_ms, e.end_kind,
       e.actor
  FROM events e
 WHERE e.tenant_id = :tenant_id
   AND e.seq > :after
   AND e.seq <= :head
 ORDER BY e.seq
 LIMIT :limit
"""

OF_WORKLOAD = """
SELECT e.seq, e.at_ms, e.kind, e.tenant_id, e.application_id, e.workload_id, e.worker_id,
       e.fencing_token, e.from_state, e.to_state, e.eligible_at_ms, e.expires_at_ms, e.end_kind,
       e.actor
  FROM events e
 WHERE e.workload_id = :workload_id
   AND e.seq > :after
 ORDER BY e.seq
 LIMIT :limit
"""


def page(tx: Tx, cmd: Following, now: Now) -> Events:
    """The events of some tenants after one of them, oldest first, with both ends of the feed.

    `cmd.after` None begins at the oldest event that is kept; 0 demands the very first. Fewer than
    `limit` items are all there are up to `head`, so a reader may go on behind `head`. Tenants
    ("*",) also show what belongs to no tenant. Refuses EVENTS_COMPACTED, with `oldest` and `head`,
    where the event behind `after` is not kept any more, or `after` is no event of this file: then
    it was given out by another, or by this one before an earlier state was put back.
    """
    bounds = tx.row(BOUNDS, {"after": cmd.after})
    if bounds is None:
        raise Refused("STORAGE_UNAVAILABLE", "the ledger row is missing")
    head, oldest = bounds["head"], bounds["oldest"]
    after = oldest - 1 if cmd.after is None else cmd.after
    if after < oldest - 1:
        raise Refused(
            "EVENTS_COMPACTED",
            f"events up to {oldest - 1} are no longer kept",
            oldest=oldest,
            head=head,
        )
    if after >= oldest and not bounds["known"]:
        raise Refused(
            "EVENTS_COMPACTED",
            f"{after} is no event of this database as it stands: the feed ends at {head}",
            oldest=oldest,
            head=head,
        )
    return Events([event(row) for row in _rows(tx, cmd, after, head)], head, oldest)


def of_workload(tx: Tx, ask: Ask[After], now: Now) -> Happenings:
    """The events of a workload after event `after`, oldest first. Refuses WORKLOAD_NOT_FOUND."""
    lookup(tx, ask.caller, ask.id)
    stretch = {"workload_id": ask.id, "after": ask.body.after, "limit": ask.body.limit}
    return Happenings([event(row) for row in tx.rows(OF_WORKLOAD, stretch)])


def event(row: Row) -> Event:
    """An event as it is shown, from its row."""
    token = row["fencing_token"]
    return Event(
        seq=row["seq"],
        at_ms=row["at_ms"],
        kind=row["kind"],
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        workload_id=row["workload_id"],
        worker_id=row["worker_id"],
        claim_id=None if token is None else f"claim_{token}",
        fencing_token=token,
        from_state=row["from_state"],
        to=row["to_state"],
        eligible_at_ms=row["eligible_at_ms"],
        expires_at_ms=row["expires_at_ms"],
        end=row["end_kind"],
        actor=row["actor"],
    )


def _rows(tx: Tx, cmd: Following, after: int, head: int) -> list[Row]:
    stretch: dict[str, object] = {"after": after, "head": head, "limit": cmd.limit}
    if "*" in cmd.tenants:
        return tx.rows(OF_ALL, stretch)
    if len(cmd.tenants) == 1:
        return tx.rows(OF_TENANT, {**stretch, "tenant_id": cmd.tenants[0]})
    # Each tenant gives its own in order and is asked again only as far as the page needs it.
    few = max(FEW_ROWS_MIN, cmd.limit // max(1, len(cmd.tenants)))
    tenants = [_of_tenant(tx, tenant_id, after, head, few) for tenant_id in cmd.tenants]
    return list(islice(merge(*tenants, key=lambda row: int(row["seq"])), cmd.limit))


def _of_tenant(tx: Tx, tenant_id: str, after: int, head: int, few: int) -> Iterator[Row]:
    while True:
        stretch = {"tenant_id": tenant_id, "after": after, "head": head, "limit": few}
        rows = tx.rows(OF_TENANT, stretch)
        yield from rows
        if len(rows) < few:
            return
        after = rows[-1]["seq"]
