"""What the open pages hear of: that something of a kind happened, never what.

Each page reads its own parts again by the rules, so nothing of a row travels here. A line names its
topics (`felt:workload`, `felt:worker`, `felt:fence`, `felt:any`); one piece of the feed is one line
a topic, however much happened. The stream ends with the session, and when the daemon stops.
"""

from feltd.api.events import PIECE_EVENTS, TOPIC, Read
from feltd.api.request import Request
from feltd.api.routes import Route
from feltd.api.stream import Piece, Stream
from feltd.errors import Refused
from feltd.model.event import Event, Events, Following

#: Told by the metrics at each refused fenced write; of no tenant, so for whole-daemon callers only.
FENCE = ("fence", "")
#: Kinds of things that a page may follow, by a word in the verbs that change them.
NOUNS = {"hold": "hold", "lift": "hold", "pool": "pool", "trigger": "trigger"}


class Hearing:
    """The feed as a page hears it: topics instead of events."""

    def __init__(self, request: Request) -> None:
        caller = request.caller
        self._pages = request.app.event_pages
        self._tenants: tuple[str, ...] = caller.tenants
        self._refusals = request.app.metrics.fence_refusals
        self._whole = "*" in caller.tenants
        self._refused = self._total()

    @property
    def topics(self) -> tuple[tuple[str, str], ...]:
        """What wakes the stream."""
        told = tuple((TOPIC, tenant_id) for tenant_id in self._tenants)
        return (*told, FENCE) if self._whole else told

    async def read(self, after: int | None) -> Piece:
        """Topics of what came behind `after`; a page that was away too long begins at the end."""
        try:
            if after is None:
                head = (await self._page(None, 1)).head
                return Piece(_lines(head, {"any"}), head, False)
            found = await self._page(after, PIECE_EVENTS)
        except Refused as refused:
            if refused.code != "EVENTS_COMPACTED":
                raise
            head = int(refused.facts["head"])
            return Piece(_lines(head, {"any", "workload", "worker"}), head, False)
        full = len(found.items) == PIECE_EVENTS
        seq = found.items[-1].seq if full else found.head
        topics = {topic for event in found.items for topic in _topics(event)}
        if self._whole and (refused_now := self._total()) != self._refused:
            self._refused = refused_now
            topics |= {"fence", "any"}
        return Piece(_lines(seq, topics), seq, full)

    async def _page(self, after: int | None, limit: int) -> Events:
        read: Read = await self._pages.read(Following(self._tenants, after, limit))
        return read.events

    def _total(self) -> int:
        return sum(self._refusals.values())


def _topics(event: Event) -> set[str]:
    topics = {"any"}
    if event.workload_id is not None:
        topics.add("workload")
    if event.worker_id is not None:
        topics.add("worker")
    if event.workload_id is None:
        topics |= {noun for word, noun in NOUNS.items() if word in event.kind}
    return topics


def _lines(seq: int, topics: set[str]) -> bytes:
    if not topics:
        return b""
    told = "".join(f"event: felt:{topic}\ndata: {seq}\n\n" for topic in sorted(topics))
    return told.encode()


async def console_stream(request: Request) -> Stream:
    """GET /console/stream."""
    return Stream(request, Hearing(request), None)


ROUTES = (
    Route(
        method="GET",
        path="/console/stream",
        operation="console_stream",
        tag="console",
        handler=console_stream,
        summary="What the open pages hear of",
        scope="workloads:read",
        page=True,
    ),
)
