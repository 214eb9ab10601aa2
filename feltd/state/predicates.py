"""Conditions on a change: a bounded tree over dotted paths, judged without side effect.

What is not there equals nothing, not even null; what cannot be compared is not met. Whether a tree
makes sense is asked once, when it comes in or is read; judging it then never raises.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET

from feltd.errors import Refused
from feltd.model.trigger import LEVELS_MAX, MEMBERS_MAX, NODES_MAX, THOROUGH_MAX, Predicate
from feltd.state.paths import MISSING, among, at, is_number, same

COMBINING = frozenset({"all", "any", "not"})
#: They look through whole values, as large as a record may be.
THOROUGH = frozenset({"changed", "contains"})
ROOTS = ("before", "after")

Judge = Callable[[Any, Any], bool]


def check(predicate: Predicate) -> None:
    """Refuse TRIGGER_INVALID, with a pointer, for a tree that means nothing or is too large.

    At most LEVELS_MAX levels and NODES_MAX nodes, THOROUGH_MAX of them `changed` or `contains`;
    `in` takes up to MEMBERS_MAX members.
    """
    waiting = [(predicate, "/predicate", 1)]
    nodes = thorough = 0
    while waiting:
        node, pointer, level = waiting.pop()
        nodes += 1
        if nodes > NODES_MAX:
            raise _invalid("/predicate", f"has more than {NODES_MAX} nodes")
        thorough += node.op in THOROUGH
        if thorough > THOROUGH_MAX:
            raise _invalid(
                pointer, f"is one too many: changed and contains stand {THOROUGH_MAX} times"
            )
        if level > LEVELS_MAX:
            raise _invalid("/predicate", f"is nested more than {LEVELS_MAX} deep")
        if node.op in COMBINING:
            _check_combining(node, pointer)
            args = node.args or ()
            waiting += [
                (arg, f"{pointer}/args/{place}", level + 1) for place, arg in enumerate(args)
            ]
        else:
            _check_comparing(node, pointer)


def effort(predicate: Predicate | None) -> tuple[int, int]:
    """How much judging takes: nodes in all, and those that look through whole values."""
    nodes, waiting = list[Predicate](), [] if predicate is None else [predicate]
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        waiting += node.args or ()
    return len(nodes), sum(node.op in THOROUGH for node in nodes)


def matches(predicate: Predicate | None, before: Any, after: Any) -> bool:
    """Whether a change meets a condition that `check` took; without one each does.

    `before` and `after` are JSON values, MISSING where the record was or is not there.
    """
    return predicate is None or _met(predicate, {"before": before, "after": after})


def _met(node: Predicate, change: Mapping[str, Any]) -> bool:
    if node.op in COMBINING:
        met = (_met(arg, change) for arg in node.args or ())
        if node.op == "all":
            return all(met)
        return any(met) if node.op == "any" else not any(met)
    steps = tuple(str(node.field).split("."))
    if node.op == "changed":
        return not same(at(change["before"], steps), at(change["after"], steps))
    found = at(change[steps[0]], steps[1:])
    if node.op == "exists":
        return (found is not MISSING) is (node.value is not False)
    return COMPARE[node.op](found, node.value)


def _equal(found: Any, value: Any) -> bool:
    return found is not MISSING and same(found, value)


def _ordered(compare: Judge) -> Judge:
    """A comparison of two numbers or two texts; anything else is not met."""

    def judge(found: Any, value: Any) -> bool:
        if is_number(found) and is_number(value):
            return compare(found, value)
        return isinstance(found, str) and isinstance(value, str) and compare(found, value)

    return judge


def _within(found: Any, value: Any) -> bool:
    return isinstance(value, list) and any(_equal(found, member) for member in value)


def _begins(found: Any, value: Any) -> bool:
    return isinstance(found, str) and isinstance(value, str) and found.startswith(value)


def _holds(found: Any, value: Any) -> bool:
    if isinstance(found, str):
        return isinstance(value, str) and value in found
    if not isinstance(found, list):
        return False
    if isinstance(value, bool):
        return any(member is value for member in found)
    if is_number(value):
        return any(member == value and not isinstance(member, bool) for member in found)
    if not isinstance(value, list | dict):
        return value in found
    return among(found, value)


COMPARE: Mapping[str, Judge] = {
    "eq": _equal,
    "ne": lambda found, value: not _equal(found, value),
    "lt": _ordered(lambda found, value: found < value),
    "le": _ordered(lambda found, value: found <= value),
    "gt": _ordered(lambda found, value: found > value),
    "ge": _ordered(lambda found, value: found >= value),
    "in": _within,
    "prefix": _begins,
    "contains": _holds,
}


def _check_combining(node: Predicate, pointer: str) -> None:
    if node.field is not UNSET or node.value is not UNSET:
        raise _invalid(pointer, f"{node.op} takes args, neither field nor value")
    if not isinstance(node.args, tuple):
        raise _invalid(f"{pointer}/args", "is required")
    if node.op == "not" and len(node.args) != 1:
        raise _invalid(f"{pointer}/args", "not takes exactly one")


def _check_comparing(node: Predicate, pointer: str) -> None:
    if node.args is not UNSET:
        raise _invalid(f"{pointer}/args", f"{node.op} takes none")
    if not isinstance(node.field, str):
        raise _invalid(f"{pointer}/field", "is required")
    root = node.field.split(".")[0]
    if node.op == "changed":
        if node.value is not UNSET:
            raise _invalid(f"{pointer}/value", "changed takes none")
        if root in ROOTS:
            raise _invalid(f"{pointer}/field", "of changed is a path without before and after")
        return
    if root not in ROOTS:
        raise _invalid(f"{pointer}/field", "begins with before or after")
    if node.op == "exists":
        if node.value is not UNSET and not isinstance(node.value, bool):
            raise _invalid(f"{pointer}/value", "of exists is true or false")
        return
    if node.value is UNSET:
        raise _invalid(f"{pointer}/value", "is required")
    _check_value(node, pointer)


def _check_value(node: Predicate, pointer: str) -> None:
    """A value of a kind that could ever meet the comparison."""
    if node.op == "in":
        if not isinstance(node.value, list) or len(node.value) > MEMBERS_MAX:
            raise _invalid(f"{pointer}/value", f"of in is a list of up to {MEMBERS_MAX}")
    elif node.op == "prefix":
        if not isinstance(node.value, str):
            raise _invalid(f"{pointer}/value", "of prefix is text")
    elif node.op in ("lt", "le", "gt", "ge") and not (
        isinstance(node.value, str) or is_number(node.value)
    ):
        raise _invalid(f"{pointer}/value", f"of {node.op} is a number or text")


def _invalid(pointer: str, detail: str) -> Refused:
    return Refused(
        "TRIGGER_INVALID",
        f"{pointer}: {detail}",
        errors=[{"pointer": pointer, "detail": detail}],
    )
