"""--no-auth: the caller is service `local`, worker calls act as the worker they name."""

from collections.abc import Iterator

import pytest

from tests.api.identity.conftest import Wire
from tests.daemon.running import Daemon


@pytest.fixture(scope="module")
def open_wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    daemon = Daemon(tmp_path_factory.mktemp("open") / "feltd.db", "--tick-ms", "200", "--no-auth")
    daemon.init().start()
    daemon.key = ""
    try:
        yield Wire(daemon)
    finally:
        daemon.close()


def test_everybody_is_the_service_local(open_wire: Wire) -> None:
    me = open_wire.get("/v1/auth/me")

    assert me["subject"] == {"kind": "service", "id": "local"}
    assert me["principal"]["tenants"] == ["*"]
    assert open_wire.get("/v1/auth/me", key="felt_s_nonsense") == me
    assert open_wire.get("/health")["auth"] == "off"


def test_work_is_done_without_any_key_or_grant(open_wire: Wire) -> None:
    worker = open_wire.register("", "edge", issue_key=False)["worker"]
    worker_id = worker["worker_id"]
    assert (worker["tenant_id"], worker["application_id"]) == ("default", "default")
    assert worker["granted_capabilities"] == ["extract"]
    beat = {
        "worker_id": worker_id,
        "version": "1",
        "capability_version": worker["capability_version"],
        "capacity": {"concurrency": 1},
        "health": "HEALTHY",
    }
    open_wire.post(f"/v1/workers/{worker_id}/heartbeat", beat)
    body = {"definition_id": "x", "idempotency_key": "1", "capability_snapshot": ["extract"]}
    work = open_wire.post("/v1/workloads", body)["workload_id"]

    claim = open_wire.post(f"/v1/workers/{worker_id}/claims", {"start": True})["claims"][0]
    assert claim["workload_id"] == work
    fence = {name: claim[name] for name in ("claim_id", "worker_id", "fencing_token")}
    done = open_wire.post(f"/v1/workloads/{work}/complete", fence | {"output": 1})

    assert done["state"] == "COMPLETED"
    other = fence | {"worker_id": "worker_made_up"}
    refused = open_wire.refused("POST", f"/v1/workloads/{work}/renew", other)
    assert refused["status"] in (403, 404, 409)


def test_a_key_made_here_is_of_the_default_tenant(open_wire: Wire) -> None:
    made = open_wire.post("/v1/keys", {"name": "x"})

    assert made["tenants"] == ["default"]
