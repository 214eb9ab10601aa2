"""Where a walk that takes many slices goes on: a row while it is on its way, none at its beginning.

Losing a place loses nothing but time: the walk begins anew.
"""

from typing import NamedTuple

from feltd.store.tx import Tx

READ = """
SELECT p.tenant_id, p.part, p.seq
  FROM compaction_places p
 WHERE p.name = :name
"""

KEEP = """
INSERT INTO compaction_places (name, tenant_id, part, seq)
VALUES (:name, :tenant_id, :part, :seq)
ON CONFLICT (name) DO UPDATE
   SET tenant_id = excluded.tenant_id,
       part = excluded.part,
       seq = excluded.seq
"""

LEAVE = """
DELETE FROM compaction_places
 WHERE name = :name
"""


class Place(NamedTuple):
    """How far a walk has come: tenant, part of it, number in that."""

    tenant_id: str = ""
    part: str = ""
    seq: int = 0


#: Before the first of everything.
BEGINNING = Place()


def read(tx: Tx, name: str) -> Place:
    """Where the walk goes on."""
    row = tx.row(READ, {"name": name})
    return BEGINNING if row is None else Place(row["tenant_id"], row["part"], row["seq"])


def keep(tx: Tx, name: str, before: Place, place: Place | None) -> None:
    """Have the walk go on at `place`, or begin anew (None); `before` is where it went on."""
    if place is None:
        if before != BEGINNING:
            tx.change(LEAVE, {"name": name})
    elif place != before:
        tx.change(KEEP, {"name": name, **place._asdict()})
