"""Runs the steps of a pipeline: yields what it asks of the records, is sent what it is answered.

Pure: one value goes in, one comes out, and everything between is bounded in rows and bytes before
it is made. The standard library alone, since it runs in a process that has nothing else.
"""

import json
from collections.abc import Generator
from typing import Any

from feltd.executor.steps import (
    BYTES_MAX,
    DEPTH_MAX,
    OUTPUT_BYTES_MAX,
    PROGRAMS,
    ROWS_MAX,
    VALUE_BYTES_MAX,
    Failed,
    Reference,
    Step,
    require_limit,
    require_name,
    require_query,
    require_version,
)

Asked = dict[str, Any]
Run = Generator[Asked, Any, list[Any]]
#: A step without `if_version` asks for none.
ABSENT = object()
SEARCH_LIMIT = 20
#: No list is as long as this number has digits.
PLACE_DIGITS_MAX = 9


def run(steps: tuple[Step, ...], given: Any) -> Run:
    """The run of a program on its input: a generator of what it asks, whose value is the output.

    What it asks is `{op, collection, id | query, …}` with `bytes_max` where something is read;
    it is sent the record, null for none, or what was found. Raises Failed.
    """
    return _Running(given).run(steps)


class _Running:
    """One run: what is known so far, and what is left of its bounds."""

    def __init__(self, given: Any) -> None:
        self.scope: dict[str, Any] = {"input": given, "steps": {}}
        self.output: list[Any] = []
        self.rows = 0
        self.bytes = 0
        self.output_bytes = 2

    def run(self, steps: tuple[Step, ...]) -> Run:
        for step in steps:
            if step.each is None:
                result = yield from self._step(step)
            else:
                result = yield from self._each(step)
            if step.name is not None:
                self.scope["steps"][step.name] = result
        return self.output

    def _each(self, step: Step) -> Generator[Asked, Any, Any]:
        over = self._value(step.each, BYTES_MAX)
        if not isinstance(over, list):
            raise _malformed("each is a list or a reference to one")
        results = []
        try:
            for item in over:
                self.scope["item"] = item
                result = yield from self._step(step)
                if step.name is not None:
                    results.append(result)
        finally:
            self.scope.pop("item", None)
        return results

    def _step(self, step: Step) -> Generator[Asked, Any, Any]:
        if step.op == "emit":
            return self._emit(step)
        asked = self._asked(step)
        answer = yield asked
        found = answer["items"] if step.op == "search" else [answer]
        self._count(max(1, len(found)), size(answer))
        if answer is None and step.says.get("missing") != "null":
            raise Failed(404, f"there is no record {asked['collection']}/{asked['id']}")
        return answer

    def _asked(self, step: Step) -> Asked:
        """What the step asks, all of it known. Raises Failed."""
        left = BYTES_MAX - self.bytes
        says = {name: self._value(one, left) for name, one in step.says.items()}
        asked: Asked = {"op": step.op}
        asked["collection"] = require_name(says["collection"], "collection", _malformed)
        if step.op == "search":
            asked["query"] = require_query(says["query"], _malformed)
            asked["limit"] = require_limit(says.get("limit", SEARCH_LIMIT), _malformed)
            asked["cursor"] = _cursor(says.get("cursor"))
        else:
            asked["id"] = require_name(says["id"], "id", _malformed)
        if step.op in ("put", "patch"):
            if asked["collection"] == PROGRAMS:
                raise Failed(403, f"a program does not write {PROGRAMS}")
            asked["value"] = says["value"]
            if "if_version" in says:
                asked["if_version"] = require_version(says["if_version"], _malformed)
            size_bytes = size(says["value"])
            if size_bytes > VALUE_BYTES_MAX:
                raise _malformed(f"value takes {size_bytes} bytes, {VALUE_BYTES_MAX} are allowed")
            self._count(0, size_bytes)
        if step.op in ("get", "search"):
            asked["bytes_max"] = left
        return asked

    def _emit(self, step: Step) -> Any:
        value = self._value(step.says["value"], OUTPUT_BYTES_MAX - self.output_bytes)
        # The list around it is a level of its own.
        if depth_over(value, DEPTH_MAX - 1):
            raise Failed(413, f"the output is more than {DEPTH_MAX} deep")
        self._count(1, 0)
        self.output_bytes += size(value) + 1
        if self.output_bytes > OUTPUT_BYTES_MAX:
            raise _too_much()
        self.output.append(value)
        return value

    def _count(self, rows: int, taken: int) -> None:
        self.rows += rows
        self.bytes += taken
        if self.rows > ROWS_MAX:
            raise Failed(413, f"it reads, writes and emits more than {ROWS_MAX} rows")
        if self.bytes > BYTES_MAX:
            raise Failed(413, f"it reads and writes more than {BYTES_MAX} bytes")

    def _value(self, template: Any, left: int) -> Any:
        return _Filling(self.scope, left).value(template)


class _Filling:
    """Fills the references of one template, and stops as soon as it grows beyond what is left."""

    def __init__(self, scope: dict[str, Any], left: int) -> None:
        self.scope = scope
        self.left = left

    def value(self, template: Any) -> Any:
        if isinstance(template, Reference):
            found = self._found(template)
            self.left -= size(found)
            if self.left < 0:
                raise _too_much()
            return found
        if isinstance(template, list):
            return [self.value(one) for one in template]
        if isinstance(template, dict):
            return {name: self.value(one) for name, one in template.items()}
        return template

    def _found(self, reference: Reference) -> Any:
        found: Any = self.scope
        for part in reference.path:
            found = _member(found, part)
            if found is ABSENT:
                if reference.has_default:
                    return self.value(reference.default)
                raise _malformed(f"{reference.written} is not there")
        return found


def _member(value: Any, part: str | int) -> Any:
    """A member of an object or an item of a list; ABSENT where there is none."""
    if isinstance(value, dict):
        return value.get(str(part), ABSENT)
    place = str(part)
    if isinstance(value, list) and place.isdecimal() and len(place) <= PLACE_DIGITS_MAX:
        return value[int(place)] if int(place) < len(value) else ABSENT
    return ABSENT


def _cursor(value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and 1 <= len(value) <= 4_096):
        raise _malformed("cursor is what an earlier search gave")
    return value


def size(value: Any) -> int:
    """Bytes of a value as JSON."""
    return len(written(value))


def written(value: Any) -> bytes:
    """A value as JSON, without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def depth_over(value: Any, most: int) -> bool:
    """Whether lists and objects lie in one another more than `most` times."""
    if not isinstance(value, list | dict):
        return False
    if most <= 0:
        return True
    inside = value.values() if isinstance(value, dict) else value
    return any(depth_over(one, most - 1) for one in inside)


def _malformed(why: str) -> Failed:
    return Failed(422, why)


def _too_much() -> Failed:
    return Failed(413, f"the output is over {OUTPUT_BYTES_MAX} bytes, or a value over {BYTES_MAX}")
