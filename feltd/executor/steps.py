"""What a pipeline program may say, checked before it may run, and the bounds it runs within.

A program is data: steps over records, one after another, none of them twice but over a list. It
runs in a process that has nothing else, so this file is the standard library alone. Nothing here
reads or writes a record.
"""

import re
from typing import Any, NamedTuple

STEPS_MAX = 64
#: Records read and written and values emitted, together.
ROWS_MAX = 10_000
#: What is read and written, together, as JSON; in Python it takes some ten times as much.
BYTES_MAX = 8 * 1024 * 1024
#: What a record may have; a program writes none of the collection whose records may have more.
VALUE_BYTES_MAX = 256 * 1024
#: What a workload's output may have.
OUTPUT_BYTES_MAX = 768 * 1024
#: Free JSON anywhere in feltd.
DEPTH_MAX = 32
SEARCH_LIMIT_MAX = 500
#: Programs are not written by programs: who may write them is somebody's decision.
PROGRAMS = "_flow_capabilities"

NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._@+\-]{1,128}")
#: Where a reference may begin, beside the name of a step.
ROOTS = frozenset({"input", "item", "steps"})

#: Members of a step by what it does: those it needs, and those it may have.
MEMBERS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "get": (frozenset({"collection", "id"}), frozenset({"missing"})),
    "search": (frozenset({"collection", "query"}), frozenset({"limit", "cursor"})),
    "put": (frozenset({"collection", "id", "value"}), frozenset({"if_version"})),
    "patch": (frozenset({"collection", "id", "value"}), frozenset({"if_version"})),
    "emit": (frozenset({"value"}), frozenset()),
}
EVERY = frozenset({"op", "name", "each"})


#: The status of storage in trouble, or of a daemon that is full: later it may be well again.
UNAVAILABLE = 503


class Failed(Exception):
    """A program ended without an output. `status` is what its failure is known by.

    404 a record is missing, 408 time, 409 a precondition, 413 rows, bytes or output, 422 program
    or input malformed, 403 a collection it may not write, 500 it broke, 503 storage in trouble.
    """

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


class Malformed(ValueError):
    """What was written down is no program, and why."""


class Reference(NamedTuple):
    """`{"$": path}` or `{"$": path, "or": value}`: a value found at run time."""

    path: tuple[str | int, ...]
    default: Any
    has_default: bool

    @property
    def written(self) -> str:
        """The path as a person reads it."""
        return ".".join(str(part) for part in self.path)


class Step(NamedTuple):
    """One step: `says` are its members, with a Reference in each place where one was written."""

    op: str
    name: str | None
    each: Any
    says: dict[str, Any]


def compiled(program: Any) -> tuple[Step, ...]:
    """The steps of `{"runtime": "pipeline", "steps": [...]}`; raises Malformed, naming the step."""
    if not isinstance(program, dict) or program.get("runtime") != "pipeline":
        raise Malformed('a pipeline is {"runtime": "pipeline", "steps": [...]}')
    if extra := sorted(set(program) - {"runtime", "steps"}):
        raise Malformed(f"{extra[0]} is no member of a pipeline")
    steps = program.get("steps")
    if not isinstance(steps, list) or not 1 <= len(steps) <= STEPS_MAX:
        raise Malformed(f"steps are a list of 1 to {STEPS_MAX}")
    known: set[str] = set()
    made = []
    for place, step in enumerate(steps):
        try:
            one = _step(step, known)
        except Malformed as error:
            raise Malformed(f"steps[{place}]: {error}") from None
        if one.name is not None:
            known.add(one.name)
        made.append(one)
    return tuple(made)


def _step(step: Any, known: set[str]) -> Step:
    if not isinstance(step, dict):
        raise Malformed("a step is an object")
    op = step.get("op")
    if not isinstance(op, str) or op not in MEMBERS:
        raise Malformed(f"op is one of {', '.join(MEMBERS)}")
    needed, allowed = MEMBERS[op]
    if lacking := sorted(needed - set(step)):
        raise Malformed(f"{op} needs {lacking[0]}")
    if extra := sorted(set(step) - needed - allowed - EVERY):
        raise Malformed(f"{extra[0]} is no member of {op}")
    name = step.get("name")
    if name is not None and (not isinstance(name, str) or not NAME.fullmatch(name)):
        raise Malformed("name is 1 to 128 of A-Za-z0-9._@+-")
    if name in known:
        raise Malformed(f"{name} is the name of an earlier step")
    over = "each" in step
    says = {
        member: _template(step[member], known, over, 0) for member in sorted(needed | allowed)
        if member in step
    }  # fmt: skip
    each = _template(step["each"], known, False, 0) if over else None
    if over and not isinstance(each, Reference | list):
        raise Malformed("each is a list or a reference to one")
    _check(op, says)
    return Step(op, name, each, says)


def _check(op: str, says: dict[str, Any]) -> None:
    """What a literal shows already to be wrong."""
    for member in ("collection", "id"):
        said = says.get(member)
        if member in says and not isinstance(said, Reference):
            require_name(said, member, Malformed)
    if op in ("put", "patch") and says["collection"] == PROGRAMS:
        raise Malformed(f"a program does not write {PROGRAMS}")
    if says.get("missing", "fail") not in ("fail", "null"):
        raise Malformed("missing is fail or null")
    if not isinstance(says.get("if_version"), Reference | None):
        require_version(says["if_version"], Malformed)
    if op == "search":
        for member, check in (("query", require_query), ("limit", require_limit)):
            if member in says and not isinstance(says[member], Reference):
                check(says[member], Malformed)


def _template(value: Any, known: set[str], over: bool, depth: int) -> Any:
    """A value with its references found; those that can lead nowhere are Malformed."""
    if depth > DEPTH_MAX:
        raise Malformed(f"a value is at most {DEPTH_MAX} deep")
    if isinstance(value, list):
        return [_template(one, known, over, depth + 1) for one in value]
    if not isinstance(value, dict):
        return value
    if "$" not in value:
        return {name: _template(one, known, over, depth + 1) for name, one in value.items()}
    if extra := sorted(set(value) - {"$", "or"}):
        raise Malformed(f"a reference has no member {extra[0]}")
    path = _path(value["$"])
    if path[0] == "item" and not over:
        raise Malformed("item is there in a step with each alone")
    if path[0] == "steps" and (len(path) < 2 or path[1] not in known):
        raise Malformed(f"{'.'.join(map(str, path))} names no earlier step")
    default = _template(value["or"], known, over, depth + 1) if "or" in value else None
    return Reference(path, default, "or" in value)


def _path(written: Any) -> tuple[str | int, ...]:
    """`a.b.0`, or a list of its parts where a name holds a dot."""
    parts = written.split(".") if isinstance(written, str) else written
    if not isinstance(parts, list) or not 1 <= len(parts) <= DEPTH_MAX:
        raise Malformed("a reference is a dotted path, or a list of its parts")
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, str | int) or part == "":
            raise Malformed("the parts of a reference are names and places")
    if parts[0] not in ROOTS:
        raise Malformed(f"a reference begins with {', '.join(sorted(ROOTS))}")
    return tuple(parts)


# -- what a value has to be, in a program and again when it is known


def require_name(value: Any, member: str, wrong: Any) -> str:
    """A name of a collection or a record; raises `wrong` for anything else."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise wrong(f"{member} is 1 to 128 of A-Za-z0-9._@+-")
    return value


def require_query(value: Any, wrong: Any) -> str:
    """What is searched for: 1 to 256 characters."""
    if not isinstance(value, str) or not 1 <= len(value) <= 256:
        raise wrong("query is 1 to 256 characters")
    return value


def require_limit(value: Any, wrong: Any) -> int:
    """How many may be found: 1 to SEARCH_LIMIT_MAX."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= SEARCH_LIMIT_MAX:
        raise wrong(f"limit is 1 to {SEARCH_LIMIT_MAX}")
    return value


def require_version(value: Any, wrong: Any) -> int | None:
    """The version a record has to be at, null: it must not be there."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise wrong("if_version is a version of a record, or null")
    return value
