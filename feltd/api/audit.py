"""The audit chain over HTTP: GET /v1/audit as a page at once, or as a long poll at its end."""

from contextlib import ExitStack
from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from feltd.api import events
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.api.shared import ALL
from feltd.identity.audit import TOPIC
from feltd.mesh import audited
from feltd.model.audit import AuditPage, Walking
from feltd.model.base import PRINTABLE, Instant, WaitMs

Word = Annotated[str, Meta(min_length=1, max_length=400, pattern=PRINTABLE)]


class AuditQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where to go on, exclusive (0: at the oldest kept), which rows, how long to wait for more."""

    after: Instant = 0
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    wait_ms: WaitMs = 0
    kind: Literal["commit", "act"] | None = None
    actor: Word | None = None
    action: Word | None = None
    subject: Word | None = None


async def list_audit(request: Request) -> Reply:
    """GET /v1/audit: rows by number; with wait_ms, when there is one."""
    asked = request.query(AuditQuery)
    cmd = Walking(asked.after, asked.limit, asked.kind, asked.actor, asked.action, asked.subject)
    found = await request.app.readers.read(audited.page, cmd)
    if not found.items and asked.wait_ms and found.next_after >= found.head:
        cmd = structs.replace(cmd, after=found.next_after)
        found = await _awaited(request, cmd, asked.wait_ms)
    return reply(200, found)


async def _awaited(request: Request, cmd: Walking, wait_ms: int) -> AuditPage:
    """What is there once the chain has grown; a row that is not asked for ends the wait as well."""
    polls, readers = request.app.polls, request.app.readers
    with ExitStack() as watch:
        poll = watch.enter_context(request.parked())
        for topic in (TOPIC, events.TOPIC):
            watch.enter_context(polls.watching(topic, ALL, lambda: poll.wake("told")))
        key_ended = polls.watching("key", request.caller.key_id, lambda: poll.wake("key"))
        watch.enter_context(key_ended)
        found: AuditPage = await readers.read(audited.page, cmd)
        if found.head <= cmd.after:
            await poll.wait(wait_ms)
    # A key may also have run out meanwhile.
    await request.app.door.authenticate(request)
    if not found.items:
        found = await readers.read(audited.page, cmd)
    return found


ROUTES = (
    Route(
        method="GET",
        path="/v1/audit",
        operation="list_audit",
        tag="event",
        handler=list_audit,
        summary="The audit chain by number, with all that its hashes cover; with wait_ms, when "
        "there is more",
        scope="audit:read",
        query=AuditQuery,
        answer=AuditPage,
    ),
)
