"""Who belongs to a pool: the rule that placement tests, the count that people see.

A pool that lists workers keeps its list when one of them is removed, though nobody be left on it:
it never opens to everybody by that.
"""

from collections.abc import Iterable, Sequence

from msgspec import structs
from msgspec.json import decode, encode

from feltd.clock import Now
from feltd.mesh import generation, placement
from feltd.model.pool import Pool
from feltd.store.tx import Row, Tx

#: Workers of a tenant that are counted as members, at most: some 100 ms on a reader.
WORKERS_MAX = 20_000

WORKERS = """
SELECT k.worker_id, k.application_id, k.granted_capabilities, k.labels
  FROM workers k
 WHERE k.tenant_id = :tenant_id
   AND k.removed_at_ms IS NULL
 ORDER BY k.registered_at_ms DESC, k.worker_id DESC
 LIMIT :rows
"""

LISTING = """
SELECT p.pool_id, p.application_id, p.worker_ids
  FROM pools p
 WHERE p.tenant_id = :tenant_id
   AND p.listed = 1
   AND p.deleted_at_ms IS NULL
 ORDER BY p.pool_id
"""

RELIST = """
UPDATE pools
   SET worker_ids = :worker_ids,
       updated_at_ms = :now_ms
 WHERE tenant_id = :tenant_id
   AND pool_id = :pool_id
"""


def rule_of(row: Row) -> placement.Pool:
    """A pools row as placement takes it."""
    return placement.Pool(
        pool_id=row["pool_id"],
        worker_ids=frozenset(decode(row["worker_ids"])) if row["listed"] else None,
        capabilities=frozenset(decode(row["capabilities"])),
        required_labels=decode(row["required_labels"]),
    )


def counted(tx: Tx, pools: Sequence[Pool], now: Now) -> tuple[Pool, ...]:
    """The pools with their members counted, of up to WORKERS_MAX workers of each tenant."""
    crews: dict[str, Crew] = {}
    for tenant_id in {pool.tenant_id for pool in pools}:
        rows = tx.rows(WORKERS, {"tenant_id": tenant_id, "rows": WORKERS_MAX})
        crews[tenant_id] = Crew(rows, [pool for pool in pools if pool.tenant_id == tenant_id])
    return tuple(
        structs.replace(pool, members=crews[pool.tenant_id].members(pool)) for pool in pools
    )


def expel(tx: Tx, tenant_id: str, worker_id: str, now: Now) -> None:
    """A worker was removed: it leaves every pool that lists it."""
    for row in tx.rows(LISTING, {"tenant_id": tenant_id}):
        listed = decode(row["worker_ids"], type=list[str])
        if worker_id in listed:
            left = encode([one for one in listed if one != worker_id]).decode()
            key = {"tenant_id": tenant_id, "pool_id": row["pool_id"]}
            tx.change(RELIST, {**key, "worker_ids": left, "now_ms": now.lease_ms})
            generation.touch(tx, tenant_id, row["application_id"])


class Crew:
    """The workers of a tenant by what its pools ask for: a set of bits for each such thing.

    The members of a pool are then a few ANDs, however many pools and workers there are.
    """

    def __init__(self, rows: Sequence[Row], pools: Iterable[Pool]) -> None:
        asked = {one for pool in pools for one in _asked(pool)}
        having = {one: bytearray(len(rows) // 8 + 1) for one in asked}
        for place, row in enumerate(rows):
            for one in asked & _had(row):
                having[one][place >> 3] |= 1 << (place & 7)
        self._everybody = (1 << len(rows)) - 1
        self._having = {one: int.from_bytes(bits, "little") for one, bits in having.items()}

    def members(self, pool: Pool) -> int:
        """How many of them are members of one of the pools."""
        found = self._everybody
        if pool.listed:
            listed = 0
            for worker_id in pool.worker_ids:
                listed |= self._having[("id", worker_id)]
            found &= listed
        for one in _asked(pool):
            if one[0] != "id":
                found &= self._having[one]
        return found.bit_count()


def _asked(pool: Pool) -> set[tuple[str, ...]]:
    """What a pool asks of its members, the ids it lists among it."""
    asked: set[tuple[str, ...]] = {("id", worker_id) for worker_id in pool.worker_ids}
    asked |= {("can", one) for one in pool.capabilities}
    asked |= {("label", key, text) for key, text in pool.required_labels.items()}
    if pool.application_id is not None:
        asked.add(("application", pool.application_id))
    return asked


def _had(row: Row) -> set[tuple[str, ...]]:
    """What a worker has of that kind."""
    had: set[tuple[str, ...]] = {("id", row["worker_id"]), ("application", row["application_id"])}
    had |= {("can", one) for one in decode(row["granted_capabilities"])}
    had |= {("label", key, text) for key, text in decode(row["labels"]).items()}
    return had
