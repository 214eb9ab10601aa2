"""What it means that one grant is a subset of another: pure, without a row or a clock.

`excess` names every member in which a child goes beyond its parent. `narrowed` gives the part of a
child that lies within its parent, so that a parent which shrinks shrinks what hangs below it.
For any two grants `excess(narrowed(child, parent), parent)` is empty.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from feltd.model.capping import meeting
from feltd.model.grant import ASK, DO, GrantConstraints, ResourceScope, RuntimeCaps

#: Label keys that a worker never gives itself.
TRUSTED = "trusted/"

#: Numbers that bound from above.
CEILINGS = ("max_concurrency", "max_workers", "max_priority", "heartbeat_timeout_ms")


class Extent(NamedTuple):
    """How far a grant reaches: what children are compared by."""

    capabilities: tuple[str, ...]
    resources: tuple[ResourceScope, ...]
    constraints: GrantConstraints


def holds(capabilities: Iterable[str], wanted: str) -> bool:
    """Whether a grant with these capabilities gives `wanted`.

    To do a thing includes to ask for it.
    """
    if wanted in capabilities:
        return True
    return wanted.startswith(ASK) and DO + wanted.removeprefix(ASK) in capabilities


def within(inner: ResourceScope, outer: ResourceScope) -> bool:
    """Whether every URI of `inner` is one of `outer`."""
    if outer.kind == "EXACT":
        return inner.kind == "EXACT" and inner.uri == outer.uri
    return stem(inner).startswith(outer.uri[:-1])


def stem(scope: ResourceScope) -> str:
    """The text every URI of a scope begins with."""
    return scope.uri if scope.kind == "EXACT" else scope.uri[:-1]


def inherited(child: GrantConstraints, parent: GrantConstraints) -> GrantConstraints:
    """The child's constraints with the parent's where the child names none."""
    taken: dict[str, Any] = {
        name: getattr(parent, name)
        for name in GrantConstraints.__struct_fields__
        if getattr(child, name) is None
    }
    taken["labels"] = _merged(parent.labels, child.labels)
    if child.runtime_policy is not None and parent.runtime_policy is not None:
        taken["runtime_policy"] = msgspec.structs.replace(
            child.runtime_policy,
            **{
                name: getattr(parent.runtime_policy, name)
                for name in RuntimeCaps.__struct_fields__
                if getattr(child.runtime_policy, name) is None
            },
        )
    return msgspec.structs.replace(child, **taken)


def tidied(constraints: GrantConstraints) -> GrantConstraints:
    """The same constraints with their lists as they are stored: sorted, each once."""
    lists = {
        name: tuple(sorted(set(named)))
        for name in ("workload_kinds", "runtimes")
        if (named := getattr(constraints, name)) is not None
    }
    return msgspec.structs.replace(constraints, **lists)


def excess(child: Extent, parent: Extent) -> list[tuple[str, str]]:
    """Where the child goes beyond the parent: (pointer, sentence) for each member, none if not."""
    found = [
        (f"/capabilities/{place}", f"the parent does not hold {capability}")
        for place, capability in enumerate(child.capabilities)
        if not holds(parent.capabilities, capability)
    ]
    found += [
        (f"/resources/{place}", f"the parent does not reach {scope.uri}")
        for place, scope in enumerate(child.resources)
        if not any(within(scope, outer) for outer in parent.resources)
    ]
    tightest = narrowed_constraints(child.constraints, parent.constraints)
    for name in GrantConstraints.__struct_fields__:
        if _compared(getattr(child.constraints, name)) != _compared(getattr(tightest, name)):
            found.append((f"/constraints/{name}", "is looser than the parent's"))
    return found


def narrowed(child: Extent, parent: Extent) -> Extent:
    """The part of the child that lies within the parent."""
    capabilities = set()
    for capability in child.capabilities:
        if holds(parent.capabilities, capability):
            capabilities.add(capability)
        elif capability.startswith(DO):
            # Doing shrinks to asking where the parent may still ask.
            asking = ASK + capability.removeprefix(DO)
            if holds(parent.capabilities, asking):
                capabilities.add(asking)
    return Extent(
        tuple(sorted(capabilities)),
        _meeting(child.resources, parent.resources),
        narrowed_constraints(child.constraints, parent.constraints),
    )


def narrowed_constraints(child: GrantConstraints, parent: GrantConstraints) -> GrantConstraints:
    """The tighter of both in every member."""
    return GrantConstraints(
        **{name: _lower(getattr(child, name), getattr(parent, name)) for name in CEILINGS},
        labels=_labels(child.labels, parent.labels),
        workload_kinds=_kinds(child.workload_kinds, parent.workload_kinds),
        runtimes=_common(child.runtimes, parent.runtimes),
        runtime_policy=meeting(child.runtime_policy, parent.runtime_policy),
    )


def _compared(member: Any) -> Any:
    # Lists here are sets; no labels and no label at all say the same.
    if isinstance(member, tuple):
        return frozenset(member)
    return member or None if isinstance(member, dict) else member


def _meeting(
    child: tuple[ResourceScope, ...], parent: tuple[ResourceScope, ...]
) -> tuple[ResourceScope, ...]:
    meeting = {
        inner if within(inner, outer) else outer
        for inner in child
        for outer in parent
        if within(inner, outer) or within(outer, inner)
    }
    # What another scope reaches anyway is left out, so that the list does not grow.
    kept = [
        scope
        for scope in meeting
        if not any(within(scope, other) for other in meeting if other != scope)
    ]
    return sort_scopes(kept)


def sort_scopes(scopes: Iterable[ResourceScope]) -> tuple[ResourceScope, ...]:
    """A set of scopes in the order they are stored in."""
    return tuple(sorted(set(scopes), key=lambda scope: (scope.uri, scope.kind)))


def _lower(child: int | None, parent: int | None) -> int | None:
    if child is None or parent is None:
        return parent if child is None else child
    return min(child, parent)


def _merged(parent: dict[str, str] | None, child: dict[str, str] | None) -> dict[str, str] | None:
    if parent is None or child is None:
        return parent if child is None else child
    return parent | child


def _labels(child: dict[str, str] | None, parent: dict[str, str] | None) -> dict[str, str] | None:
    given = parent or {}
    # A label is put on workers: one that is trusted must come from the parent, word for word.
    own = {key: text for key, text in (child or {}).items() if not key.startswith(TRUSTED)}
    merged = own | given
    return merged or (None if child is None and parent is None else {})


def _common(child: tuple[Any, ...] | None, parent: tuple[Any, ...] | None) -> Any:
    if child is None or parent is None:
        return parent if child is None else child
    return tuple(sorted(set(child) & set(parent)))


def _kinds(child: tuple[str, ...] | None, parent: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Kinds of both; `definition` holds each `definition#revision`."""
    if child is None or parent is None:
        return parent if child is None else child
    both = set(child) & set(parent)
    both |= {kind for kind in child if kind.split("#")[0] in parent}
    both |= {kind for kind in parent if kind.split("#")[0] in child}
    return tuple(sorted(both))
