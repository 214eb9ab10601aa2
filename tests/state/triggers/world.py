"""A shop in memory whose orders set off work: grants, keys and triggers by the real rules."""

from itertools import count
from typing import Any

from msgspec import convert
from msgspec.json import decode

from feltd.identity import grants, keys, principals, regrants
from feltd.model.base import Ask, Caller
from feltd.model.grant import IssueGrant, RevokeGrant
from feltd.model.key import CreateKey
from feltd.model.trigger import Define, Produced, Trigger, TriggerStatus
from feltd.state import definitions, evaluation, standing, triggers
from feltd.state.definitions import Defining
from feltd.state.evaluation import Evaluate
from feltd.state.standing import OnTrigger
from feltd.store.tx import Row
from tests.state.world import State

SCOPES = ("state:read", "state:write", "triggers:read", "triggers:write")
DAY_MS = 86_400_000
PAID = {"op": "eq", "field": "after.status", "value": "paid"}


class Shop(State):
    """Tenant acme, application docs, whose service `app` defines triggers under its grant."""

    def __init__(self) -> None:
        super().__init__()
        self._made = count(1)
        self.grant_id = self.grant()
        self.app = self.caller(grant_id=self.grant_id)

    def grant(self, **members: Any) -> str:
        """A grant for service:app that lets it ask for docs.extract; its id."""
        told = {
            "subject": {"kind": "service", "id": "app"},
            "tenant_id": "acme",
            "application_id": "docs",
            "capabilities": ["workload:capability:docs.extract"],
            "resources": [],
            "expires_at_ms": self.now.wall_ms + 30 * DAY_MS,
            **members,
        }
        grant_id = f"grant_{next(self._made)}"
        ask = Ask(caller=principals.OPEN, body=convert(told, IssueGrant), fresh=grant_id)
        self.run(grants.issue, ask)
        return grant_id

    def revoke(self, grant_id: str) -> None:
        """End a grant."""
        ask = Ask(caller=principals.OPEN, body=RevokeGrant(), id=grant_id)
        self.run(regrants.revoke, ask)

    def caller(self, **members: Any) -> Caller:
        """A key of service:app in acme, and the caller behind it."""
        told = {
            "name": "key",
            "scopes": SCOPES,
            "tenants": ("acme",),
            "identity_id": "app",
            **members,
        }
        fresh = f"{next(self._made):012d}" + "S" * 43
        ask = Ask(caller=principals.OPEN, body=convert(told, CreateKey), fresh=fresh)
        made = self.run(keys.create, ask)
        row = self.row("SELECT * FROM keys WHERE key_id = :key_id", key_id=made.key_id)
        return principals.caller_of(row)

    def define(
        self,
        trigger_id: str = "ship",
        by: Caller | None = None,
        grant_id: str | None = None,
        **m: Any,
    ) -> Trigger:
        """Define a trigger on orders, any change, unless the story says otherwise."""
        return self.defined(trigger_id, by, grant_id, **m)[0]

    def defined(
        self,
        trigger_id: str = "ship",
        by: Caller | None = None,
        grant_id: str | None = None,
        **m: Any,
    ) -> tuple[Trigger, bool]:
        """As `define`, and whether it is new."""
        told = {
            "trigger_id": trigger_id,
            "source_collection": "orders",
            "change_kind": "any",
            "target_capability": "extract",
            **m,
        }
        ask = Ask(caller=by or self.app, body=Defining(convert(told, Define), grant_id))
        return self.run(definitions.define, ask)

    def evaluate(self, limit: int = 200) -> int:
        """One operation of the keeper's entry."""
        return self.run(evaluation.evaluate, limit)

    def settle(self) -> None:
        """The keeper's rounds until nothing is left to judge."""
        for _ in range(1_000):
            if self.evaluate() < 200:
                return
        raise AssertionError("it never comes to an end")

    def evaluate_now(self, *tenants: str, by: Caller | None = None, eager: bool = True) -> Produced:
        """An evaluation that somebody asks for."""
        body = Evaluate(tenants or ("acme",), eager)
        return self.run(evaluation.evaluate_now, Ask(caller=by or self.app, body=body))

    def does(self, verb: Any, trigger_id: str = "ship", body: Any = None, **of: Any) -> Any:
        """enable, disable, delete, preview or get of a trigger of the tenant."""
        caller = of.get("by") or self.app
        told = OnTrigger(of.get("tenant_id", "acme"), body)
        return self.run(verb, Ask(caller=caller, body=told, id=trigger_id))

    def trigger(self, trigger_id: str = "ship") -> Trigger:
        """A trigger as it is shown."""
        shown: Trigger = self.does(standing.get, trigger_id)
        return shown

    def status(self) -> TriggerStatus:
        """How the triggers of acme stand."""
        return self.run(standing.status, Ask(caller=self.app, body="acme"))

    def enable(self, trigger_id: str = "ship") -> Trigger:
        """Have it go on."""
        shown: Trigger = self.does(triggers.enable, trigger_id)
        return shown

    def disable(self, trigger_id: str = "ship", body: Any = None) -> Trigger:
        """Stop it."""
        shown: Trigger = self.does(triggers.disable, trigger_id, body)
        return shown

    def work(self, trigger_id: str = "ship") -> list[Row]:
        """The workloads a trigger made, in order."""
        found = self.conn.execute(
            "SELECT * FROM workloads WHERE trigger = ? ORDER BY seq", [trigger_id]
        )
        return found.fetchall()

    def fired(self, trigger_id: str = "ship") -> list[int]:
        """The changes that made a workload, as its input names them."""
        return [decode(row["input"])["seq"] for row in self.work(trigger_id)]

    def firings(self, trigger_id: str = "ship") -> list[tuple[int, str]]:
        """The firing rows of a trigger."""
        found = self.conn.execute(
            "SELECT seq, outcome FROM trigger_firings WHERE trigger_id = ? ORDER BY seq",
            [trigger_id],
        )
        return [tuple(row) for row in found]

    def put_many(self, amount: int, collection: str = "orders", **value: Any) -> None:
        """So many new records, a commit each."""
        for _ in range(amount):
            self.put(f"r{next(self._made)}", {"status": "new", **value}, collection)
