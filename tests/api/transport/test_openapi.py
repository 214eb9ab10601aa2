"""The OpenAPI page says what the route table says, in both versions."""

import json
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from feltd.api import openapi
from tests.api.transport.kit import ROUTES, House
from tests.api.transport.test_routes import route


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    name: str | None = None
    kind: Literal["a", "b"] = "a"


class Whole(Struct, frozen=True, forbid_unknown_fields=True):
    part: Part
    other: Part | None = None
    count: Annotated[int, Meta(gt=0, le=9)] = 1
    pair: tuple[int, str] | None = None
    free: Any = None
    labels: dict[str, str] = {}


class Good(Struct, frozen=True):
    made: Whole


class Bad(Struct, frozen=True):
    code: str


class Many(Struct, frozen=True):
    """An answer that is only ever written: a choice between two Structs."""

    items: tuple[Good | Bad, ...]
    named: dict[str, Good | Bad | None]
    first: Annotated[Good | Bad, Meta(description="the first")] | None = None


TABLE = (
    *ROUTES,
    route("POST", "/v1/many", "make_many", body=Whole, answer=Many),
    route(
        "POST",
        "/v1/wholes/{id}",
        "make",
        body=Whole,
        answer=Whole,
        scope="workloads:create",
        auth="scope",
        example={"part": {}},
        responses={409: "It is there already"},
    ),
    route("POST", "/v1/others/{id}", "make", tag="other"),
)


@pytest.mark.parametrize("version", ["3.1", "3.0"])
def test_every_route_is_on_the_page_once(version: str) -> None:
    page = openapi.document(TABLE, version)
    told = {(method.upper(), path) for path, methods in page["paths"].items() for method in methods}
    names = [call["operationId"] for methods in page["paths"].values() for call in methods.values()]

    assert told == {(r.method, path) for r in TABLE for path in (r.path, *r.also)}
    assert len(names) == len(set(names))
    assert page["openapi"].startswith(version)
    json.dumps(page)


def dangling(page: dict[str, Any]) -> list[str]:
    """References of a page that lead nowhere."""
    lost: list[str] = []

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                found: Any = page
                for step in node["$ref"].removeprefix("#/").split("/"):
                    found = found.get(step, {})
                if not found:
                    lost.append(node["$ref"])
            for member in node.values():
                walk(member)
        elif isinstance(node, list):
            for member in node:
                walk(member)

    walk(page)
    return lost


@pytest.mark.parametrize("version", ["3.1", "3.0"])
def test_every_reference_leads_somewhere(version: str) -> None:
    assert not dangling(openapi.document(TABLE, version))


def test_an_operation_says_who_may_call_it_with_what() -> None:
    call = openapi.document(TABLE)["paths"]["/v1/wholes/{id}"]["post"]

    assert (call["operationId"], call["tags"]) == ("make", ["noun"])
    assert call["x-required-scope"] == "workloads:create"
    assert call["security"] == [{"bearer": []}]
    assert call["requestBody"]["required"] is True
    assert call["requestBody"]["content"]["application/json"]["example"] == {"part": {}}
    assert call["parameters"][0]["name"] == "id"
    assert call["responses"]["409"]["description"] == "It is there already"
    assert {"200", "400", "401", "403", "404", "413", "422", "503"} <= set(call["responses"])


def test_a_refusal_that_is_no_problem_document_is_described_as_it_is() -> None:
    told = {409: "It is there already", 503: "Not now"}
    odd = route("GET", "/odd", "odd", responses=told, plain={503: Part | Whole})
    answers = openapi.document((odd,))["paths"]["/odd"]["get"]["responses"]

    assert list(answers["409"]["content"]) == ["application/problem+json"]
    assert list(answers["503"]["content"]) == ["application/json"]
    shapes = answers["503"]["content"]["application/json"]["schema"]["anyOf"]
    assert [one["$ref"].rpartition("/")[2] for one in shapes] == ["Part", "Whole"]


def test_an_answer_with_a_choice_between_structs_is_described_part_by_part() -> None:
    schemas = openapi.document(TABLE)["components"]["schemas"]
    choice = [{"$ref": "#/components/schemas/Good"}, {"$ref": "#/components/schemas/Bad"}]

    assert schemas["Many"]["properties"]["items"] == {"type": "array", "items": {"anyOf": choice}}
    assert schemas["Many"]["required"] == ["items", "named"]
    assert schemas["Good"]["properties"]["made"] == {"$ref": "#/components/schemas/Whole"}


def test_two_nouns_may_share_a_verb() -> None:
    paths = openapi.document(TABLE)["paths"]
    assert paths["/v1/others/{id}"]["post"]["operationId"] == "make_other"


def test_open_routes_ask_for_no_key() -> None:
    call = openapi.document(TABLE)["paths"]["/health"]["get"]
    assert call["security"] == []
    assert "401" not in call["responses"]


def test_the_older_version_holds_nothing_it_does_not_know() -> None:
    page = openapi.document(TABLE, "3.0")

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            assert not {"const", "prefixItems", "$defs", "examples"} & set(node)
            assert node.get("type") != "null"
            assert not isinstance(node.get("type"), list)
            assert not isinstance(node.get("exclusiveMinimum"), int) or isinstance(
                node["exclusiveMinimum"], bool
            )
            for member in node.values():
                walk(member)
        elif isinstance(node, list):
            for member in node:
                walk(member)

    walk(page)
    whole = page["components"]["schemas"]["Whole"]["properties"]
    assert whole["other"]["nullable"] is True
    assert whole["count"]["exclusiveMinimum"] is True


def test_the_page_is_served_without_a_key_in_both_versions(house: House) -> None:
    for query, version in (("", "3.1.0"), ("?openapi=3.0", "3.0.3"), ("?openapi=3.1", "3.1.0")):
        answer = house.call("GET", f"/v1/openapi.json{query}", Authorization="")
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/json"
        assert msgspec.json.decode(answer.body)["openapi"] == version
    assert house.call("GET", "/v1/openapi.json?openapi=2").code == "REQUEST_INVALID"


def test_the_examples_of_the_table_fit_their_own_bodies() -> None:
    for row in TABLE:
        if row.example is not None:
            msgspec.convert(row.example, row.body)


def test_an_answer_that_may_also_be_a_stream_says_so() -> None:
    page = openapi.document([route("GET", "/v1/feed", "feed", answer=Whole, media=("text/x",))])

    content = page["paths"]["/v1/feed"]["get"]["responses"]["200"]["content"]

    assert set(content) == {"application/json", "text/x"}
