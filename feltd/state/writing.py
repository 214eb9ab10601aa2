"""The log of changes, from the writing side: the one place where a change is appended.

An operation that writes records appends through one `Appending`: it numbers the changes without
gap, then moves the log's head and the counts of the collections once, at the end. A change and the
record it tells of stand in the same transaction, so neither is ever seen without the other.
"""

from typing import NamedTuple

from feltd.clock import Now
from feltd.errors import Refused
from feltd.model.base import Caller
from feltd.model.record import COLLECTIONS_MAX, FLOW_CAPABILITIES
from feltd.store.tx import Tx

#: Values of one operation before and after: read, merged and written in some 45 ms.
MOVED_BYTES_MAX = 4 * 1024 * 1024
#: What a write takes beside its values, as bytes: 27 us, and 9 ms go to a MiB that is merged.
WRITE_BYTES = 2 * 1024

LOG = """
SELECT l.head_seq
  FROM change_logs l
 WHERE l.tenant_id = :tenant_id
"""

BEGIN_LOG = """
INSERT INTO change_logs (tenant_id)
VALUES (:tenant_id)
"""

HEAD = """
SELECT l.head_seq, l.floor_seq
  FROM change_logs l
 WHERE l.tenant_id = :tenant_id
"""

INSTANCE = """
SELECT g.instance_id
  FROM ledger g
 WHERE g.id = 1
"""

APPEND = """
INSERT INTO changes (tenant_id, seq, at_ms, kind, collection, record_id, version, before, after,
                     actor, cause_workload_id, depth)
VALUES (:tenant_id, :seq, :at_ms, :kind, :collection, :record_id, :version, :before, :after,
        :actor, :cause_workload_id, :depth)
"""

MOVE_HEAD = """
UPDATE change_logs
   SET head_seq = :seq
 WHERE tenant_id = :tenant_id
"""

COUNT = """
UPDATE collections
   SET records = records + :records,
       bytes = bytes + :bytes
 WHERE tenant_id = :tenant_id
   AND collection = :collection
"""

# A collection is there while it holds something.
END_COLLECTION = """
DELETE FROM collections
 WHERE tenant_id = :tenant_id
   AND collection = :collection
   AND records = 0
"""

COLLECTIONS = """
SELECT count(*) AS collections
  FROM collections c
 WHERE c.tenant_id = :tenant_id
"""

BEGIN_COLLECTION = """
INSERT INTO collections (tenant_id, collection, records, bytes)
VALUES (:tenant_id, :collection, :records, :bytes)
"""

CAUSE = """
SELECT f.depth
  FROM workloads w
  LEFT JOIN trigger_firings f ON f.workload_id = w.workload_id
 WHERE w.workload_id = :workload_id
   AND w.tenant_id = :tenant_id
"""


class Writing(NamedTuple):
    """In whose name records are written: `actor` is kind:id, `key_id` '' where no key stands.

    `cause` is the workload that led to it and `depth` how many firings of triggers did.
    """

    tenant_id: str
    actor: str
    key_id: str = ""
    cause: str | None = None
    depth: int = 0


class Log(NamedTuple):
    """A tenant's log: its newest change, the last one that is gone, and which history it is."""

    head_seq: int
    floor_seq: int
    instance_id: str

    @property
    def oldest(self) -> int:
        """The first change that is kept, or will be."""
        return self.floor_seq + 1


def writing(tx: Tx, caller: Caller, tenant_id: str, cause: str | None = None) -> Writing:
    """How a caller writes records of a tenant, with the depth that `cause` has.

    Refuses RECORD_INVALID for a cause that is no workload of the tenant.
    """
    depth = 0
    if cause is not None:
        row = tx.row(CAUSE, {"workload_id": cause, "tenant_id": tenant_id})
        if row is None:
            raise Refused(
                "RECORD_INVALID",
                "X-Feltd-Cause names no workload of the tenant",
                errors=[{"pointer": "/X-Feltd-Cause", "detail": "no such workload"}],
            )
        depth = row["depth"] or 0
    return Writing(tenant_id, str(caller.subject), caller.key_id, cause, depth)


def head(tx: Tx, tenant_id: str) -> Log:
    """Where a tenant's log stands, in two seeks; 0 and 0 before its first change."""
    row = tx.row(HEAD, {"tenant_id": tenant_id})
    ledger = tx.row(INSTANCE)
    if ledger is None:
        raise Refused("STORAGE_UNAVAILABLE", "the ledger row is missing")
    if row is None:
        return Log(0, 0, ledger["instance_id"])
    return Log(row["head_seq"], row["floor_seq"], ledger["instance_id"])


class Appending:
    """The changes of one operation. `add` each, then `end` once; without a change it does nothing.

    `head_seq` is the log's newest change so far, 0 before the first.
    """

    def __init__(self, tx: Tx, now: Now, why: Writing) -> None:
        self._tx = tx
        self._now = now
        self.why = why
        row = tx.row(LOG, {"tenant_id": why.tenant_id})
        self._begun = row is not None
        self._before_seq: int = 0 if row is None else row["head_seq"]
        self.head_seq = self._before_seq
        #: What each collection gains: records and bytes.
        self._gains: dict[str, list[int]] = {}
        #: Collections of the tenant, counted when the first one is begun: there may be thousands.
        self._collections: int | None = None
        self._moved_bytes = 0

    def weigh(self, size_bytes: int) -> None:
        """Count one write and what it reads and stores, before it does.

        Refuses RECORD_INVALID beyond MOVED_BYTES_MAX: the writer would be held up.
        """
        self._moved_bytes += size_bytes + WRITE_BYTES
        if self._moved_bytes > MOVED_BYTES_MAX:
            raise Refused(
                "RECORD_INVALID",
                f"its records take more than {MOVED_BYTES_MAX} bytes before and after, each write"
                f" {WRITE_BYTES} besides: part the transaction",
            )

    def add(
        self,
        kind: str,
        collection: str,
        record_id: str,
        version: int,
        before: str | None,
        after: str | None,
    ) -> int:
        """Append one change, `version` being the record's after it; its seq."""
        if not self._begun:
            self._tx.change(BEGIN_LOG, {"tenant_id": self.why.tenant_id})
            self._begun = True
        self.head_seq += 1
        self._tx.change(
            APPEND,
            {
                "tenant_id": self.why.tenant_id,
                "seq": self.head_seq,
                "at_ms": self._now.lease_ms,
                "kind": kind,
                "collection": collection,
                "record_id": record_id,
                "version": version,
                "before": before,
                "after": after,
                "actor": self.why.actor,
                "cause_workload_id": self.why.cause,
                "depth": self.why.depth,
            },
        )
        gain = self._gains.setdefault(collection, [0, 0])
        gain[0] += (after is not None) - (before is not None)
        gain[1] += _bytes(after) - _bytes(before)
        return self.head_seq

    def end(self) -> int:
        """Move the head and the counts, and tell who waits for changes; the newest seq.

        Tells ("changes", tenant) and ("changes", "*"), ("evaluate", "0"), and for programs
        ("record", "<tenant>/<collection>").

        Refuses QUOTA_EXCEEDED beyond COLLECTIONS_MAX collections.
        """
        if self.head_seq == self._before_seq:
            return self.head_seq
        tenant_id = self.why.tenant_id
        self._tx.change(MOVE_HEAD, {"tenant_id": tenant_id, "seq": self.head_seq})
        for collection, (records, size_bytes) in self._gains.items():
            self._count(collection, records, size_bytes)
        self._tx.tell("changes", tenant_id)
        self._tx.tell("changes", "*")
        self._tx.tell("evaluate", "0")
        if FLOW_CAPABILITIES in self._gains:
            self._tx.tell("record", f"{tenant_id}/{FLOW_CAPABILITIES}")
        self._before_seq = self.head_seq
        self._gains = {}
        return self.head_seq

    def _count(self, collection: str, records: int, size_bytes: int) -> None:
        tenant_id = self.why.tenant_id
        gain: dict[str, object] = {
            "tenant_id": tenant_id,
            "collection": collection,
            "records": records,
            "bytes": size_bytes,
        }
        if self._tx.change(COUNT, gain):
            if records < 0:
                name = {"tenant_id": tenant_id, "collection": collection}
                ended = self._tx.change(END_COLLECTION, name)
                if self._collections is not None:
                    self._collections -= ended
        elif records > 0:
            self._begin_collection(gain)

    def _begin_collection(self, gain: dict[str, object]) -> None:
        used = self._collections
        if used is None:
            found = self._tx.rows(COLLECTIONS, {"tenant_id": self.why.tenant_id})
            used = int(found[0]["collections"])
        if used >= COLLECTIONS_MAX:
            raise Refused(
                "QUOTA_EXCEEDED",
                f"the tenant has {used} collections, {COLLECTIONS_MAX} are allowed",
                quota="collections",
                limit=COLLECTIONS_MAX,
                used=used,
            )
        self._tx.change(BEGIN_COLLECTION, gain)
        self._collections = used + 1


def _bytes(text: str | None) -> int:
    if text is None:
        return 0
    return len(text) if text.isascii() else len(text.encode())
