"""Groups: named sets of workloads of one application, that end and are called off together.

A group begins with the first workload that names it, takes more until it is sealed, and has ended
when it is sealed and each of its workloads is COMPLETED, CANCELLED or DEAD_LETTERED.
"""

from msgspec import Struct

from feltd.model.base import Sentence

#: A group's workloads are counted to here, one state at a time; beyond, the count is capped.
COUNT_MAX = 100_000
#: How exact `remaining` is.
REMAINING_MAX = 10_000


class Group(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A group as it is shown; `counts` has every state that one of its workloads is in.

    `ended`: sealed, and nothing of it is unfinished. `capped`: a count reached COUNT_MAX.
    """

    group: str
    tenant_id: str
    application_id: str
    sealed: bool
    ended: bool
    counts: dict[str, int]
    created_at_ms: int
    sealed_at_ms: int | None = None
    capped: bool = False


class CancelGroup(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a group's cancellation: `force` takes held work from its workers at once."""

    force: bool = False
    reason: Sentence | None = None


class GroupCancelled(Struct, frozen=True):
    """One chunk of a cancellation: call again while something remains (exact to 10,000)."""

    changed: int
    remaining: int


class GroupId(Struct, frozen=True):
    """A group by tenant and name, as rules take it."""

    tenant_id: str
    name: str


class GroupCancellation(Struct, frozen=True):
    """A group, and how it is called off, as the rule takes it."""

    tenant_id: str
    name: str
    cancel: CancelGroup
