"""What a submitter may say of how its work waits and runs: where, how long, how much at once.

Each member is optional and the default here is the law's. What was added to a creation after its
first version is left out of the canonical form while it says nothing (see `canonical`), so that a
body of before means the same as it did.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, to_builtins
from msgspec.json import encode

from feltd.model.base import INTEGER_MAX, Labels, Name, RequestKey

#: A year: an instant plus any of these stays far below 2^53.
TIMEOUT_MS_MAX = 31_536_000_000
#: As many live claims as the daemon is made for; a higher limit limits nothing.
KEY_LIMIT_MAX = 1_000_000
#: A rate key keeps one row for each use of its period.
RATE_LIMIT_MAX = 100_000
#: 31 days.
PERIOD_MS_MAX = 2_678_400_000
#: Longer than this nobody leaves ready work for a better worker.
AFFINITY_WAIT_MS_MAX = 3_600_000
AFFINITY_WAIT_MS = 2_000
MAX_DURATION_MS = 3_600_000
#: Names of a `dependencies` list that mean a sealed group.
GROUP_PREFIX = "group:"
DEPENDENCIES_MAX = 64

TimeoutMs = Annotated[int, Meta(ge=1, le=TIMEOUT_MS_MAX)]
Amount = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
#: A workload id, or group:<name>.
Dependency = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"\A[!-~]+\Z")]
Dependencies = Annotated[tuple[Dependency, ...], Meta(max_length=DEPENDENCIES_MAX)]
DependencyPolicy = Literal["all_completed", "all_finished"]
Network = Literal["none", "loopback", "inherit"]
Filesystem = Literal["none", "scratch", "inherit"]
Secrets = Literal["none", "inherit"]
Artifacts = Literal["none", "references"]


class Timeouts(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How long it may wait and run; an absent member bounds nothing. Renewing extends none.

    queue_ms runs from when it is READY and eligible, start_ms from its claim, execution_ms from
    its start, total_ms from its creation.
    """

    queue_ms: TimeoutMs | None = None
    start_ms: TimeoutMs | None = None
    execution_ms: TimeoutMs | None = None
    total_ms: TimeoutMs | None = None


class RuntimePolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """What an attempt may use, enforced by the worker's runtime; null bounds nothing.

    A runtime that cannot enforce a member ends the attempt `policy_unenforceable`.
    """

    max_cpu_millis: Amount | None = None
    max_memory_bytes: Amount | None = None
    max_duration_ms: Amount = MAX_DURATION_MS
    network_policy: Network = "inherit"
    filesystem_policy: Filesystem = "inherit"
    secret_policy: Secrets = "inherit"
    artifact_policy: Artifacts = "references"


class Concurrency(Struct, frozen=True, forbid_unknown_fields=True):
    """At most `limit` live claims of a key of the application; the newest limit holds for all."""

    key: RequestKey
    limit: Annotated[int, Meta(ge=1, le=KEY_LIMIT_MAX)]


class Rate(Struct, frozen=True, forbid_unknown_fields=True):
    """At most `limit` claims of a key of the application in any period_ms; the newest holds."""

    key: RequestKey
    limit: Annotated[int, Meta(ge=1, le=RATE_LIMIT_MAX)]
    period_ms: Annotated[int, Meta(ge=1, le=PERIOD_MS_MAX)]


class Placement(Struct, frozen=True, forbid_unknown_fields=True):
    """Which workers may run it: every required label equal, no label of anti_affinity equal, of
    the pool when one is named.

    While it is younger than affinity_wait_ms it is left to the worker with most labels of
    `affinity`.
    """

    required_labels: Labels = {}
    anti_affinity: Labels = {}
    affinity: Labels = {}
    pool_id: Name | None = None
    affinity_wait_ms: Annotated[int, Meta(ge=0, le=AFFINITY_WAIT_MS_MAX)] = AFFINITY_WAIT_MS


_LATER: tuple[tuple[str, Any], ...] = (
    ("affinity", {}),
    ("pool_id", None),
    ("affinity_wait_ms", AFFINITY_WAIT_MS),
)


def canonical(placement: Placement) -> dict[str, Any]:
    """A placement as it is stored, compared and digested.

    The two members that were always there are always there, each of the others only where it
    differs from its default.
    """
    told: dict[str, Any] = to_builtins(placement, order="deterministic")
    for member, default in _LATER:
        if told[member] == default:
            del told[member]
    return told


def placement_text(placement: Placement) -> str:
    """The canonical form as JSON."""
    return encode(canonical(placement)).decode()
