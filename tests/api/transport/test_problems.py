"""Refusals as a client reads them, and the pages that explain them."""

import json

import pytest

from feltd.api import problems
from feltd.errors import NEXTS, TABLE, Refused
from tests.api.transport.kit import House


def problem(code: str, **facts: object) -> tuple[int, dict[str, object], dict[str, str]]:
    status, body, headers = problems.render(Refused(code, "why", **facts), "r-1")
    return status, json.loads(body), {name.decode(): text.decode() for name, text in headers}


@pytest.mark.parametrize("code", sorted(TABLE))
def test_every_code_is_answered_with_what_a_client_needs(code: str) -> None:
    status, members, headers = problem(code)
    row = TABLE[code]

    assert status == members["status"] == row.status
    assert headers["content-type"] == "application/problem+json"
    assert list(members)[:8] == [
        "type",
        "title",
        "status",
        "detail",
        "error",
        "code",
        "next",
        "request_id",
    ]
    assert members["type"] == f"/errors/{code}"
    assert members["detail"] == members["error"] == "why"
    assert members["code"] == code
    assert members["next"] in NEXTS
    assert members["request_id"] == "r-1"
    if status == 503:
        assert headers["retry-after"] == "1"
        assert members["committed"] == ("unknown" if code == "OUTCOME_UNKNOWN" else False)
    else:
        assert "retry-after" not in headers
        assert "committed" not in members


def test_facts_are_members_and_cannot_replace_the_documents_own() -> None:
    _, members, _ = problem(
        "WORKER_RECOVERY_REQUIRED", offline_reason="drained", next="stop", status=200, type="x"
    )

    assert members["offline_reason"] == "drained"
    assert members["next"] == "stop"
    assert (members["status"], members["type"]) == (409, "/errors/WORKER_RECOVERY_REQUIRED")


def test_headers_that_are_facts_are_no_members() -> None:
    _, members, headers = problem("SERVICE_OVERLOADED", retry_after_s=4)
    assert headers["retry-after"] == "4"
    assert "retry_after_s" not in members
    _, members, headers = problem("METHOD_NOT_ALLOWED", allow="GET, HEAD")
    assert headers["allow"] == "GET, HEAD"
    assert "allow" not in members
    assert problem("UNAUTHENTICATED")[2]["www-authenticate"] == 'Bearer realm="feltd"'


def test_a_refusal_over_the_wire_is_that_document(house: House) -> None:
    answer = house.call("POST", "/v1/unknown", X_Request_Id="mine")

    assert (answer.status, answer.code) == (503, "OUTCOME_UNKNOWN")
    assert answer.json["committed"] == "unknown"
    assert answer.json["request_id"] == "mine"
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("code", sorted(TABLE))
def test_every_code_has_a_page_that_needs_no_key(house: House, code: str) -> None:
    answer = house.call("GET", f"/errors/{code}", Authorization="")
    page = answer.json

    assert answer.status == 200
    assert (page["code"], page["status"]) == (code, TABLE[code].status)
    assert page["meaning"]
    assert page["cause"]
    assert page["next_step"]
    assert page["next"] == TABLE[code].next
    assert page["example"]["type"] == f"/errors/{code}"


def test_a_code_that_is_none_has_no_page(house: House) -> None:
    answer = house.call("GET", "/errors/%3Cscript%3E")
    assert (answer.status, answer.code) == (404, "ROUTE_NOT_FOUND")
    assert "\n" not in answer.json["detail"]
