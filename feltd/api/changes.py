"""Changes of records over HTTP: a page, a long poll, or a stream; and how far the log has come.

A reader says behind which number it stands and misses nothing from there, however slowly it reads;
where the log does not reach back to it any more it is told so.
"""

import asyncio
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from feltd.api.door import tenant_of
from feltd.api.polls import Polls
from feltd.api.records import OfTenant
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.api.shared import SharedReads
from feltd.api.stream import MEDIA_TYPE, Piece, Stream, frame, resumed, wanted
from feltd.model import record
from feltd.model.base import Instant, Name, WaitMs
from feltd.model.change import ChangePage, Following, StateVersion
from feltd.model.page import LIMIT_DEFAULT, Limit
from feltd.state import changes
from feltd.store.readers import Readers

#: What a commit with changes tells: (TOPIC, tenant), and ALL once.
TOPIC = "changes"
#: One piece of a stream: so much may lie in memory for each of 512 that listen.
PIECE_CHANGES = 100
PIECE_BYTES = 128 * 1024
#: Others' collections may change all the time: whoever waits for his looks again at most so often.
PAUSE_S = 0.02


class ChangesQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where to go on, exclusive (absent: at the oldest kept), and how long to wait for more."""

    after: Instant | None = None
    collection: Name | None = None
    limit: Limit = LIMIT_DEFAULT
    wait_ms: WaitMs = 0
    tenant_id: Name | None = None


class Read:
    """One page and what it looks like in a stream."""

    def __init__(self, cmd: Following, page: ChangePage) -> None:
        self.page = page

    @cached_property
    def piece(self) -> Piece:
        """The page as a piece of a stream, made once for all who share it."""
        items, head = self.page.items, self.page.head
        # A page may have ended for its bytes: then the reader stands at its last change.
        last = items[-1].seq if items else head
        frames = b"".join(frame(one.seq, one) for one in items)
        return Piece(frames, last, bool(items) and last < head)


class Pages(SharedReads[Following, Read]):
    """Pages of logs, read once for all who stand at the same place; see `changes.page`."""

    def __init__(self, readers: Readers, polls: Polls) -> None:
        super().__init__(readers, polls, TOPIC, changes.page, Read)


class ChangeSource:
    """A tenant's changes as one stream reads them."""

    def __init__(self, pages: Pages, cmd: Following) -> None:
        self._pages = pages
        self._cmd = replace(cmd, limit=PIECE_CHANGES, bytes_max=PIECE_BYTES)

    @property
    def topics(self) -> tuple[tuple[str, str], ...]:
        """The one of the tenant."""
        return ((TOPIC, self._cmd.tenant_id),)

    async def read(self, after: int | None) -> Piece:
        """The next changes. Refuses CHANGES_COMPACTED."""
        return (await self._pages.read(replace(self._cmd, after=after))).piece


async def list_changes(request: Request) -> Reply | Stream:
    """GET /v1/changes: a page at once or after a wait; a stream where the client accepts one."""
    asked = request.query(ChangesQuery)
    cmd = Following(
        tenant_id=tenant_of(request),
        after=asked.after,
        collection=asked.collection,
        limit=asked.limit,
    )
    if wanted(request):
        source = ChangeSource(request.app.change_pages, cmd)
        return Stream(request, source, resumed(request, cmd.after))
    found: ChangePage = (await request.app.change_pages.read(cmd)).page
    if not found.items and asked.wait_ms:
        found = await _awaited(request, cmd, found, asked.wait_ms)
    return reply(200, found)


async def state_version(request: Request) -> Reply:
    """GET /v1/state/version."""
    request.query(OfTenant)
    return reply(
        200, await request.app.readers.read(changes.version, record.OfTenant(tenant_of(request)))
    )


async def _awaited(request: Request, cmd: Following, found: ChangePage, wait_ms: int) -> ChangePage:
    """The page once there is something on it, the wait is over or the daemon stops."""
    loop = asyncio.get_running_loop()
    ends_at_s = loop.time() + wait_ms / 1_000

    async def there() -> bool:
        nonlocal found
        # What lies up to the head holds nothing for this reader: it stands there by now.
        found = (await request.app.change_pages.read(replace(cmd, after=found.head))).page
        return bool(found.items)

    why = "told"
    while why == "told" and not found.items:
        left_ms = int((ends_at_s - loop.time()) * 1_000)
        if left_ms <= 0:
            break
        why = await request.app.polls.until(request, cmd.tenant_id, left_ms, there, TOPIC)
        if why == "told":
            await asyncio.sleep(PAUSE_S if cmd.collection is not None else 0)
            await there()
    # A key may have run out meanwhile.
    await request.app.door.authenticate(request)
    return found


ROUTES = (
    Route(
        method="GET",
        path="/v1/changes",
        operation="list_changes",
        tag="change",
        handler=list_changes,
        summary="Changes of records, oldest first, none missing; with wait_ms, when there is more; "
        "as text/event-stream, for as long as you listen",
        scope="state:read",
        query=ChangesQuery,
        answer=ChangePage,
        media=(MEDIA_TYPE,),
        responses={
            410: "Changes behind `after` are no longer kept; `oldest` is the first one that is"
        },
    ),
    Route(
        method="GET",
        path="/v1/state/version",
        operation="get_state_version",
        tag="change",
        handler=state_version,
        summary="The number of the newest change, and which history it is of",
        scope="state:read",
        query=OfTenant,
        answer=StateVersion,
    ),
)
