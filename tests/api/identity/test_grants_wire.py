"""Grants over HTTP: transcripts, and what a revocation does to workers and their claims."""

from typing import Any

import pytest

from tests.api.identity.conftest import DAY_MS, Wire


def test_a_grant_is_issued_shown_changed_and_revoked(wire: Wire) -> None:
    issued = wire.grant()
    grant, token = issued["grant"], issued["token"]

    assert token.count(".") == 2
    assert wire.get(f"/v1/grants/{grant['id']}") == issued
    assert wire.get("/v1/grants?tenant_id=acme")["items"][0] == grant

    body = {
        "capabilities": grant["capabilities"],
        "resources": grant["resources"],
        "expires_at_ms": grant["expires_at_ms"] + DAY_MS,
    }
    for _ in range(2):
        changed = wire.call("PUT", f"/v1/grants/{grant['id']}", body)
        assert changed.status == 200
        assert changed.body["grant"]["revision"] == 2
        assert (changed.body["fenced_claims"], changed.body["remaining"]) == ([], 0)
        assert changed.body["token"] == token

    for _ in range(2):
        revoked = wire.post(f"/v1/grants/{grant['id']}/revoke", {"reason": "over"})
        assert revoked["grant"]["status"] == "REVOKED"
    assert wire.refused("PUT", f"/v1/grants/{grant['id']}", body)["code"] == "GRANT_DENIED"


def test_the_members_of_a_grant_are_those_of_the_wire(wire: Wire) -> None:
    constraints = {"max_workers": 2, "runtime_policy": {"network_policy": "none"}}
    grant = wire.grant(constraints=constraints)["grant"]

    assert {
        "contract_version",
        "id",
        "issuer",
        "subject",
        "tenant_id",
        "application_id",
        "capabilities",
        "resources",
        "constraints",
        "issued_at_ms",
        "expires_at_ms",
        "revision",
        "status",
    } <= set(grant)
    assert grant["constraints"] == constraints
    assert grant["contract_version"] == 1


@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"subject": {"kind": "robot", "id": "x"}}, "/subject/kind"),
        ({"subject": {"kind": "service", "id": "a:b"}}, "/subject/id"),
        ({"tenant_id": "a:b"}, "/tenant_id"),
        ({"capabilities": ["has space"]}, "/capabilities"),
        ({"resources": [{"kind": "GLOB", "uri": "x"}]}, "/resources"),
        ({"resources": [{"kind": "RESOURCE_PREFIX", "uri": "x"}]}, "/resources/0/uri"),
        ({"constraints": {"max_concurrency": 0}}, "/constraints/max_concurrency"),
        ({"constraints": {"workload_kinds": ["a#b#c"]}}, "/constraints/workload_kinds"),
        ({"constraints": {"runtimes": ["vm"]}}, "/constraints/runtimes"),
        ({"constraints": {"everything": True}}, "/constraints/everything"),
        ({"expires_at_ms": 1}, "/expires_at_ms"),
        ({"expires_at_ms": "soon"}, "/expires_at_ms"),
        ({"status": "ACTIVE"}, "/status"),
    ],
)
def test_a_grant_that_does_not_fit_is_pointed_at(
    wire: Wire, more: dict[str, Any], pointer: str
) -> None:
    good = wire.grant()["grant"]
    names = ("subject", "tenant_id", "application_id", "capabilities", "expires_at_ms")

    problem = wire.refused("POST", "/v1/grants", {name: good[name] for name in names} | more)

    told = (problem["status"], problem["code"], problem["next"])
    assert told == (422, "GRANT_INVALID", "stop")
    assert problem["errors"][0]["pointer"].startswith(pointer)


def test_a_subject_attenuates_its_grant_without_any_scope(wire: Wire) -> None:
    parent, registrar = wire.enrolled()
    child = {
        "parent_grant": parent["grant"]["id"],
        "capabilities": ["workload:capability:extract"],
        "resources": [],
        "subject": {"kind": "service", "id": "submitter"},
        "expires_at_ms": parent["grant"]["expires_at_ms"],
    }

    made = wire.grant(by=registrar, **child)
    assert made["grant"]["parent_grant"] == parent["grant"]["id"]
    body = {"subject": child["subject"], "tenant_id": "acme", "application_id": "docs"}
    wider = body | child | {"capabilities": ["workload:capability:other"]}
    problem = wire.refused("POST", "/v1/grants", wider, key=registrar)
    assert problem["code"] == "GRANT_INVALID"
    assert problem["errors"][0]["pointer"] == "/capabilities/0"
    root = wire.refused(
        "POST", "/v1/grants", {k: v for k, v in wider.items() if k != "parent_grant"}, key=registrar
    )
    assert root["code"] == "FORBIDDEN"
    assert wire.post(f"/v1/grants/{made['grant']['id']}/revoke", {}, key=registrar)


def test_another_tenants_grant_is_not_there_and_stays_as_it_was(wire: Wire) -> None:
    """BC-093."""
    grant = wire.grant()["grant"]
    stranger = wire.key(scopes=["grants:issue"], tenants=["other"])["secret"]
    body = {"capabilities": [], "expires_at_ms": grant["expires_at_ms"]}

    for method, path, sent in (
        ("GET", "/v1/grants/{}", None),
        ("PUT", "/v1/grants/{}", body),
        ("POST", "/v1/grants/{}/revoke", {}),
    ):
        told = [
            wire.refused(method, path.format(grant_id), sent, key=stranger)
            for grant_id in (grant["id"], "grant_made_up")
        ]
        for problem in told:
            del problem["request_id"]
        assert told[0] == told[1]
        assert told[0]["code"] == "GRANT_NOT_FOUND"
    assert wire.get(f"/v1/grants/{grant['id']}")["grant"] == grant


def test_a_lost_answer_to_an_issue_is_given_again(wire: Wire) -> None:
    grant = wire.grant()["grant"]
    names = ("subject", "tenant_id", "application_id", "capabilities", "expires_at_ms")
    body = {name: grant[name] for name in names}

    first = wire.call("POST", "/v1/grants", body, Idempotency_Key="issue-1")
    second = wire.call("POST", "/v1/grants", body, Idempotency_Key="issue-1")

    assert (first.status, second.status) == (201, 201)
    assert first.body == second.body
    assert first.body["grant"]["id"] != grant["id"]


# Workers


def test_a_worker_acts_as_itself_alone(wire: Wire) -> None:
    _, registrar = wire.enrolled()
    one, two = (wire.register(registrar, name) for name in ("edge-1", "edge-2"))
    key, worker_id = one["worker_key"], one["worker"]["worker_id"]

    me = wire.get("/v1/auth/me", key=key)
    assert me["subject"] == {"kind": "worker", "id": worker_id}
    assert (me["worker_id"], me["incarnation"]) == (worker_id, 1)
    assert me["principal"]["scopes"] == []
    assert wire.get(f"/v1/workers/{worker_id}", key=key)
    other = two["worker"]["worker_id"]
    for method, path in (
        ("GET", f"/v1/workers/{other}"),
        ("POST", f"/v1/workers/{other}/heartbeat"),
        ("POST", f"/v1/workers/{other}/claims"),
        ("POST", f"/v1/workers/{other}/drain"),
        ("POST", "/v1/workers/worker_made_up/heartbeat"),
        ("POST", f"/v1/workers/{worker_id}/resume"),
        ("GET", "/v1/workers"),
        ("GET", "/v1/keys"),
        ("POST", "/v1/keys"),
        ("GET", "/v1/grants"),
    ):
        assert wire.refused(method, path, key=key)["code"] == "FORBIDDEN", path
    for key in (registrar, wire.daemon.key):
        problem = wire.refused("POST", f"/v1/workers/{worker_id}/claims", key=key)
        assert problem["code"] == "FORBIDDEN"


def test_a_worker_that_was_taken_over_is_told_so(wire: Wire) -> None:
    _, registrar = wire.enrolled()
    first = wire.register(registrar, "edge-3")

    wire.register(registrar, "edge-3", process_id="p2", takeover=True)

    assert wire.reasons(first["worker_key"]) == ["taken_over"]


def test_a_revoked_grant_ends_its_keys_and_a_revoked_key_those_it_obtained(wire: Wire) -> None:
    grant, registrar = wire.enrolled()
    worker = wire.register(registrar, "edge-4")["worker_key"]
    plain = wire.key(scopes=["workers:register"], identity_id="registrar")
    token = wire.grant()["token"]
    child = wire.register(plain["secret"], "edge-5", authorization_grant=token)["worker_key"]

    wire.post(f"/v1/grants/{grant['grant']['id']}/revoke", {"reason": "lost"})
    assert wire.reasons(registrar) == wire.reasons(worker) == ["grant_ended"]
    assert wire.get("/v1/auth/me", key=child)
    wire.call("DELETE", f"/v1/keys/{plain['key_id']}")
    assert wire.reasons(child) == ["revoked"]


def test_a_parked_poll_ends_when_its_key_is_revoked(wire: Wire) -> None:
    """BC-089: an open poll does not outlive its key."""
    import threading

    _, registrar = wire.enrolled()
    done = wire.register(registrar, "edge-6")
    worker_id, key = done["worker"]["worker_id"], done["worker_key"]
    beat = {
        "worker_id": worker_id,
        "version": "1",
        "capability_version": done["worker"]["capability_version"],
        "capacity": {"concurrency": 1},
        "health": "HEALTHY",
    }
    wire.post(f"/v1/workers/{worker_id}/heartbeat", beat, key=key)
    answers: list[Any] = []
    body = {"wait_ms": 30_000, "request_id": "r"}
    poll = threading.Thread(
        target=lambda: answers.append(
            wire.call("POST", f"/v1/workers/{worker_id}/claims", body, key=key)
        )
    )
    poll.start()
    metrics = wire.key(scopes=["metrics:read"], tenants=["*"])["secret"]
    wire.eventually(lambda: "feltd_long_polls 1.0" in wire.get("/metrics", key=metrics))

    wire.call("DELETE", f"/v1/keys/{key[7:19]}")
    poll.join(20)

    assert not poll.is_alive()
    assert answers[0].status == 401 or answers[0].body["claims"] == []


def test_after_all_this_the_promises_hold_and_the_audit_chain_is_whole(wire: Wire) -> None:
    ran = wire.daemon.check()

    assert ran.returncode == 0, ran.stdout + ran.stderr
