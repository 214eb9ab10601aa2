"""Keys over HTTP: transcripts."""

import json
import sqlite3
import subprocess
import sys
from typing import Any

import pytest

from tests.api.identity.conftest import Wire
from tests.daemon.running import FELTD, feltd


def test_a_key_is_made_used_listed_rotated_and_revoked(wire: Wire) -> None:
    made = wire.key(name="import", scopes=["workloads:read", "state:read"])
    secret, key_id = made["secret"], made["key_id"]

    assert secret.startswith(f"felt_s_{key_id}_")
    assert made["scopes"] == ["state:read", "workloads:read"]
    me = wire.get("/v1/auth/me", key=secret)
    assert me["subject"] == {"kind": "service", "id": key_id}
    assert me["principal"]["tenants"] == ["acme"]
    assert "grant" not in me

    listed = wire.get("/v1/keys")
    assert listed["items"][0]["key_id"] == key_id
    assert listed["next_cursor"] is None
    assert "secret" not in json.dumps(listed)

    answer = wire.call("POST", f"/v1/keys/{key_id}/rotate", {"overlap_ms": 0})
    assert answer.status == 201
    assert answer.headers["cache-control"] == "no-store"
    assert wire.reasons(secret) == ["revoked"]
    new = answer.body["secret"]
    assert wire.get("/v1/auth/me", key=new)["subject"] == me["subject"]

    for _ in range(2):
        assert wire.call("DELETE", f"/v1/keys/{answer.body['key_id']}").status == 204
    assert wire.reasons(new) == ["revoked"]
    assert wire.refused("DELETE", "/v1/keys/000000000000")["code"] == "KEY_NOT_FOUND"


def test_the_answer_of_a_creation_holds_exactly_what_the_wire_says(wire: Wire) -> None:
    made = wire.key()

    assert set(made) == {
        "key_id",
        "name",
        "scopes",
        "namespaces",
        "tenants",
        "subject_type",
        "created_by",
        "created_at_ms",
        "secret",
    }
    assert made["scopes"] == ["events:read", "state:read", "state:write"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/name"),
        ({"name": ""}, "/name"),
        ({"name": "a\nb"}, "/name"),
        ({"name": "x", "scopes": ["workers:fly"]}, "/scopes/0"),
        ({"name": "x", "tenants": []}, "/tenants"),
        ({"name": "x", "tenants": ["a:b"]}, "/tenants/0"),
        ({"name": "x", "namespaces": ["*"]}, "/namespaces/0"),
        ({"name": "x", "subject_type": "root"}, "/subject_type"),
        ({"name": "x", "expires_at_ms": 2**53}, "/expires_at_ms"),
        ({"name": "x", "secret": "mine"}, "/secret"),
        ({"name": "x"}, "/tenants"),
    ],
)
def test_a_body_that_does_not_fit_is_pointed_at(
    wire: Wire, body: dict[str, Any], pointer: str
) -> None:
    problem = wire.refused("POST", "/v1/keys", body)

    assert (problem["status"], problem["code"]) == (422, "REQUEST_INVALID")
    assert problem["errors"][0]["pointer"].startswith(pointer)


def test_nobody_hands_out_more_than_he_has(wire: Wire) -> None:
    maker = wire.key(scopes=["keys:admin"])["secret"]

    problem = wire.refused("POST", "/v1/keys", {"name": "x", "scopes": ["*"]}, key=maker)

    assert (problem["status"], problem["code"]) == (403, "FORBIDDEN")
    assert problem["errors"][0]["pointer"] == "/scopes"


def test_another_tenants_key_is_not_there_and_stays_as_it_was(wire: Wire) -> None:
    """BC-093."""
    mine = wire.key(scopes=["state:read"])
    stranger = wire.key(scopes=["keys:admin"], tenants=["other"])["secret"]

    for method, path in (("DELETE", "/v1/keys/{}"), ("POST", "/v1/keys/{}/rotate")):
        body = {} if method == "POST" else None
        found = [
            wire.refused(method, path.format(key_id), body, key=stranger)
            for key_id in (mine["key_id"], "000000000000")
        ]
        for problem in found:
            del problem["request_id"]
        assert found[0] == found[1]
        assert found[0]["code"] == "KEY_NOT_FOUND"
    assert wire.get("/v1/auth/me", key=mine["secret"])
    listed = wire.get("/v1/keys", key=stranger)["items"]
    assert [item["tenants"] for item in listed] == [["other"]]


def test_pages_follow_each_other_and_a_cursor_is_good_for_its_own_list_alone(wire: Wire) -> None:
    mine = [wire.key(tenants=["pages"])["key_id"] for _ in range(5)]
    reader = wire.key(scopes=["keys:admin"], tenants=["pages"])
    mine = [reader["key_id"], *mine[::-1]]
    seen, cursor = [], ""
    while cursor is not None:
        page = wire.get(f"/v1/keys?limit=2{cursor and '&cursor='}{cursor}", key=reader["secret"])
        seen += [item["key_id"] for item in page["items"]]
        first, cursor = cursor, page["next_cursor"]
        if not first:
            stolen = cursor

    assert sorted(seen) == sorted(mine)
    assert len(seen) == len(set(seen))
    for path in (f"/v1/keys?cursor={stolen}", f"/v1/grants?cursor={stolen}", "/v1/keys?cursor=x"):
        problem = wire.refused("GET", path)
        assert (problem["status"], problem["code"]) == (400, "REQUEST_MALFORMED")
    assert wire.refused("GET", "/v1/keys?limit=501")["code"] == "REQUEST_INVALID"


def test_a_repeated_creation_ends_the_first_key(wire: Wire) -> None:
    body = {"name": "once", "tenants": ["acme"], "scopes": []}
    once = {"Idempotency_Key": "k-1"}

    first = wire.call("POST", "/v1/keys", body, **once)
    second = wire.call("POST", "/v1/keys", body, **once)

    assert (first.status, second.status) == (201, 201)
    assert wire.reasons(first.body["secret"]) == ["revoked"]
    assert wire.get("/v1/auth/me", key=second.body["secret"])
    other = wire.refused("POST", "/v1/keys", body | {"name": "x"}, **once)
    assert other["code"] == "REQUEST_INVALID"
    empty = wire.refused("POST", "/v1/keys", body, Idempotency_Key="")
    assert empty["code"] == "REQUEST_INVALID"


# The door


def test_who_brings_no_valid_key_is_told_nothing(wire: Wire) -> None:
    """BC-095: malformed, unknown and wrong secrets get the same answer."""
    good = wire.key()["secret"]
    other = wire.key()["secret"]
    gone = wire.key()
    wire.call("DELETE", f"/v1/keys/{gone['key_id']}")
    bearers = [
        "x",
        "felt_s_",
        good[:-1],
        good[:-1] + ("0" if good[-1] != "0" else "1"),
        _with_secret_of(good, other),
        _with_secret_of(gone["secret"], other),
        _with_id(good, "000000000000"),
    ]

    told = [wire.call("GET", "/v1/auth/me", key=bearer) for bearer in bearers]
    told.append(wire.call("GET", "/v1/auth/me", key=""))
    for scheme in ("Bearer:", "Bearer  ", "Basic ", ""):
        told.append(wire.call("GET", "/v1/auth/me", key="", Authorization=scheme + good))

    for answer in told:
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        del answer.body["request_id"]
        assert answer.body == told[0].body
        assert "reasons" not in answer.body


def _with_secret_of(text: str, other: str) -> str:
    from feltd.identity import bearer

    body = text[:20] + other[20:63]
    return body + bearer.checksum(body.encode())


def _with_id(text: str, key_id: str) -> str:
    from feltd.identity import bearer

    body = text[:7] + key_id + text[19:63]
    return body + bearer.checksum(body.encode())


def test_a_scope_opens_its_routes_and_no_others(wire: Wire) -> None:
    reader = wire.key(scopes=["workers:read"])["secret"]

    assert wire.get("/v1/workers", key=reader)["items"] == []
    for method, path in (("GET", "/v1/keys"), ("GET", "/v1/grants"), ("POST", "/v1/workers")):
        assert wire.refused(method, path, key=reader)["code"] == "FORBIDDEN"
    assert wire.get("/health", key="")["status"]


def test_a_key_of_another_namespace_is_good_for_nothing_here(wire: Wire) -> None:
    problem = wire.refused("POST", "/v1/keys", {"name": "x", "namespaces": ["staging"]})
    assert problem["errors"][0]["pointer"] in ("/tenants", "/namespaces")
    # The local operator may, for a daemon that serves a copy elsewhere.
    options = ("--name", "x", "--tenant", "acme", "--namespace", "staging")
    ran = feltd("keys", "create", *options, "--data", str(wire.data), "--json")
    assert ran.returncode == 0, ran.stderr

    problem = wire.refused("GET", "/v1/auth/me", key=json.loads(ran.stdout)["secret"])

    assert (problem["code"], "reasons" in problem) == ("UNAUTHENTICATED", False)
    assert "namespace" in problem["detail"]


def test_a_revocation_by_another_process_holds_at_the_next_call(wire: Wire) -> None:
    """BC-089: through the command line, and by a hand that types SQL."""
    by_command, by_hand = wire.key(), wire.key()
    for made in (by_command, by_hand):
        assert wire.get("/v1/auth/me", key=made["secret"])

    ran = feltd(
        "keys",
        "revoke",
        "--id",
        by_command["key_id"],
        env={"FELTD_URL": wire.daemon.url, "FELTD_KEY": wire.daemon.key},
    )
    assert ran.returncode == 0, ran.stderr
    assert f"API key revoked: {by_command['key_id']}" in ran.stdout
    assert wire.reasons(by_command["secret"]) == ["revoked"]

    conn = sqlite3.connect(wire.data, timeout=5)
    conn.execute(
        "UPDATE keys SET revoked_at_ms = 1, revoked_reason = 'revoked' WHERE key_id = ?",
        (by_hand["key_id"],),
    )
    conn.commit()
    conn.close()
    wire.eventually(lambda: wire.call("GET", "/v1/auth/me", key=by_hand["secret"]).status == 401)
    assert wire.reasons(by_hand["secret"]) == ["revoked"]
    # Nobody else was locked out.
    assert wire.get("/v1/auth/me")


def test_the_local_socket_lets_its_operator_in_and_a_bearer_there_is_itself(wire: Wire) -> None:
    import http.client
    import socket

    def call(**headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(wire.data) + ".sock")
        connection.request("GET", "/v1/auth/me", headers=headers)
        answer = connection.getresponse()
        body = json.loads(answer.read())
        connection.close()
        return answer.status, body

    status, me = call()
    assert (status, me["subject"]) == (200, {"kind": "service", "id": "local"})
    assert me["principal"]["scopes"] == ["*"]
    made = wire.key()
    status, me = call(Authorization=f"Bearer {made['secret']}")
    assert (status, me["principal"]["key_id"]) == (200, made["key_id"])
    assert call(Authorization="Bearer x")[0] == 401


def test_no_secret_reaches_log_database_metrics_or_error(wire: Wire) -> None:
    """BC-092: a bearer in the wrong places, through 200, 401, 404, 422; then look everywhere."""
    canary = wire.key(name="canary", scopes=["*"])["secret"]
    _, enrolled = wire.enrolled()
    token = wire.grant()["token"]
    wire.register(enrolled, "canary", authorization_grant=token)
    answers = [
        wire.call("GET", f"/v1/auth/me?token={canary}", key=""),
        wire.call("GET", f"/v1/auth/me?api_key={canary}", key=""),
        wire.call("GET", f"/v1/keys/{canary}", key=""),
        wire.call("DELETE", f"/v1/keys/{canary}"),
        wire.call("GET", "/v1/auth/me", key="", Authorization=f"Baerer {canary}"),
        wire.call("GET", "/v1/auth/me", key="", Authorization=f"Bearer {canary}x"),
        wire.call("POST", "/v1/keys", {"name": "x", "scopes": canary}),
        wire.call("POST", "/v1/workers", {"name": "x", "authorization_grant": token}),
        wire.call("GET", "/v1/auth/me", key=canary),
        wire.call("GET", "/v1/keys", key=canary),
        wire.call("GET", "/metrics"),
    ]
    secrets = [canary, canary[20:], enrolled[20:], token.split(".")[2]]

    shown = [json.dumps(answer.body) + json.dumps(answer.headers) for answer in answers]
    for place, text in enumerate(shown):
        for secret in secrets:
            assert secret not in text, answers[place].status
    written = b"".join(
        path.read_bytes()
        for path in wire.data.parent.iterdir()
        if path.is_file() and path.name != "signing.keyring"
    )
    for secret in secrets:
        assert secret.encode() not in written
    assert wire.data.stat().st_mode & 0o077 == 0
    assert (wire.data.parent / "signing.keyring").stat().st_mode & 0o777 == 0o600


def test_a_daemon_does_not_start_with_a_keyring_that_others_can_read(wire: Wire) -> None:
    ring = wire.data.parent / "loose.keyring"
    ring.write_bytes((wire.data.parent / "signing.keyring").read_bytes())
    ring.chmod(0o644)
    made = feltd("init", "--data", str(wire.data.parent / "other.db"))
    assert made.returncode == 0, made.stderr

    ran = subprocess.run(
        (
            *(sys.executable, *FELTD[1:]),
            *("serve", "--data", str(wire.data.parent / "other.db"), "--port", "0"),
            *("--keyring", str(ring)),
        ),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert ran.returncode == 1
    assert "chmod 600" in ran.stderr
    assert "Traceback" not in ran.stderr
