"""What a grant lets a worker be: its capabilities, kinds, labels, runtime and size.

Pure: a grant and what a worker offers go in, what may stand in the worker's row comes out. Both a
registration and a changed grant are judged here, so neither can give more than the other.
"""

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from feltd.errors import Refused
from feltd.identity import grants
from feltd.identity.subsets import TRUSTED
from feltd.model.grant import DO, REGISTER, Grant, GrantConstraints


class Offer(Struct, frozen=True, kw_only=True):
    """What a worker says of itself, as far as a grant bounds it; `declared` None: all it may."""

    runtime: str
    declared: tuple[str, ...] | None
    workload_kinds: tuple[str, ...]
    labels: Mapping[str, str]


class Terms(Struct, frozen=True, kw_only=True):
    """What may stand in its row. Sets are sorted and unique."""

    declared: tuple[str, ...]
    granted: tuple[str, ...]
    workload_kinds: tuple[str, ...]
    labels: dict[str, str]


def of(grant: Grant | None, offer: Offer) -> Terms:
    """What the offer comes to under a grant; None: nothing bounds it (--no-auth).

    Granted is declared ∩ `worker:capability:`. A worker that names no kinds gets the grant's, and
    every worker the grant's labels. Refuses WORKER_UNAUTHORIZED for a runtime, a kind or a label
    that the grant does not allow.
    """
    bounds = GrantConstraints() if grant is None else grant.constraints
    if bounds.runtimes is not None and offer.runtime not in bounds.runtimes:
        raise _refused(f"the grant allows no worker of runtime {offer.runtime}")
    allowed = None if grant is None else capabilities(grant)
    declared = _sorted((allowed or ()) if offer.declared is None else offer.declared)
    return Terms(
        declared=declared,
        granted=declared if allowed is None else _sorted(set(declared) & set(allowed)),
        workload_kinds=_kinds(bounds, offer.workload_kinds),
        labels=_labels(bounds, offer.labels),
    )


def narrowed(grant: Grant, offer: Offer) -> Terms:
    """What is left of a standing worker when its grant changed: kinds that are still allowed, the
    grant's labels in place of those it gave before.

    Refuses WORKER_UNAUTHORIZED when the runtime, or every kind, is no longer allowed.
    """
    bounds = grant.constraints
    kinds = offer.workload_kinds
    if bounds.workload_kinds is not None and kinds:
        allowed = set(bounds.workload_kinds)
        within = {kind for kind in allowed if kind.split("#")[0] in kinds}
        kinds = _sorted(within | {kind for kind in kinds if _admits(allowed, kind)})
        if not kinds:
            raise _refused("the grant allows none of the worker's kinds of work")
    given = bounds.labels or {}
    labels = {k: v for k, v in offer.labels.items() if not k.startswith(TRUSTED) and k not in given}
    return of(
        grant,
        Offer(runtime=offer.runtime, declared=offer.declared, workload_kinds=kinds, labels=labels),
    )


def require_reach(grant: Grant, name: str) -> None:
    """Refuse WORKER_UNAUTHORIZED unless the grant may have a worker of this name registered."""
    if REGISTER not in grant.capabilities:
        raise _refused(f"the grant does not hold {REGISTER}")
    uri = f"flow://{grant.application_id}/workers/{name}"
    if not grants.reaches(grant, uri):
        raise _refused(f"no resource of the grant covers {uri}")


def capabilities(grant: Grant) -> tuple[str, ...]:
    """What a worker may be granted under it, the prefix taken off."""
    return _sorted(held[len(DO) :] for held in grant.capabilities if held.startswith(DO))


def admits(kinds: Collection[str], definition_id: str, definition_revision: str) -> bool:
    """Whether a list of kinds holds a definition, with or without its revision."""
    return definition_id in kinds or f"{definition_id}#{definition_revision}" in kinds


def _kinds(bounds: GrantConstraints, asked: tuple[str, ...]) -> tuple[str, ...]:
    if bounds.workload_kinds is None:
        return _sorted(asked)
    allowed = set(bounds.workload_kinds)
    if not allowed:
        # An empty set in the row would mean any definition.
        raise _refused("the grant allows no kind of work")
    beyond = [kind for kind in asked if not _admits(allowed, kind)]
    if beyond:
        raise _refused(f"the grant does not allow work of kind {min(beyond)}")
    return _sorted(asked or allowed)


def _admits(allowed: set[str], kind: str) -> bool:
    return kind in allowed or kind.split("#")[0] in allowed


def _labels(bounds: GrantConstraints, asked: Mapping[str, str]) -> dict[str, str]:
    given = bounds.labels or {}
    for key in sorted(asked):
        if key.startswith(TRUSTED) and key not in given:
            raise _refused(f"the label {key} comes only from a grant")
        if key in given and asked[key] != given[key]:
            raise _refused(f"the grant gives the label {key} another value")
    return dict(sorted({**asked, **given}.items()))


def _sorted(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(values)))


def _refused(detail: str) -> Refused:
    return Refused("WORKER_UNAUTHORIZED", detail)
