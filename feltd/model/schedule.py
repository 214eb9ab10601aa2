"""When a schedule is due, in the words it is defined with, and what a look ahead shows."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

#: Five fields: minute, hour, day of month, month, day of week. What they say is read elsewhere.
Cron = Annotated[str, Meta(min_length=9, max_length=256, pattern=r"\A[0-9A-Za-z*/,#\- ]+\Z")]
#: An IANA name such as Europe/Berlin.
Timezone = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[A-Za-z0-9_+\-/]+\Z")]
#: A second (the daemon looks that often), to a year.
EveryMs = Annotated[int, Meta(ge=1_000, le=31_536_000_000)]
#: What becomes of instants that passed while nobody served them.
Missed = Literal["skip", "once", "all"]
#: Whether an instant fires while the workload of the one before is unfinished.
Overlap = Literal["allow", "skip"]
PreviewCount = Annotated[int, Meta(ge=1, le=100)]

PREVIEW_COUNT_DEFAULT = 5


class Preview(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a preview: how many instants, or changes, to show."""

    count: PreviewCount = PREVIEW_COUNT_DEFAULT


class Instant(Struct, frozen=True):
    """One instant to come: wall time, and the same on the clock of the schedule's zone."""

    at_ms: int
    local: str


class Ran(Struct, frozen=True):
    """What a run by hand made; `scheduled_at_ms` is when, wall time."""

    trigger_id: str
    tenant_id: str
    scheduled_at_ms: int
    workload_id: str
