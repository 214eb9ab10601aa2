"""The API for people: /docs, rendered here from the same OpenAPI document the daemon serves.

No key, no script, nothing from elsewhere. What is shown is what a generator reads, turned into
words; nothing is told here that the document does not say.
"""

import asyncio
import json
from typing import Annotated, Any
from weakref import WeakKeyDictionary

from msgspec import Meta, Struct

import feltd
from feltd.api import openapi
from feltd.api.request import Reply, Request
from feltd.api.routes import Route, Routes
from feltd.console import frame
from feltd.errors import TABLE

#: The page is made once for a daemon, but for what somebody searches for.
KEPT = "docs"
METHODS = ("get", "post", "put", "patch", "delete")
#: What a caller must hold, where it is no scope.
NO_SCOPE = {"any": "any key", "worker": "the worker's own key", "none": "no key"}

Search = Annotated[str, Meta(max_length=64)]


class DocsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`q`: words that an operation must hold, each of them; case aside."""

    q: Search = ""


class Piece(Struct, frozen=True):
    """A piece of a type in words; `shape` where it names one."""

    text: str
    shape: str = ""


class Member(Struct, frozen=True):
    """A member of a shape, or a parameter of an operation."""

    name: str
    kind: list[Piece]
    required: bool
    default: str = ""
    place: str = ""


class Shape(Struct, frozen=True):
    """A named shape of bodies and answers."""

    name: str
    about: str
    members: list[Member]


class Operation(Struct, frozen=True):
    """One operation as it is shown. `scope` says what its caller must hold."""

    id: str
    method: str
    path: str
    summary: str
    scope: str
    parameters: list[Member]
    body: list[Piece]
    body_required: bool
    answer: list[Piece]
    statuses: list[tuple[str, str]]
    example: str
    command: str

    def holds(self, words: list[str]) -> bool:
        """Whether each word stands in what is told of it."""
        told = f"{self.id} {self.method} {self.path} {self.summary} {self.scope}".lower()
        return all(word in told for word in words)


class Section(Struct, frozen=True):
    """The operations of one noun."""

    noun: str
    operations: list[Operation]


#: What is told of each table, made when somebody first reads of it.
_BOOKS: WeakKeyDictionary[Routes, tuple[list[Section], list[Shape]]] = WeakKeyDictionary()


async def read_docs(request: Request) -> Reply:
    """GET /docs, whole or narrowed to what was searched for."""
    asked = request.query(DocsQuery).q.strip()
    table = request.scope["app"].table
    if not asked and KEPT in table.pages:
        body = table.pages[KEPT]
        return Reply(200, body, [*frame.HEADERS, (b"content-length", b"%d" % len(body))])
    # Some 100 ms the first time: whoever works shall not wait for whoever reads.
    answer = await asyncio.to_thread(_write, request, table, asked)
    if not asked:
        table.pages[KEPT] = answer.body
    return answer


def _write(request: Request, table: Routes, asked: str) -> Reply:
    book = _BOOKS.get(table)
    if book is None:
        document = openapi.document(table.routes)
        book = _BOOKS[table] = sections(document), shapes(document)
    words = asked.lower().split()
    found = [Section(one.noun, [op for op in one.operations if op.holds(words)]) for one in book[0]]
    return frame.write(
        request,
        "docs",
        version=feltd.__version__,
        asked=asked,
        sections=[one for one in found if one.operations],
        shapes=[] if asked else book[1],
        codes=[] if asked else sorted(TABLE.items()),
    )


def sections(document: dict[str, Any]) -> list[Section]:
    """The operations of a document, noun by noun, each in the order of the document."""
    nouns: dict[str, list[Operation]] = {}
    for path, methods in document["paths"].items():
        for method in METHODS:
            if method in methods:
                told = methods[method]
                nouns.setdefault(told["tags"][0], []).append(_operation(method, path, told))
    return [Section(noun, nouns[noun]) for noun in sorted(nouns)]


def shapes(document: dict[str, Any]) -> list[Shape]:
    """The named shapes of a document, by name."""
    schemas = document["components"]["schemas"]
    return [
        Shape(name, _about(schemas[name]), _members(schemas[name]))
        for name in sorted(schemas, key=str.lower)
    ]


def kind(schema: dict[str, Any]) -> list[Piece]:
    """A schema in words: what a value of it is, with its bounds."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return [Piece(name, name)]
    for either in ("anyOf", "oneOf"):
        if either in schema:
            return _joined([kind(part) for part in schema[either]])
    if "const" in schema:
        return [Piece(json.dumps(schema["const"]))]
    if "enum" in schema:
        words = ["null" if word is None else str(word) for word in schema["enum"]]
        return [Piece(" | ".join(words))]
    told = schema.get("type")
    if isinstance(told, list):
        return _joined([kind({**schema, "type": one}) for one in told])
    if told == "array":
        return [Piece("["), *kind(schema.get("items") or {}), Piece("]" + _bounds(schema))]
    if told == "object" and isinstance(schema.get("additionalProperties"), dict):
        return [Piece("{name: "), *kind(schema["additionalProperties"]), Piece("}")]
    return [Piece("any JSON" if told is None else told + _bounds(schema))]


def _operation(method: str, path: str, told: dict[str, Any]) -> Operation:
    body = told.get("requestBody", {})
    content = body.get("content", {}).get("application/json", {})
    example = ""
    if "example" in content:
        example = json.dumps(content["example"], indent=2, ensure_ascii=False)
    scope = str(told.get("x-required-scope", "none"))
    return Operation(
        id=told["operationId"],
        method=method.upper(),
        path=path,
        summary=told["summary"],
        scope=NO_SCOPE.get(scope, scope),
        parameters=[_parameter(one) for one in told.get("parameters", ())],
        body=kind(content["schema"]) if content else [],
        body_required=bool(body.get("required")),
        answer=_answer(told["responses"]),
        statuses=[
            (status, response["description"])
            for status, response in sorted(told["responses"].items())
            if "description" in response
        ],
        example=example,
        command=_command(method.upper(), path, scope, content.get("example")),
    )


def _command(method: str, path: str, scope: str, example: object) -> str:
    """The call as a command of curl, over as many lines as it has parts."""
    parts = [f'curl -sS -X {method} "$FELTD_URL{path}"']
    if scope != "none":
        parts.append('-H "Authorization: Bearer $FELTD_KEY"')
    if example is not None:
        text = json.dumps(example, ensure_ascii=False).replace("'", "'\\''")
        parts += ["-H 'Content-Type: application/json'", f"-d '{text}'"]
    return " \\\n  ".join(parts)


def _answer(responses: dict[str, Any]) -> list[Piece]:
    for status, response in responses.items():
        if status.startswith("2"):
            content = response.get("content", {}).get("application/json", {})
            return kind(content["schema"]) if content else []
    return []


def _parameter(told: dict[str, Any]) -> Member:
    schema = told["schema"]
    return Member(
        told["name"], kind(schema), bool(told.get("required")), _default(schema), told["in"]
    )


def _members(schema: dict[str, Any]) -> list[Member]:
    required = schema.get("required", ())
    return [
        Member(name, kind(member), name in required, _default(member))
        for name, member in schema.get("properties", {}).items()
    ]


def _about(schema: dict[str, Any]) -> str:
    return str(schema.get("description", "")).replace("`", "")


def _default(schema: dict[str, Any]) -> str:
    return json.dumps(schema["default"]) if "default" in schema else ""


def _bounds(schema: dict[str, Any]) -> str:
    for low, high, what in (
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " items"),
    ):
        least, most = schema.get(low), schema.get(high)
        if least is not None and most is not None:
            return f" {least}…{most}{what}"
        if most is not None:
            return f" ≤ {most}{what}"
        if least is not None:
            return f" ≥ {least}{what}"
    return ""


def _joined(parts: list[list[Piece]]) -> list[Piece]:
    joined: list[Piece] = []
    for place, part in enumerate(parts):
        joined += ([Piece(" | ")] if place else []) + part
    return joined


ROUTES = (
    Route(
        method="GET",
        path="/docs",
        operation="read_docs",
        tag="console",
        handler=read_docs,
        summary="The API for people",
        auth="none",
        page=True,
        query=DocsQuery,
    ),
)
