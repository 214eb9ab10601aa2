"""A tenant's records in memory: the mesh of tests/mesh/world.py and what is written in it.

Every change is made by the real rules. What a room of state adds for its stories it adds by a
class of its own over `State`.
"""

from typing import Any

from msgspec import Raw
from msgspec.json import decode, encode

from feltd.model.base import Caller, Subject
from feltd.model.change import Change, Following
from feltd.model.record import ANY, Expect
from feltd.state import changes, records
from feltd.state.records import Written
from feltd.state.writing import Log, Writing, head, writing
from feltd.store.tx import Row
from tests.mesh.world import Mesh

EVERYTHING = (
    "SELECT * FROM records",
    "SELECT * FROM changes",
    "SELECT * FROM change_logs",
    "SELECT * FROM collections",
    "SELECT * FROM consumers",
    "SELECT seq, action, subject FROM audit",
)


def bytes_of(value: Any) -> bytes:
    """A value as it is stored."""
    return encode(value, order="deterministic")


class State(Mesh):
    """A mesh whose tenant acme has records."""

    tenant_id = "acme"
    #: Who writes, where a story does not say.
    writer = Caller(
        subject=Subject(kind="service", id="app"),
        key_id="k00000000app",
        scopes=frozenset({"state:read", "state:write"}),
        tenants=("acme",),
    )

    #: As `writer`, on the daemon's own socket: no key stands behind it.
    operator = Caller(
        subject=Subject(kind="service", id="app"),
        scopes=frozenset({"*"}),
        tenants=("*",),
        local=True,
    )

    def writing(self, cause: str | None = None, **of: Any) -> Writing:
        """In whose name: the writer's, of acme, unless `tenant_id` or `caller` say otherwise."""
        caller = of.get("caller", self.writer)
        tenant_id = of.get("tenant_id", self.tenant_id)
        return self.run(lambda tx, _, now: writing(tx, caller, tenant_id, cause))

    def put(
        self,
        record_id: str,
        value: Any,
        collection: str = "orders",
        expect: Expect = ANY,
        **of: Any,
    ) -> Written | None:
        """Write a record in a commit of its own; None when it holds that value already."""
        why = self.writing(**of)
        text = bytes_of(value)
        return self.run(
            lambda tx, _, now: records.put(tx, now, why, collection, record_id, text, expect)
        )

    def patch(
        self,
        record_id: str,
        value: Any,
        collection: str = "orders",
        expect: Expect = ANY,
        **of: Any,
    ) -> Written | None:
        """Patch a record in a commit of its own."""
        why = self.writing(**of)
        text = bytes_of(value)
        return self.run(
            lambda tx, _, now: records.patch(tx, now, why, collection, record_id, text, expect)
        )

    def delete(
        self, record_id: str, collection: str = "orders", expect: Expect = ANY, **of: Any
    ) -> Written:
        """Delete a record in a commit of its own."""
        why = self.writing(**of)
        return self.run(
            lambda tx, _, now: records.delete(tx, now, why, collection, record_id, expect)
        )

    def record(
        self, record_id: str, collection: str = "orders", tenant_id: str = "acme"
    ) -> Row | None:
        """The row of a record, deleted or not."""
        return self.run(lambda tx, _, now: records.row_of(tx, tenant_id, collection, record_id))

    def value(self, record_id: str, collection: str = "orders", tenant_id: str = "acme") -> Any:
        """What a record holds; None where it is not there."""
        row = self.record(record_id, collection, tenant_id)
        return None if row is None or row["value"] is None else decode(row["value"])

    def everything_of_state(self) -> list[tuple[Any, ...]]:
        """Every row of records and their log, to see that nothing changed."""
        return [tuple(row) for sql in EVERYTHING for row in self.conn.execute(sql).fetchall()]

    def log(self, tenant_id: str = "acme") -> Log:
        """Where a tenant's log stands."""
        return self.run(lambda tx, _, now: head(tx, tenant_id))

    def changes(
        self, after: int | None = None, tenant_id: str = "acme", **members: Any
    ) -> tuple[Change, ...]:
        """The changes of a tenant behind one of them."""
        members.setdefault("limit", 500)
        cmd = Following(tenant_id=tenant_id, after=after, **members)
        return self.run(changes.page, cmd).items

    def cut(self, seq: int, tenant_id: str = "acme") -> None:
        """Clear away a tenant's changes up to one, as compaction does."""
        self.conn.execute(
            "UPDATE change_logs SET floor_seq = :seq, floor_at_ms = :now_ms"
            " WHERE tenant_id = :tenant_id",
            {"seq": seq, "now_ms": self.now.lease_ms, "tenant_id": tenant_id},
        )
        self.conn.execute(
            "DELETE FROM changes WHERE tenant_id = :tenant_id AND seq <= :seq",
            {"seq": seq, "tenant_id": tenant_id},
        )


def read(value: Raw | None) -> Any:
    """The value in a change or record."""
    return None if value is None else decode(value)
