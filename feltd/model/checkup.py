"""What a look over the rows finds that a person should know: the facts of doctor and diagnostics.

Instants are wall time unless the member says otherwise. Lists name the first few; counts are of all
that were looked at.
"""

from msgspec import Struct

from feltd.model.base import Count, Instant


class Waits(Struct, frozen=True, kw_only=True):
    """The kind of work whose next workload has waited longest, and the first thing in its way."""

    tenant_id: str
    application_id: str
    definition_id: str
    ready: Count
    held: Count
    waited_ms: Count
    code: str
    detail: str
    remedy: str


class Stands(Struct, frozen=True, kw_only=True):
    """A hold, a drain, a quarantine, a disabled trigger: what, by whom, why, for how long."""

    id: str
    tenant_id: str
    what: str
    by: str
    reason: str
    for_ms: Count


class Ends(Struct, frozen=True, kw_only=True):
    """A grant or a key that ends soon, and the workers that stop then."""

    id: str
    what: str
    ends_at_ms: Instant
    workers: Count
    named: tuple[str, ...]


class Some(Struct, frozen=True, kw_only=True):
    """How many there are, and the first of them."""

    count: Count = 0
    first: tuple[Stands, ...] = ()


class Ending(Struct, frozen=True, kw_only=True):
    """How many end soon, and those that end first."""

    count: Count = 0
    first: tuple[Ends, ...] = ()


class Checkup(Struct, frozen=True, kw_only=True):
    """One look. `dead_in_hour` counts dead letters by kind, `capped` when some were not looked at.

    `lapsed` are workers that beat although their grant has ended; `behind` are triggers that fail
    or have not judged many changes.
    """

    instance_id: str
    lease_ms: Instant
    workloads: dict[str, Count]
    workers: dict[str, Count]
    oldest: Waits | None
    holds: Some
    drained: Some
    quarantined: Some
    lapsed: Some
    triggers_off: Some
    triggers_behind: Some
    dead_in_hour: dict[str, Count]
    dead_capped: bool
    grants_ending: Ending
    keys_ending: Ending
