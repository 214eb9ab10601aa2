"""One grant as a subset of another: properties over all members."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from feltd.identity.subsets import Extent, excess, holds, inherited, narrowed, stem, tidied
from feltd.model.grant import ASK, DO, GrantConstraints, ResourceScope, RuntimeCaps

NAMES = st.sampled_from(("a", "b", "c"))
CAPABILITIES = st.frozensets(
    st.sampled_from(("worker:register", *(DO + n for n in "abc"), *(ASK + n for n in "abc")))
)
URIS = st.text(alphabet="ab/", max_size=4)
SCOPES = st.one_of(
    st.builds(lambda uri: ResourceScope("EXACT", uri + "x"), URIS),
    st.builds(lambda uri: ResourceScope("RESOURCE_PREFIX", uri + "*"), URIS),
)


def maybe(some: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | some


RUNTIME = st.builds(
    RuntimeCaps,
    max_cpu_millis=maybe(st.integers(1, 3)),
    max_memory_bytes=maybe(st.integers(1, 3)),
    network_policy=maybe(st.sampled_from(("none", "loopback", "inherit"))),
    filesystem_policy=maybe(st.sampled_from(("none", "scratch", "inherit"))),
    secret_policy=maybe(st.sampled_from(("none", "inherit"))),
    artifact_policy=maybe(st.sampled_from(("none", "references"))),
)
CONSTRAINTS = st.builds(
    lambda **members: tidied(GrantConstraints(**members)),
    max_concurrency=maybe(st.integers(1, 3)),
    max_workers=maybe(st.integers(0, 3)),
    labels=maybe(st.dictionaries(st.sampled_from(("zone", "trusted/env")), NAMES)),
    workload_kinds=maybe(st.lists(st.sampled_from(("a", "a#1", "a#2", "b"))).map(tuple)),
    runtimes=maybe(st.lists(st.sampled_from(("process", "wasm")), unique=True).map(tuple)),
    max_priority=maybe(st.integers(-1, 1)),
    heartbeat_timeout_ms=maybe(st.sampled_from((2_000, 3_000))),
    runtime_policy=maybe(RUNTIME),
)
EXTENTS = st.builds(
    Extent,
    CAPABILITIES.map(lambda names: tuple(sorted(names))),
    st.lists(SCOPES, max_size=4).map(tuple),
    CONSTRAINTS,
)


def reached(extent: Extent, uri: str) -> bool:
    return any(
        uri == scope.uri if scope.kind == "EXACT" else uri.startswith(stem(scope))
        for scope in extent.resources
    )


def runs(constraints: GrantConstraints, kind: str) -> bool:
    """Whether work of this definition#revision may be done."""
    named = constraints.workload_kinds
    return named is None or kind in named or kind.split("#")[0] in named


@given(EXTENTS)
def test_every_grant_is_a_subset_of_itself(extent: Extent) -> None:
    assert excess(extent, extent) == []


@given(EXTENTS, EXTENTS)
def test_what_is_narrowed_is_a_subset(child: Extent, parent: Extent) -> None:
    assert excess(narrowed(child, parent), parent) == []


@given(EXTENTS, EXTENTS)
def test_narrowing_a_subset_changes_nothing_that_counts(child: Extent, parent: Extent) -> None:
    once = narrowed(child, parent)

    assert narrowed(once, parent) == once


@given(EXTENTS, EXTENTS, EXTENTS)
def test_a_subset_of_a_subset_is_a_subset(first: Extent, second: Extent, third: Extent) -> None:
    middle = narrowed(second, third)

    assert excess(narrowed(first, middle), third) == []


@given(EXTENTS, EXTENTS, st.sampled_from([DO + n for n in "abc"] + [ASK + n for n in "abc"]))
def test_narrowing_keeps_exactly_the_capabilities_of_both(
    child: Extent, parent: Extent, capability: str
) -> None:
    both = holds(child.capabilities, capability) and holds(parent.capabilities, capability)

    assert holds(narrowed(child, parent).capabilities, capability) == both


@given(EXTENTS, EXTENTS, URIS, st.booleans())
def test_narrowing_keeps_exactly_the_uris_of_both(
    child: Extent, parent: Extent, uri: str, end: bool
) -> None:
    asked = uri + "x" if end else uri

    both = reached(child, asked) and reached(parent, asked)

    assert reached(narrowed(child, parent), asked) == both


@given(EXTENTS, EXTENTS, st.sampled_from(("a#1", "a#2", "a#3", "b#1", "c#1")))
def test_narrowing_keeps_exactly_the_kinds_of_both(
    child: Extent, parent: Extent, kind: str
) -> None:
    both = runs(child.constraints, kind) and runs(parent.constraints, kind)

    assert runs(narrowed(child, parent).constraints, kind) == both


@given(EXTENTS, EXTENTS)
def test_no_excess_means_nothing_the_parent_has_not(child: Extent, parent: Extent) -> None:
    if excess(child, parent):
        return
    for capability in child.capabilities:
        assert holds(parent.capabilities, capability)
    for scope in child.resources:
        assert reached(parent, stem(scope))
    for name in ("max_concurrency", "max_workers", "max_priority", "heartbeat_timeout_ms"):
        bound = getattr(parent.constraints, name)
        own = getattr(child.constraints, name)
        assert bound is None or (own is not None and own <= bound)
    trusted = {k: v for k, v in (child.constraints.labels or {}).items() if "trusted/" in k}
    assert trusted.items() <= (parent.constraints.labels or {}).items()
    assert (parent.constraints.labels or {}).items() <= (child.constraints.labels or {}).items()


@given(EXTENTS, EXTENTS)
def test_a_child_that_names_no_constraint_takes_the_parents_over(
    child: Extent, parent: Extent
) -> None:
    silent = child._replace(constraints=inherited(GrantConstraints(), parent.constraints))

    assert silent.constraints == parent.constraints
    assert not [place for place, _ in excess(silent, parent) if place.startswith("/constraints")]


@given(CONSTRAINTS, CONSTRAINTS)
def test_what_a_child_names_itself_is_kept(
    child: GrantConstraints, parent: GrantConstraints
) -> None:
    whole = inherited(child, parent)

    for name in ("max_concurrency", "workload_kinds", "runtimes", "max_priority"):
        own = getattr(child, name)
        assert getattr(whole, name) == (getattr(parent, name) if own is None else own)
