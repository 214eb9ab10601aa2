"""Events as the wire shows them: one happening, and a page of the feed."""

from msgspec import Struct


class Event(Struct, frozen=True, omit_defaults=True, rename={"from_state": "from"}):
    """One event: the verb that was done, and between which states."""

    seq: int
    at_ms: int
    kind: str
    tenant_id: str | None = None
    application_id: str | None = None
    workload_id: str | None = None
    worker_id: str | None = None
    claim_id: str | None = None
    fencing_token: int | None = None
    from_state: str | None = None
    to: str | None = None
    eligible_at_ms: int | None = None
    expires_at_ms: int | None = None
    end: str | None = None
    actor: str | None = None


class Events(Struct, frozen=True):
    """A page of the feed: `head` is its newest number, `oldest` the first one still kept."""

    items: list[Event]
    head: int
    oldest: int


class Happenings(Struct, frozen=True):
    """The events of one workload, in order."""

    items: list[Event]


class Following(Struct, frozen=True):
    """Where a reader of the feed stands: whose events it may see and which it saw last."""

    tenants: tuple[str, ...]
    after: int | None = None
    limit: int = 50
