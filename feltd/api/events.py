"""The feed over HTTP: GET /v1/events as a page, as a long poll, or as a stream.

All readers that stand at the same place share one read and its encoding, so that a commit costs one
look at the database however many listen.
"""

from contextlib import ExitStack
from functools import cached_property
from typing import Annotated

from msgspec import Meta, Struct

from feltd.api.door import tenant_filter
from feltd.api.polls import Polls
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.api.shared import SharedReads
from feltd.api.stream import MEDIA_TYPE, Piece, Stream, frame, resumed, wanted
from feltd.mesh import feed
from feltd.model.base import Instant, Name, WaitMs
from feltd.model.event import Events, Following
from feltd.store.readers import Readers

#: Events in one piece of a stream: some 30 kB, which a slow line still takes in a second.
PIECE_EVENTS = 100

#: What the seal of a commit tells: (TOPIC, tenant) for each tenant of its events, and ALL once.
TOPIC = "events"


class FeedQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where to go on, exclusive (absent: at the oldest kept), and how long to wait for more."""

    after: Instant | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    wait_ms: WaitMs = 0
    tenant_id: Name | None = None


class Read:
    """One page and what it looks like in a stream."""

    def __init__(self, cmd: Following, events: Events) -> None:
        self.events = events
        self._full = len(events.items) == cmd.limit

    @cached_property
    def piece(self) -> Piece:
        """The page as a piece of a stream, made once for all who share it."""
        items = self.events.items
        after = items[-1].seq if self._full else self.events.head
        return Piece(b"".join(frame(one.seq, one) for one in items), after, self._full)


class Pages(SharedReads[Following, Read]):
    """Pages of the feed, read once for all who stand at the same place; see `feed.page`."""

    def __init__(self, readers: Readers, polls: Polls) -> None:
        super().__init__(readers, polls, TOPIC, feed.page, Read)


class FeedSource:
    """The feed as one stream reads it."""

    def __init__(self, pages: Pages, tenants: tuple[str, ...]) -> None:
        self._pages = pages
        self._tenants = tenants

    @property
    def topics(self) -> tuple[tuple[str, str], ...]:
        """One for each tenant of the reader."""
        return tuple((TOPIC, tenant_id) for tenant_id in self._tenants)

    async def read(self, after: int | None) -> Piece:
        """The next events of the reader's tenants. Refuses EVENTS_COMPACTED."""
        return (await self._pages.read(Following(self._tenants, after, PIECE_EVENTS))).piece


async def list_events(request: Request) -> Reply | Stream:
    """GET /v1/events: a page at once or after a wait; a stream where the client accepts one."""
    asked = request.query(FeedQuery)
    tenant_id = tenant_filter(request)
    tenants = request.caller.tenants if tenant_id is None else (tenant_id,)
    if wanted(request):
        source = FeedSource(request.app.event_pages, tenants)
        return Stream(request, source, resumed(request, asked.after))
    cmd = Following(tenants, asked.after, asked.limit)
    found = (await request.app.event_pages.read(cmd)).events
    if not found.items and asked.wait_ms:
        # A reader at the end waits there, also one that did not say where it stands.
        found = await _awaited(request, Following(tenants, found.head, asked.limit), asked.wait_ms)
    return reply(200, found)


async def _awaited(request: Request, cmd: Following, wait_ms: int) -> Events:
    pages, polls = request.app.event_pages, request.app.polls
    with ExitStack() as watch:
        poll = watch.enter_context(request.parked())
        for tenant_id in cmd.tenants:
            watch.enter_context(polls.watching(TOPIC, tenant_id, lambda: poll.wake("told")))
        key_ended = polls.watching("key", request.caller.key_id, lambda: poll.wake("key"))
        watch.enter_context(key_ended)
        found: Events = (await pages.read(cmd)).events
        if not found.items:
            await poll.wait(wait_ms)
    # A key may also have run out meanwhile.
    await request.app.door.authenticate(request)
    if not found.items:
        found = (await pages.read(cmd)).events
    return found


ROUTES = (
    Route(
        method="GET",
        path="/v1/events",
        operation="list_events",
        tag="event",
        handler=list_events,
        summary="What happened, oldest first, none missing; with wait_ms, when there is more; as "
        "text/event-stream, for as long as you listen",
        scope="events:read",
        query=FeedQuery,
        answer=Events,
        media=(MEDIA_TYPE,),
        responses={
            410: "Events behind `after` are no longer kept; `oldest` is the first one that is"
        },
    ),
)
