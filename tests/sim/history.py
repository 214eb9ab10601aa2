"""What has been acknowledged, as plain Python: work, claims, workers, keys and grants.

Nothing here reads the database. It grows by what the daemon answered and by the events it
published, and is what both are held against.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from feltd.clock import Now
from feltd.model.base import Caller
from feltd.model.policy import Concurrency, Placement, Timeouts
from feltd.model.workload import RetryPolicy
from tests.sim import times
from tests.sim.books import Books

LIVE = frozenset({"CLAIMED", "RUNNING", "CHECKPOINTED"})


class Violation(AssertionError):
    """The daemon did what it promised never to do."""


class Asked(Struct, frozen=True):
    """What a workload asks for, as it was created and as people have changed it since."""

    priority: int = 0
    not_before_ms: int | None = None
    placement: Placement = Placement()
    concurrency: Concurrency | None = None
    timeouts: Timeouts = Timeouts()
    retry: RetryPolicy = RetryPolicy()
    labels: dict[str, str] = {}
    on_worker_lost: str | None = None


@dataclass
class Work:
    """A workload."""

    workload_id: str
    tenant_id: str
    application_id: str
    state: str
    eligible_at_ms: int
    max_attempts: int
    asked: Asked = field(default_factory=Asked)
    #: When total_ms began, when it became READY, and until when its last attempt has it wait.
    born_ms: int = 0
    ready_ms: int = 0
    backoff_ms: int | None = None
    #: Releases in a row.
    releases: int = 0
    #: What was asked for, as it was sent.
    body: bytes = b""
    definition: str = ""
    token: int = 0
    spent: int = 0
    cancel: bool = False
    result: tuple[str, str] | None = None
    #: What it depends on, what of that it still waits for, and whether that failed it.
    names: tuple[str, ...] = ()
    policy: str = "all_completed"
    needs: set[str] = field(default_factory=set)
    doomed: bool = False
    group: str | None = None


@dataclass
class Hold:
    """A claim. The end of its lease lies within [low_ms, high_ms], mostly one instant."""

    token: int
    workload_id: str
    worker_id: str
    incarnation: int
    low_ms: int
    high_ms: int
    request_id: str | None = None
    #: It is to be started within these, if at all; and it was started then.
    start_low_ms: int = 0
    start_high_ms: int = 0
    started_ms: int = 0
    ended: str | None = None
    #: The verb, and for complete the body, by which its holder ended it, and the first answer.
    ended_by: tuple[str, Any] | None = None
    outcome: Any = None

    def ends(self, at_ms: int) -> None:
        """Its lease ends then."""
        self.low_ms = self.high_ms = at_ms


@dataclass
class Peer:
    """A worker."""

    worker_id: str
    tenant_id: str
    application_id: str
    incarnation: int
    concurrency: int
    timeout_ms: int
    grant_id: str | None
    lifecycle: str
    #: It was heard no earlier than this.
    heard_ms: int
    drained: bool = False
    removed: bool = False
    #: Quarantined, until a person ends it.
    confined: bool = False
    labels: dict[str, str] = field(default_factory=dict)


@dataclass
class Stop:
    """A hold that stands until a person lifts it."""

    tenant_id: str
    scope: str
    value: str | None


@dataclass
class Bearer:
    """A key. `expires_ms` is wall time."""

    key_id: str
    worker_id: str | None = None
    incarnation: int | None = None
    grant_id: str | None = None
    obtained_by: str | None = None
    expires_ms: int | None = None
    ended: bool = False


@dataclass
class Given:
    """A grant. `expires_ms` is wall time."""

    grant_id: str
    parent_id: str | None
    expires_ms: int
    ended: bool = False


@dataclass
class History:
    """All of it, as one value: kept with a backup, put back with it."""

    works: dict[str, Work] = field(default_factory=dict)
    named: dict[tuple[str, str, str], str] = field(default_factory=dict)
    holds: dict[int, Hold] = field(default_factory=dict)
    peers: dict[str, Peer] = field(default_factory=dict)
    bearers: dict[str, Bearer] = field(default_factory=dict)
    givens: dict[str, Given] = field(default_factory=dict)
    #: Groups by tenant and name.
    sealed: set[tuple[str, str]] = field(default_factory=set)
    stops: dict[str, Stop] = field(default_factory=dict)
    #: Tokens given by people and not named by their workers; the highest token by resource.
    assigned: set[int] = field(default_factory=set)
    fences: dict[tuple[str, str], int] = field(default_factory=dict)
    #: Records and triggers by tenant; work that began by itself and that no firing names yet; work
    #: that is cleared away.
    books: dict[str, Books] = field(default_factory=dict)
    unclaimed: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)

    def live(self) -> Iterator[Hold]:
        """Claims that have not ended."""
        return (hold for hold in self.holds.values() if hold.ended is None)

    def lasts(self, hold: Hold, now: Now) -> bool:
        """Whether a claim lives for certain, as far as time goes."""
        late = times.may_have_passed(self, self.works[hold.workload_id], now)
        return hold.ended is None and hold.low_ms > now.lease_ms and not late

    def live_of(self, worker_id: str) -> list[int]:
        """Tokens a worker holds, oldest first."""
        return sorted(hold.token for hold in self.live() if hold.worker_id == worker_id)

    def chain_ends_ms(self, grant_id: str | None) -> int | None:
        """Wall time at which a grant or one above it ends; 0 when one was revoked, None: never."""
        ends_ms = None
        while grant_id is not None:
            given = self.givens.get(grant_id)
            if given is None or given.ended:
                return 0
            ends_ms = given.expires_ms if ends_ms is None else min(ends_ms, given.expires_ms)
            grant_id = given.parent_id
        return ends_ms

    def chain_lives(self, grant_id: str | None, now: Now) -> bool:
        """Whether a grant and all above it are live."""
        ends_ms = self.chain_ends_ms(grant_id)
        return ends_ms is None or ends_ms > now.wall_ms

    def end_bearers(self, key_ids: list[str]) -> None:
        """These keys end, and every key obtained through them."""
        waiting = list(key_ids)
        while waiting:
            bearer = self.bearers[waiting.pop()]
            if not bearer.ended:
                bearer.ended = True
                waiting += [
                    b.key_id for b in self.bearers.values() if b.obtained_by == bearer.key_id
                ]

    def stopped(self, work: Work) -> str | None:
        """The hold that keeps a workload from being claimed, None when none is known to."""
        values = {
            "application": (work.application_id,),
            "pool": (work.asked.placement.pool_id,),
            "definition": (work.definition.partition("#")[0], work.definition),
        }
        for hold_id, stop in self.stops.items():
            if stop.tenant_id in ("*", work.tenant_id) and (
                stop.value is None or stop.value in values[stop.scope]
            ):
                return hold_id
        return None

    def below(self, grant_id: str) -> list[str]:
        """A grant and all below it."""
        found = [grant_id]
        for one in found:
            found += [g.grant_id for g in self.givens.values() if g.parent_id == one]
        return found

    def forbids_caller(self, caller: Caller, now: Now) -> str | None:
        """Why nothing this caller asks for may be done; None when nothing is known against it."""
        if caller.local:
            return None
        bearer = self.bearers.get(caller.key_id)
        if bearer is None:
            return "its key does not exist"
        if bearer.ended:
            return "its key was revoked"
        if bearer.expires_ms is not None and bearer.expires_ms <= now.wall_ms:
            return "its key has expired"
        peer = self.peers.get(caller.worker_id or "")
        if peer is not None and caller.incarnation not in (None, peer.incarnation):
            return f"another process took its name (incarnation {peer.incarnation})"
        return None

    def forbids_claim(self, hold: Hold, now: Now) -> str | None:
        """Why nothing may be written under this claim; None when nothing is known against it."""
        if hold.ended is not None:
            return f"the claim has ended: {hold.ended}"
        if self.works[hold.workload_id].token != hold.token:
            return "the claim is superseded"
        if hold.high_ms <= now.lease_ms:
            return f"the lease ended at {hold.high_ms}, it is {now.lease_ms}"
        if times.passed(self, self.works[hold.workload_id], now):
            return f"a timeout has passed, it is {now.lease_ms}"
        peer = self.peers[hold.worker_id]
        if hold.incarnation != peer.incarnation:
            return f"the claim is of incarnation {hold.incarnation}, now is {peer.incarnation}"
        if not self.chain_lives(peer.grant_id, now):
            return "the grant behind the worker is not live"
        return None
