"""/docs: the API for people, told from the same document that generators read."""

import re

import pytest

from feltd.console.docs import kind, sections, shapes
from feltd.errors import TABLE
from tests.console.test_pages import Elements
from tests.console.town import Town


@pytest.fixture(scope="module")
def page(town: Town) -> str:
    answer = town.daemon.call("GET", "/docs", key="")
    assert answer.status == 200
    return str(answer.body)


def test_every_operation_has_its_place_its_scope_and_a_command(town: Town, page: str) -> None:
    document = town.daemon.call("GET", "/v1/openapi.json", key="").body

    ids = {one["id"] for _, one in Elements(page).found if "id" in one}
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            assert told["operationId"] in ids
            assert f"<b>{method.upper()}</b> {path}" in page
            if told.get("x-required-scope", "none") not in ("none", "any", "worker"):
                assert f'class="scope">{told["x-required-scope"]}<' in page
    assert page.count("curl -sS -X") == sum(len(one) for one in document["paths"].values())


def test_every_link_within_the_page_leads_somewhere(page: str) -> None:
    elements = Elements(page)
    ids = [one["id"] for _, one in elements.found if "id" in one]
    links = [one["href"] for one in elements.of("a")]

    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert "/v1/openapi.json" in links


def test_nothing_runs_and_nothing_comes_from_elsewhere(page: str) -> None:
    elements = Elements(page)
    loaded = [one.get("href", "") for one in elements.of("link")]
    loaded += [one.get("src", "") for one in elements.of("img")]

    assert not elements.of("script")
    assert all(address.startswith("/console/static/") for address in loaded)
    assert not re.search(r"https?://", page.replace("https://feltd", "").replace("s3://", ""))


def test_every_code_is_explained(page: str) -> None:
    for code in TABLE:
        assert f'href="/errors/{code}"' in page


def test_a_search_leaves_what_holds_all_its_words(town: Town) -> None:
    found = town.daemon.call("GET", "/docs?q=workers%3Aoperate+DRAIN", key="").body

    assert 'id="drain"' in found
    assert 'id="heartbeat"' not in found
    assert 'value="workers:operate DRAIN"' in found
    assert 'href="/docs#shape-Drained"' in found
    nothing = town.daemon.call("GET", "/docs?q=%3Cb%3Enothing", key="").body
    assert "Nothing holds these words" in nothing
    assert "<b>nothing" not in nothing


def test_types_are_told_in_words() -> None:
    def told(schema: dict[str, object]) -> str:
        return "".join(piece.text for piece in kind(schema))

    assert told({"type": "integer", "minimum": 0, "maximum": 9}) == "integer 0…9"
    assert told({"type": "string", "maxLength": 4}) == "string ≤ 4 characters"
    assert (
        told({"type": "array", "items": {"type": "string"}, "maxItems": 3}) == "[string] ≤ 3 items"
    )
    assert told({"anyOf": [{"$ref": "#/components/schemas/A"}, {"type": "null"}]}) == "A | null"
    assert told({"enum": [None, "a"]}) == "null | a"
    assert (
        told({"type": "object", "additionalProperties": {"type": "integer"}}) == "{name: integer}"
    )
    assert told({"type": ["string", "null"]}) == "string | null"
    assert told({"const": 1}) == "1"
    assert told({}) == "any JSON"


def test_a_document_without_operations_is_no_trouble() -> None:
    assert sections({"paths": {}}) == []
    (shape,) = shapes({"components": {"schemas": {"Nothing": {"type": "object"}}}})
    assert (shape.name, shape.members) == ("Nothing", [])
