"""Who may only make keys must not become a worker by it, and read and finish another's work."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.daemon.conftest import daemon as daemon
from tests.daemon.conftest import daemons as daemons
from tests.daemon.running import Daemon, Edge, Mesh, people

DAY_MS = 86_400_000


@pytest.fixture
def mesh(daemon: Daemon) -> Mesh:
    return people(daemon)


@pytest.fixture
def edge(daemon: Daemon, mesh: Mesh) -> Edge:
    return Edge(daemon, "edge-1", mesh.registrar_key)


def maker(daemon: Daemon, *scopes: str, **members: Any) -> str:
    """A key of tenant t that may make keys, and what else is said."""
    body = {"name": "maker", "scopes": ["keys:admin", *scopes], "tenants": ["t"], **members}
    return str(daemon.post("/v1/keys", body)["secret"])


def creation(daemon: Daemon, edge: Edge, key: str) -> tuple[int, Any]:
    answer = daemon.call("POST", "/v1/keys", {"name": "w", "worker_id": edge.id}, key=key)
    return answer.status, answer.body


def rotation(daemon: Daemon, edge: Edge, key: str) -> tuple[int, Any]:
    answer = daemon.call("POST", f"/v1/keys/{edge.key[7:19]}/rotate", {}, key=key)
    return answer.status, answer.body


WAYS = pytest.mark.parametrize("way", [creation, rotation])
Way = Callable[[Daemon, Edge, str], tuple[int, Any]]


@WAYS
def test_who_only_makes_keys_becomes_no_worker(daemon: Daemon, edge: Edge, way: Way) -> None:
    status, problem = way(daemon, edge, maker(daemon, "workers:register", "workers:operate"))

    assert (status, problem["code"]) == (403, "FORBIDDEN")
    assert [error["pointer"] for error in problem["errors"]] == ["/worker_id"]
    assert edge.beat().status == 200


@WAYS
def test_who_issues_grants_may_make_a_workers_key(daemon: Daemon, edge: Edge, way: Way) -> None:
    status, made = way(daemon, edge, maker(daemon, "grants:issue"))

    assert status == 201
    assert daemon.get("/v1/auth/me", key=made["secret"])["worker_id"] == edge.id


@WAYS
def test_the_subject_of_its_grant_may_make_a_workers_key(
    daemon: Daemon, edge: Edge, way: Way
) -> None:
    status, made = way(daemon, edge, maker(daemon, identity_id="crew"))

    assert status == 201
    assert daemon.get("/v1/auth/me", key=made["secret"])["worker_id"] == edge.id


def test_a_workers_key_of_another_tenant_is_as_good_as_made_up(daemon: Daemon, edge: Edge) -> None:
    stranger = {"name": "s", "scopes": ["keys:admin", "grants:issue"], "tenants": ["u"]}
    key = daemon.post("/v1/keys", stranger | {"expires_at_ms": in_a_day()})["secret"]
    answers = []
    for worker_id in (edge.id, "worker_" + "0" * 24):
        answer = daemon.call("POST", "/v1/keys", {"name": "w", "worker_id": worker_id}, key=key)
        answers.append((answer.status, answer.body["code"], answer.body["detail"]))

    assert answers[0] == answers[1]
    assert answers[0][:2] == (404, "WORKER_NOT_FOUND")


def in_a_day() -> int:
    return int(time.time() * 1_000) + DAY_MS
