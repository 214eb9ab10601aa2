"""Workers with real grants and real keys, over the real rules: the cast of the stories here."""

from typing import Any

from msgspec import convert

from feltd.config import Config
from feltd.errors import Refused
from feltd.identity import grants, keyrows, keys, principals
from feltd.mesh import authority as authorities
from feltd.mesh import drain, heartbeat, moves, promises, reconcile, register, roster, vitals
from feltd.model.base import Ask, Caller
from feltd.model.grant import Grant, IssueGrant, Regranted, ReplaceGrant, RevokeGrant
from feltd.model.key import CreateKey
from feltd.model.worker import (
    Drained,
    DrainRequest,
    Heartbeat,
    HeartbeatAnswer,
    Reconciled,
    Reconciliation,
    Registered,
    Registration,
    Transition,
    Worker,
)
from feltd.store.tx import Row
from tests.mesh.world import Mesh

CAPABILITIES = ["documents.extract"]


class House:
    """A mesh, a grant for the service `registrar`, and the keys of everybody in it.

    `operator` may operate and read workers of every tenant.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._fresh = 0
        self.grant = self.grant_for("registrar")
        self.registrar = self.key("registrar", ["workers:register"], self.grant)
        self.operator = self.key(
            "operator", ["workers:operate", "workers:read", "grants:issue"], None, ("*",)
        )

    # -- identity ----------------------------------------------------------------------------

    def fresh(self) -> str:
        """55 characters that were never used."""
        self._fresh += 1
        return f"{self._fresh:0>12}" + "x" * 43

    def grant_for(self, subject: str, **members: Any) -> Grant:
        """A grant for a service in acme/docs: register any worker that extracts documents."""
        asked = {
            "subject": {"kind": "service", "id": subject},
            "tenant_id": "acme",
            "application_id": "docs",
            "capabilities": [
                "worker:register",
                *(f"worker:capability:{name}" for name in members.pop("may", CAPABILITIES)),
            ],
            "resources": [{"kind": "RESOURCE_PREFIX", "uri": "flow://docs/workers/*"}],
            "constraints": {},
            "expires_at_ms": self.mesh.now.wall_ms + 86_400_000,
            **members,
        }
        ask = Ask(
            caller=principals.LOCAL,
            body=convert(asked, IssueGrant),
            fresh=f"grant_{self.fresh()[:12]}",
        )
        return self.mesh.run(grants.issue, ask)

    def key(
        self,
        subject: str,
        scopes: list[str],
        grant: Grant | None,
        tenants: tuple[str, ...] = ("acme",),
    ) -> Caller:
        """The caller behind a new key of a service."""
        body = CreateKey(
            name=subject,
            scopes=tuple(scopes),  # type: ignore[arg-type]
            tenants=tenants,
            identity_id=subject,
            grant_id=None if grant is None else grant.id,
        )
        made = self.mesh.run(
            keys.create, Ask(caller=principals.LOCAL, body=body, fresh=self.fresh())
        )
        return self.caller(made.key_id)

    def caller(self, key_id: str) -> Caller:
        """The caller a stored key stands for."""
        row = self.mesh.run(lambda tx, _, now: keyrows.read(tx, key_id))
        assert row is not None
        return principals.caller_of(row)

    def replace(self, grant: Grant, **members: Any) -> Regranted:
        """PUT of a grant: what it allowed, with these members instead."""
        may = members.pop("may", None)
        asked: dict[str, Any] = {
            "capabilities": grant.capabilities
            if may is None
            else ["worker:register", *(f"worker:capability:{name}" for name in may)],
            "resources": [{"kind": scope.kind, "uri": scope.uri} for scope in grant.resources],
            "expires_at_ms": grant.expires_at_ms,
            **members,
        }
        body = convert(asked, ReplaceGrant)
        return self.mesh.run(authorities.replace_grant, Ask(principals.LOCAL, body, grant.id))

    def revoke(self, grant: Grant) -> Regranted:
        """Revoke a grant."""
        ask = Ask(principals.LOCAL, RevokeGrant(), grant.id)
        return self.mesh.run(authorities.revoke_grant, ask)

    # -- workers -----------------------------------------------------------------------------

    def registers(
        self,
        name: str = "edge",
        by: Caller | None = None,
        grant: Grant | None = None,
        **members: Any,
    ) -> Registered:
        """A registration by the registrar, with a process id of its own unless the story says."""
        return self.admits(name, by, grant, **members).answer

    def admits(
        self,
        name: str = "edge",
        by: Caller | None = None,
        grant: Grant | None = None,
        **members: Any,
    ) -> register.Admitted:
        """As `registers`, with whether the worker is new."""
        told = {
            "name": name,
            "runtime": "customer",
            "version": "1",
            "capacity": {"concurrency": 2},
            "process_id": "first",
            **members,
        }
        body = register.Registering(
            registration=convert(told, Registration), grant_id=None if grant is None else grant.id
        )
        return self.mesh.run(
            register.register,
            Ask(caller=by or self.registrar, body=body, fresh=self.fresh(), limits=Config()),
        )

    def worker(self, name: str = "edge", **members: Any) -> "Hand":
        """A registered worker that has beaten once: READY and HEALTHY, with its own key."""
        hand = Hand(self, self.registers(name, issue_key=True, **members))
        hand.beat()
        return hand

    def show(self, worker_id: str) -> Worker:
        """A worker as the operator sees it."""
        return self.mesh.ask(roster.get, roster.Look(), worker_id, self.operator)

    def operates(self, verb: str, worker_id: str, body: Any = None) -> Any:
        """resume, recover, remove or transition by the operator."""
        rules: dict[str, Any] = {
            "resume": drain.resume,
            "recover": moves.recover,
            "remove": moves.remove,
            "transition": moves.transition,
        }
        return self.mesh.ask(rules[verb], body, worker_id, self.operator)

    def transition(self, worker_id: str, to: str) -> Worker:
        """A transition by hand."""
        moved: Worker = self.operates("transition", worker_id, convert({"to": to}, Transition))
        return moved

    def drain(self, worker_id: str, by: Caller | None = None, **members: Any) -> Drained:
        """A drain by the operator, or by somebody else."""
        body = convert(members, DrainRequest)
        return self.mesh.ask(drain.drain, body, worker_id, by or self.operator)

    def fails_silent(self, on_worker_lost: str = "end") -> list[str]:
        """The keeper's pass over silent workers."""
        return self.mesh.run(lambda tx, _, now: vitals.fail_silent(tx, 100, now, on_worker_lost))

    # -- verdicts ----------------------------------------------------------------------------

    def refusal(self, act: Any) -> Refused:
        """The refusal of an act that must be refused."""
        try:
            act()
        except Refused as refused:
            return refused
        raise AssertionError("it was not refused")

    def ends(self) -> list[tuple[str, str]]:
        """(claim, how it ended) of every ended claim, in order."""
        rows = self.mesh.conn.execute(
            "SELECT fencing_token, end_kind FROM claims WHERE end_kind IS NOT NULL"
            " ORDER BY fencing_token"
        )
        return [(f"claim_{row['fencing_token']}", row["end_kind"]) for row in rows]

    def keeps_its_promises(self) -> None:
        """Every promise that rows can answer holds."""
        broken = self.mesh.run(lambda tx, _, now: promises.ask(tx))
        assert not broken, broken


class Hand:
    """One process: what it was answered at registration, and its own key."""

    def __init__(self, house: House, registered: Registered) -> None:
        self.house = house
        self.worker = registered.worker
        self.id = registered.worker.worker_id
        assert registered.worker_key is not None
        self.caller = house.caller(registered.worker_key.split("_")[2])

    def beat(self, **members: Any) -> HeartbeatAnswer:
        """A heartbeat with this process's version and capability version."""
        told = {
            "worker_id": self.id,
            "version": self.worker.version,
            "capability_version": self.worker.capability_version,
            "capacity": {"concurrency": self.worker.capacity.concurrency},
            "health": "HEALTHY",
            **members,
        }
        body = convert(told, Heartbeat)
        return self.house.mesh.ask(heartbeat.heartbeat, body, self.id, self.caller)

    def reconcile(self, **members: Any) -> Reconciled:
        """A reconciliation of everything the story says it holds."""
        told = {
            "worker_id": self.id,
            "worker_version": self.worker.version,
            "capability_version": self.worker.capability_version,
            **members,
        }
        body = convert(told, Reconciliation)
        return self.house.mesh.ask(reconcile.reconcile, body, self.id, self.caller)

    def leave(self, **members: Any) -> Drained:
        """It drains itself with its own key."""
        return self.house.drain(self.id, self.caller, **members)

    def takes(self, count: int = 1, start: bool = True, **members: Any) -> list[Any]:
        """New work that it pulls."""
        needs = members.pop("needs", CAPABILITIES)
        for _ in range(count):
            self.house.mesh.workload(capability_snapshot=needs)
        pulled = self.house.mesh.pull(self.id, self.caller, max=count, start=start, **members)
        assert len(pulled.claims) == count, pulled.reasons
        return pulled.claims

    def says(self, verb: str, held: Any, **members: Any) -> Any:
        """A fenced verb with its own key."""
        return self.house.mesh.say(verb, held, self.caller, **members)

    def row(self) -> Row:
        """Its row."""
        return self.house.mesh.row(
            "SELECT worker_id, lifecycle, last_seen_at_ms, health, incarnation, content_version,"
            " authority_live, authority_unsettled FROM workers WHERE worker_id = :id",
            id=self.id,
        )

    def shown(self) -> Worker:
        """As the operator sees it."""
        return self.house.show(self.id)
