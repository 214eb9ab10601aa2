"""Another tenant's object answers exactly like a made-up one, on every route, and stays as it was.

BC-093 over the whole table of routes: whoever adds a route adds it to this matrix by that alone.
"""

import sqlite3
from typing import Any

import pytest

from feltd.api.app import routes
from feltd.api.routes import Route
from feltd.config import Config
from tests.api.identity.conftest import Wire

BY_ID = [route for route in routes(Config()) if "{id}" in route.path]
TABLES = ("workers", "workloads", "claims", "grants", "checkpoints", "claim_logs", "late_results")
TABLES += ("pools", "holds", "decisions", "fences", "workload_groups", "deadlines")
TABLES += ("records", "changes", "consumers", "collections")
TABLES += ("triggers", "trigger_firings", "schedule_firings", "deleted_triggers")
#: What stands for the other names in a path.
OTHER_NAMES = {
    "{collection}": "orders-of-acme",
    "{name}": "consumer-of-acme",
    "{resource}": "bucket",
    "{code}": "INTERNAL",
}
RECORDS = "/v1/collections/{collection}/records"


class Scene:
    """Tenant acme with one of everything, and two strangers of tenant other."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        grant, registrar = wire.enrolled()
        done = self.ready(registrar, "edge")
        work = self.work("acme", grant["grant"]["id"])
        worker_id, key = done["worker"]["worker_id"], done["worker_key"]
        # Held and heard for as long as all of the stories may take on a slow machine.
        pull = {"lease_ms": 3_600_000}
        claims = wire.post(f"/v1/workers/{worker_id}/claims", pull, key=key)["claims"]
        assert [claim["workload_id"] for claim in claims] == [work]
        pool = {"pool_id": "pool-of-acme", "tenant_id": "acme", "name": "theirs"}
        hold = {"scope": "definition", "value": "index", "tenant_id": "acme", "reason": "ours"}
        # The worker is full, so what is given to it is refused, and that decision is kept.
        second = self.work("acme", grant["grant"]["id"], "second", group="group-of-acme")
        given = wire.call("POST", f"/v1/workloads/{second}/claim", {"worker_id": worker_id})
        kept = {"X_Feltd_Tenant": "acme"}
        records = RECORDS.replace("{collection}", OTHER_NAMES["{collection}"])
        for record in ("record-of-acme", "older-of-acme"):
            assert wire.call("PUT", f"{records}/{record}", {"ours": True}, **kept).status == 201
        assert wire.call("PUT", "/v1/consumers/consumer-of-acme", {"ack": 0}, **kept).status == 201
        said = {"kind": "schedule", "every_ms": 3_600_000, "target_capability": "extract"}
        trigger = {"trigger_id": "trigger-of-acme", **said}
        definer = wire.key(
            scopes=["triggers:write"], identity_id="registrar", grant_id=grant["grant"]["id"]
        )["secret"]
        self.ids = {
            "/v1/triggers": wire.post("/v1/triggers", trigger, key=definer)["trigger_id"],
            RECORDS: "record-of-acme",
            "/v1/groups": "group-of-acme",
            "/v1/placements": given.body["decision_id"],
            "/v1/pools": wire.post("/v1/pools", pool)["pool_id"],
            "/v1/holds": wire.post("/v1/holds", hold)["hold_id"],
            "/v1/workers": worker_id,
            "/v1/workloads": work,
            "/v1/claims": claims[0]["claim_id"],
            "/v1/grants": grant["grant"]["id"],
            "/v1/keys": wire.key()["key_id"],
        }
        self.operator = wire.key(scopes=["*"], tenants=["other"])["secret"]
        theirs = wire.grant(tenant_id="other")
        their_key = wire.key(
            scopes=["workers:register"],
            identity_id="registrar",
            tenants=["other"],
            grant_id=theirs["grant"]["id"],
        )["secret"]
        self.worker = self.ready(their_key, "edge")
        self.fence = {
            "claim_id": claims[0]["claim_id"],
            "worker_id": self.worker["worker"]["worker_id"],
            "fencing_token": claims[0]["fencing_token"],
        }

    def ready(self, registrar: str, name: str) -> dict[str, Any]:
        """Register a worker and bring it to READY."""
        done = self.wire.register(registrar, name, heartbeat_timeout_ms=3_600_000)
        worker_id = done["worker"]["worker_id"]
        beat = {
            "worker_id": worker_id,
            "version": "1",
            "capability_version": done["worker"]["capability_version"],
            "capacity": {"concurrency": 1},
            "health": "HEALTHY",
        }
        self.wire.post(f"/v1/workers/{worker_id}/heartbeat", beat, key=done["worker_key"])
        return done

    def work(self, tenant_id: str, grant_id: str, name: str = "w", **members: Any) -> str:
        """One workload of the registrar's own."""
        submitter = self.wire.key(
            scopes=["workloads:create"],
            identity_id="registrar",
            tenants=[tenant_id],
            grant_id=grant_id,
        )["secret"]
        body = {"definition_id": "extract", "idempotency_key": name} | members
        made: dict[str, Any] = self.wire.post("/v1/workloads", body, key=submitter)
        return str(made["workload_id"])

    def id_for(self, route: Route) -> str:
        """The foreign object a route is about."""
        return next(it for start, it in self.ids.items() if route.path.startswith(start + "/"))

    def path(self, route: Route, wanted: str = "") -> str:
        """The path of a route, to the foreign object or the one that is wanted."""
        path = route.path
        if "{id}" in path:
            path = path.replace("{id}", wanted or self.id_for(route))
        for name, text in OTHER_NAMES.items():
            path = path.replace(name, text)
        return path

    def body(self, route: Route) -> Any:
        """A body that fits the route."""
        if route.method == "GET" or route.body is None:
            return None
        example = route.example if isinstance(route.example, dict) else {}
        named = getattr(route.body, "__struct_fields__", ())
        fence = {name: text for name, text in self.fence.items() if name in named}
        return example | fence

    def rows(self) -> list[Any]:
        """What acme has."""
        conn = sqlite3.connect(f"file:{self.wire.data}?mode=ro", uri=True)
        found: list[Any] = []
        for table in TABLES:
            owned = "tenant_id = 'acme'" if table in TABLES[:4] else "1"
            found += conn.execute(f"SELECT * FROM {table} WHERE {owned}").fetchall()  # noqa: S608
        found += conn.execute("SELECT key_id, revoked_at_ms, expires_at_ms FROM keys").fetchall()
        conn.close()
        return found


@pytest.fixture(scope="module")
def scene(wire: Wire) -> Scene:
    return Scene(wire)


@pytest.mark.parametrize("route", BY_ID, ids=lambda it: f"{it.method} {it.path}")
def test_a_foreign_id_answers_like_a_made_up_one(scene: Scene, route: Route) -> None:
    foreign = scene.id_for(route)
    made_up = foreign[:-2] + ("00" if foreign[-2:] != "00" else "11")
    before = scene.rows()
    key = scene.worker["worker_key"] if route.auth == "worker" else scene.operator

    told = []
    # A record is made under any id that is free: whoever has read it changes it.
    read = {"If_Match": '"1"'} if route.method == "PUT" and route.body is Any else {}
    for wanted in (foreign, made_up):
        path = scene.path(route, wanted)
        answer = scene.wire.call(route.method, path, scene.body(route), key=key, **read)
        assert 400 <= answer.status < 500, answer
        del answer.body["request_id"]
        told.append((answer.status, answer.body))

    assert told[0] == told[1]
    assert told[0][1]["code"] not in {"REQUEST_INVALID", "REQUEST_MALFORMED"}
    assert not told[0][1]["code"].endswith("_INVALID"), "the body of this test does not fit"
    assert scene.rows() == before


def test_lists_show_nothing_of_another_tenant(scene: Scene) -> None:
    acme = set(scene.ids.values())

    paths: tuple[str, ...] = ("/v1/workers", "/v1/workloads", "/v1/claims", "/v1/grants")
    paths += (
        "/v1/collections",
        RECORDS.replace("{collection}", OTHER_NAMES["{collection}"]),
        "/v1/changes",
        "/v1/consumers",
        "/v1/triggers",
        "/v1/triggers/status",
        "/v1/keys",
        "/v1/pools",
        "/v1/holds",
        "/v1/placements",
        "/v1/backlog",
        "/v1/dead-letters",
    )
    for path in (*paths, "/v1/events"):
        for query in ("", "?tenant_id=other"):
            if path in ("/v1/workloads", "/v1/claims") and query:
                continue
            text = repr(scene.wire.get(path + query, key=scene.operator))
            assert not any(one in text for one in (*acme, "acme")), path
        refused = scene.wire.call("GET", path, key=scene.operator, X_Feltd_Tenant="acme")
        if refused.status == 200:
            assert not any(one in repr(refused.body) for one in acme), path
