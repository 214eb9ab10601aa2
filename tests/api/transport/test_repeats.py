"""Every POST is safe to repeat: by a key of its own, or by the Idempotency-Key header."""

from typing import Any

from feltd.api.app import routes
from feltd.config import Config
from tests.daemon.conftest import daemon as daemon
from tests.daemon.conftest import daemons as daemons
from tests.daemon.running import Daemon, Edge, create, people

#: What makes a repeat of these harmless: a key in the body, a process_id, the fence, the holder.
OWN_KEY = {
    *("create_workload", "create_workloads", "register_worker", "heartbeat", "reconcile"),
    *("pull", "exchange", "claim"),
    *("start", "renew", "checkpoint", "complete", "fail", "release", "create_pool"),
    # These ask, or raise a mark that stands already.
    *("validate", "fence", "try_placement", "search_records", "preview_trigger"),
    # The id in the body names it for good; a change fires a trigger once.
    *("define_trigger", "evaluate_triggers"),
    # A name is one user. Where a password is in the body not even a digest of it is kept; each
    # login is another session, and a session or a password ends once.
    *("create_user", "signup", "login", "logout", "change_password"),
}


def test_a_post_without_a_key_of_its_own_is_answered_alike(daemon: Daemon) -> None:
    mesh = people(daemon)
    edge = Edge(daemon, "edge-1", mesh.registrar_key)
    assert edge.beat().status == 200
    dead = create(daemon, mesh, "dead", retry_policy={"max_attempts": 1})["workload_id"]
    (spent,) = edge.pull(start=True)
    assert edge.fenced("fail", spent, kind="boom", message="no").body["state"] == "DEAD_LETTERED"
    create(daemon, mesh, "held")
    (claim,) = edge.pull(start=True)
    lines = {name: claim[name] for name in ("claim_id", "worker_id", "fencing_token")}
    grant = daemon.get("/v1/grants")["items"][0]
    kept = ("subject", "tenant_id", "application_id", "capabilities", "expires_at_ms")
    key_id = daemon.post("/v1/keys", {"name": "k", "tenants": ["acme"]})["key_id"]
    scheduler = {"scopes": ["triggers:write"], "tenants": ["t"], "identity_id": "crew"}
    named = {"name": "scheduler", "grant_id": grant["id"]}
    scheduler_key = daemon.post("/v1/keys", {**scheduler, **named})["secret"]
    yearly = {"kind": "schedule", "cron": "0 0 1 1 *", "target_capability": "report"}
    daemon.post("/v1/triggers", {"trigger_id": "yearly", **yearly}, key=scheduler_key)
    daemon.post("/v1/users", {"username": "ada", "password": "correct horse battery"})
    at = f"/v1/workers/{edge.id}"
    create(daemon, mesh, "grouped", group="g")
    create(daemon, mesh, "waiting")
    bulk = {"action": "cancel", "filter": {"tenant_id": "t", "state": "READY"}}
    hold = {"scope": "tenant", "tenant_id": "t", "reason": "r"}
    put = {"op": "put", "collection": "orders", "id": "o-1", "value": 1, "if_version": None}
    # In the order in which each finds something to do.
    calls: list[tuple[str, str, dict[str, Any], str]] = [
        ("log", f"/v1/workloads/{claim['workload_id']}/log", {**lines, "lines": ["x"]}, edge.key),
        ("evict", f"/v1/claims/{claim['claim_id']}/evict", {"reason": "r"}, ""),
        ("requeue", f"/v1/workloads/{dead}/requeue", {}, ""),
        ("cancel", f"/v1/workloads/{dead}/cancel", {}, ""),
        ("seal_group", "/v1/groups/g/seal?tenant_id=t", {}, ""),
        ("cancel_group", "/v1/groups/g/cancel?tenant_id=t", {}, ""),
        ("change_workloads", "/v1/workloads/bulk", bulk, ""),
        ("place_hold", "/v1/holds", hold, ""),
        ("quarantine", f"{at}/quarantine", {"reason": "r"}, ""),
        ("unquarantine", f"{at}/unquarantine", {}, ""),
        ("drain", f"{at}/drain", {}, ""),
        ("resume", f"{at}/resume", {}, ""),
        ("transition", f"{at}/transition", {"to": "OFFLINE"}, ""),
        ("recover", f"{at}/recover", {}, ""),
        ("acknowledge", "/v1/health/acknowledge", {}, ""),
        (
            "transact",
            "/v1/transactions?tenant_id=t",
            {"mutations": [put, {**put, "id": "o-2"}]},
            "",
        ),
        ("run_trigger", "/v1/triggers/yearly/run", {}, scheduler_key),
        ("disable_trigger", "/v1/triggers/yearly/disable", {"reason": "r"}, scheduler_key),
        ("enable_trigger", "/v1/triggers/yearly/enable", {}, scheduler_key),
        ("compact", "/v1/compactions", {"dry_run": True}, ""),
        ("create_backup", "/v1/backups", {}, ""),
        ("change_role", "/v1/users/ada/role", {"roles": {"acme": "viewer"}}, ""),
        ("disable_user", "/v1/users/ada/disable", {}, ""),
        ("create_key", "/v1/keys", {"name": "n", "tenants": ["acme"]}, ""),
        ("rotate_key", f"/v1/keys/{key_id}/rotate", {"overlap_ms": 0}, ""),
        ("issue_grant", "/v1/grants", {name: grant[name] for name in kept}, ""),
        ("revoke_grant", f"/v1/grants/{grant['id']}/revoke", {}, ""),
    ]
    for place, (operation, path, body, key) in enumerate(calls):
        first, second = (
            daemon.call("POST", path, body, key=key or None, Idempotency_Key=f"k-{place}")
            for _ in range(2)
        )
        assert first.status == second.status, (operation, second.body)
        if operation not in ("create_key", "rotate_key"):  # a new secret each time
            assert first.body == second.body, operation
    told = daemon.get(f"/v1/workloads/{claim['workload_id']}/logs")["items"]
    assert [line["text"] for line in told] == ["x"]

    posts = {route.operation for route in routes(Config()) if route.method == "POST"}
    assert posts == OWN_KEY | {operation for operation, *_ in calls}
