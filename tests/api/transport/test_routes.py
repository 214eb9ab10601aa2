"""The route table: which route a call reaches, and which tables cannot be made."""

from typing import Any

import pytest

from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route, Routes
from feltd.errors import Refused


async def handler(request: Request) -> Reply:
    return reply(204)


def route(method: str, path: str, operation: str = "verb", **more: Any) -> Route:
    more = {"auth": "any", "tag": "noun", "summary": "…", "handler": handler} | more
    return Route(method=method, path=path, operation=operation, **more)


TABLE = Routes(
    [
        route("GET", "/v1/workloads", "list"),
        route("POST", "/v1/workloads", "create"),
        route("POST", "/v1/workloads/batch", "create_batch"),
        route("GET", "/v1/workloads/{id}", "get"),
        route("PATCH", "/v1/workloads/{id}", "edit"),
        route("POST", "/v1/workloads/{id}/claim", "claim"),
        route("GET", "/v1/triggers/status", "status"),
        route("POST", "/v1/triggers/{id}/run", "run"),
        route("GET", "/v1/collections/{c}/records/{id}", "record"),
        route("GET", "/health", "health", also=("/v1/health",)),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "operation", "named"),
    [
        ("GET", "/v1/workloads", "list", {}),
        ("HEAD", "/v1/workloads", "list", {}),
        ("POST", "/v1/workloads/batch", "create_batch", {}),
        ("GET", "/v1/workloads/batch", "get", {"id": "batch"}),
        ("GET", "/v1/workloads/w-1", "get", {"id": "w-1"}),
        ("POST", "/v1/workloads/batch/claim", "claim", {"id": "batch"}),
        ("POST", "/v1/triggers/status/run", "run", {"id": "status"}),
        ("GET", "/v1/collections/a/records/b", "record", {"c": "a", "id": "b"}),
        ("GET", "/v1/health", "health", {}),
    ],
)
def test_a_call_reaches_its_route(
    method: str, path: str, operation: str, named: dict[str, str]
) -> None:
    found, parameters = TABLE.find(method, path)
    assert (found.operation, parameters) == (operation, named)


def test_a_name_may_hold_a_slash_of_its_own() -> None:
    found, parameters = TABLE.find("GET", "/v1/workloads/a/b", ["", "v1", "workloads", "a/b"])
    assert (found.operation, parameters) == ("get", {"id": "a/b"})

    with pytest.raises(Refused) as caught:
        TABLE.find("GET", "/v1/workloads", ["", "v1/workloads"])
    assert caught.value.code == "ROUTE_NOT_FOUND"


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v1/workloads/", "/v1/workloads//claim", "/V1/workloads", "/v1/workloads/a/b"],
)
def test_a_path_that_is_not_there_is_not_found(path: str) -> None:
    with pytest.raises(Refused) as caught:
        TABLE.find("GET", path)
    assert caught.value.code == "ROUTE_NOT_FOUND"
    assert TABLE.methods(path) == ()


def test_a_method_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(Refused) as caught:
        TABLE.find("DELETE", "/v1/workloads/batch")
    assert caught.value.code == "METHOD_NOT_ALLOWED"
    assert caught.value.facts["allow"] == "GET, HEAD, POST, PATCH, OPTIONS"


def test_finding_a_route_looks_at_as_many_places_whatever_the_table_holds() -> None:
    """A linear table of 60 routes costs a quarter of the throughput; this one looks twice."""
    many = Routes(route("GET", f"/v1/{noun}{i}/{{id}}") for noun in "abc" for i in range(200))
    assert len(many._shapes) == 1
    assert len(many._shapes[4]) == 1


def test_a_table_with_two_answers_to_one_call_cannot_be_made() -> None:
    for second in ("/v1/a/{id}", "/v1/a/{other}"):
        with pytest.raises(ValueError, match="two routes"):
            Routes([route("GET", "/v1/a/{id}"), route("GET", second)])


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "TRACE"},
        {"invalid_code": "NO_SUCH_CODE"},
        {"path": "v1/a"},
        {"auth": "scope"},
        {"auth": "none", "scope": "state:read"},
    ],
)
def test_a_route_that_says_what_cannot_be_is_refused_at_the_start(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="verb"):
        Routes([route(**({"method": "GET", "path": "/v1/a"} | wrong))])
