"""The OpenAPI page, made from the route table and the Structs the handlers decode and answer.

operationId is the verb, the tag is the noun; what a caller must hold is `x-required-scope`. It is
3.1; the 3.0 form is turned from it for generators that know no other.
"""

import re
from collections.abc import Iterable
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

import feltd
from feltd.api.routes import Route

PROBLEM_REF = {"$ref": "#/components/responses/Problem"}
_NAMED = re.compile(r"\{([^}]+)\}")
_SUCCESS = {200: "Done", 201: "Made", 202: "Taken", 204: "Done, nothing to say"}
_NAME_CHARS = re.compile(r"[^A-Za-z0-9._-]")

_PROBLEM = {
    "type": "object",
    "required": [
        "type",
        "title",
        "status",
        "detail",
        "error",
        "code",
        "next",
        "request_id",
    ],
    "properties": {
        "type": {"type": "string", "description": "/errors/<CODE>, a page that explains it"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "error": {"type": "string", "description": "the same as detail"},
        "code": {"type": "string"},
        "next": {"type": "string", "description": "what the client does now"},
        "request_id": {"type": "string"},
    },
    "additionalProperties": True,
}


def document(routes: Iterable[Route], version: str = "3.1") -> dict[str, Any]:
    """The whole page as JSON-able members. `version` is "3.1" or "3.0"."""
    table = tuple(route for route in routes if not route.page)
    shapes = _Shapes(table)
    paths: dict[str, dict[str, Any]] = {}
    used: set[str] = set()
    for route in table:
        for path in (route.path, *route.also):
            operation = _operation(route, path, shapes)
            operation["operationId"] = _unique(route, path, used)
            paths.setdefault(path, {})[route.method.lower()] = operation
    page = {
        "openapi": "3.1.0",
        "info": {
            "title": "feltd",
            "version": feltd.__version__,
            "description": "Durable work, leases and fencing tokens for workers anywhere.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": shapes.components | {"Problem": _PROBLEM},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Problem": {
                    "description": "A refusal: match `code` and do `next`.",
                    "content": {
                        "application/problem+json": {
                            "schema": {"$ref": "#/components/schemas/Problem"}
                        }
                    },
                }
            },
        },
        "tags": [{"name": name} for name in sorted({route.tag for route in table})],
    }
    return page if version == "3.1" else _turned_to_3_0(page)


class _Shapes:
    """The schema of each type of the table.

    msgspec describes what it can decode. An answer may also hold what it only encodes, a choice
    between two Structs: such a type is taken apart here and its parts are described.
    """

    def __init__(self, table: Iterable[Route]) -> None:
        self._kinds: list[Any] = []
        for route in table:
            for kind in (route.body, route.answer, *route.plain.values()):
                if kind is not None:
                    self._collect(kind)
        self._schemas, self.components = msgspec.json.schema_components(
            self._kinds, ref_template="#/components/schemas/{name}"
        )

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema, or a reference to it."""
        if kind in self._kinds:
            return self._schemas[self._kinds.index(kind)]
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self._put_together(kind)
        origin, parts = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self.of(parts[0])
        if origin in (Union, UnionType):
            return {"anyOf": [self.of(part) for part in parts]}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.of(parts[1])}
        return {"type": "array", "items": self.of(parts[0])}

    def _put_together(self, kind: type[msgspec.Struct]) -> dict[str, Any]:
        name = kind.__name__
        if name not in self.components:
            fields = msgspec.structs.fields(kind)
            self.components[name] = {
                "title": name,
                "type": "object",
                "properties": {field.encode_name: self.of(field.type) for field in fields},
                "required": [field.encode_name for field in fields if field.required],
            }
        return {"$ref": f"#/components/schemas/{name}"}

    def _collect(self, kind: Any) -> None:
        if kind in self._kinds or kind is Ellipsis:
            return
        try:
            msgspec.inspect.type_info(kind)
        except TypeError:
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                parts: Iterable[Any] = [field.type for field in msgspec.structs.fields(kind)]
            else:
                parts = get_args(kind)
            for part in parts:
                self._collect(part)
        else:
            self._kinds.append(kind)


def _operation(route: Route, path: str, shapes: _Shapes) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": route.summary, "tags": [route.tag]}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _NAMED.findall(path)
    ]
    parameters += _query_parameters(route.query)
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        content: dict[str, Any] = {"schema": shapes.of(route.body)}
        if route.example is not None:
            content["example"] = route.example
        required = _has_required(route.body)
        operation["requestBody"] = {
            "required": required,
            "content": {"application/json": content},
        }
    operation["responses"] = _responses(route, path, shapes)
    if route.auth != "none":
        operation["security"] = [{"bearer": []}]
        operation["x-required-scope"] = route.scope or route.auth
    else:
        operation["security"] = []
    return operation


def _responses(route: Route, path: str, shapes: _Shapes) -> dict[str, Any]:
    success: dict[str, Any] = {
        "description": route.responses.get(route.status, _SUCCESS.get(route.status, "Done"))
    }
    if route.answer is not None:
        success["content"] = {"application/json": {"schema": shapes.of(route.answer)}}
        success["content"] |= {media: {"schema": {"type": "string"}} for media in route.media}
    answers: dict[str, Any] = {str(route.status): success}
    for status, description in route.responses.items():
        if status < 400 and status != route.status:
            answers[str(status)] = success | {"description": description}
        elif status in route.plain:
            content = {"application/json": {"schema": shapes.of(route.plain[status])}}
            answers[str(status)] = {"description": description, "content": content}
        elif status >= 400:
            problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
            answers[str(status)] = {
                "description": description,
                "content": {"application/problem+json": problem},
            }
    common = ["400"]
    if route.auth != "none":
        common += ["401", "403"]
    if "{" in path:
        common.append("404")
    if route.body is not None:
        common += ["408", "413", "415", "422"]
    elif route.query is not None:
        common.append("422")
    if route.admission != "exempt":
        common.append("503")
    for status_text in common:
        answers.setdefault(status_text, PROBLEM_REF)
    answers["default"] = PROBLEM_REF
    return answers


def _query_parameters(shape: Any) -> list[dict[str, Any]]:
    if shape is None:
        return []
    (_, components) = msgspec.json.schema_components([shape], ref_template="{name}")
    own = components[_NAME_CHARS.sub("_", shape.__name__)]
    required = own.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _inline(schema)}
        for name, schema in own.get("properties", {}).items()
    ]


def _inline(schema: dict[str, Any]) -> dict[str, Any]:
    # A query parameter is a word, a number or a list of words: nothing that needs a reference.
    return {"type": "string"} if "$ref" in schema else schema


def _has_required(shape: Any) -> bool:
    if not (isinstance(shape, type) and issubclass(shape, msgspec.Struct)):
        return True
    return any(field.required for field in msgspec.structs.fields(shape))


def _unique(route: Route, path: str, used: set[str]) -> str:
    """The verb; where two nouns share one, the noun after it; a further path gets a number."""
    name = route.operation
    if name in used:
        name = f"{route.operation}_{route.tag}"
    number = 2
    while name in used:
        name, number = f"{route.operation}_{route.tag}_{number}", number + 1
    used.add(name)
    return name


def _turned_to_3_0(page: dict[str, Any]) -> dict[str, Any]:
    turned: dict[str, Any] = _older(page)
    turned["openapi"] = "3.0.3"
    turned["info"]["license"].pop("identifier")
    return turned


def _older(node: Any) -> Any:
    """One node of 3.1 JSON Schema as 3.0 knows it."""
    if isinstance(node, list):
        return [_older(member) for member in node]
    if not isinstance(node, dict):
        return node
    members = {
        name: member if name in ("example", "default") else _older(member)
        for name, member in node.items()
    }
    if "const" in members:
        members["enum"] = [members.pop("const")]
    if isinstance(members.get("examples"), list):
        members.setdefault("example", members.pop("examples")[0])
    if members.get("type") == "null":
        return {"nullable": True, "enum": [None]}
    if "prefixItems" in members:
        options = members.pop("prefixItems")
        members["items"] = {"anyOf": options} if options else {}
    elif members.get("items") is False:
        members["items"] = {}
    _without_null(members)
    for bound, edge in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if bound in members and not isinstance(members[bound], bool | dict):
            members[edge], members[bound] = members[bound], True
    for later in ("propertyNames", "$defs", "contentEncoding"):
        if not isinstance(members.get(later), dict) or "type" in members:
            members.pop(later, None)
    return members


def _without_null(members: dict[str, Any]) -> None:
    options = members.get("anyOf")
    if isinstance(options, list):
        kept = [option for option in options if option.get("enum") != [None]]
        if len(kept) < len(options):
            members["nullable"] = True
            members["anyOf"] = kept
            if len(kept) == 1 and "$ref" not in kept[0]:
                members.pop("anyOf")
                members.update(kept[0])
    if None in members.get("enum", []) and "type" in members:
        members["nullable"] = True
