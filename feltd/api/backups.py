"""Backups over HTTP: made, and listed. The caller never names a path.

A backup of a large file takes minutes, longer than any request: the call waits for it as long as
a request may, then tells how far it is with 202. A repeat joins what runs; with an Idempotency-Key
it is also answered with what came of it, so that a client simply repeats until it has a 201.
"""

import asyncio
from typing import Literal, Protocol

from msgspec import Struct, structs

from feltd.api import wire
from feltd.api.repeats import once_of, submit_once
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.errors import Refused
from feltd.mesh import backups
from feltd.model.base import Ask
from feltd.model.page import LIMIT_DEFAULT, Limit
from feltd.store.backup import Manifest

#: A call waits no longer, however far its deadline: clients and proxies give up by themselves.
WAIT_MS_MAX = 10_000
#: What cursors of the list are bound to.
LIST = "backups"


class Underway(Struct, frozen=True):
    """A backup that is not ready yet: `phase` is copy, verify or digest."""

    state: Literal["running"]
    phase: str
    bytes: int
    total_bytes: int
    wal_bytes: int
    started_at_ms: int
    by: str


class BackupList(Struct, frozen=True):
    """The backups of this database in the folder, newest first, and the one being made."""

    items: tuple[Manifest, ...]
    folder: str
    running: Underway | None
    next_cursor: str | None = None


class BackupsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How many of them, and from where on."""

    limit: Limit = LIMIT_DEFAULT
    cursor: str | None = None


class Backup(Protocol):
    """One being made, or made."""

    task: asyncio.Task[Manifest]

    def told(self) -> Underway:
        """How far it is."""


class Backups(Protocol):
    """What makes them; the daemon's."""

    def begin(self, by: str, key: tuple[str, str] | None) -> Backup:
        """Begin one, or join the one that runs, or the one begun under this key."""

    async def listing(self) -> BackupList:
        """Those that are."""


async def create_backup(request: Request) -> Reply:
    """POST /v1/backups: see the head of this file. The audit names who began it."""
    ask = Ask(caller=request.caller, body=None)
    command = once_of(request, lambda tx, ask, now: None, ask)
    kept = await request.app.writer.submit(backups.permit, command, deadline_ms=request.deadline_ms)
    if kept is not None:
        return reply(kept.status, kept.answer)
    key = None
    if command.request_key is not None:
        key = (request.caller.key_id, command.request_key)
    found: Backup = request.app.backups.begin(str(request.caller.subject), key)
    if not found.task.done():
        with request.parked() as poll:
            found.task.add_done_callback(lambda _: poll.wake("done"))
            await poll.wait(min(request.deadline_ms, WAIT_MS_MAX))
    if found.task.cancelled() or request.app.stop.is_set():
        raise Refused("SERVICE_OVERLOADED", "the daemon is stopping", committed=False)
    if not found.task.done():
        return reply(202, found.told(), {"Retry-After": "1", "Location": "/v1/backups"})
    manifest = await asyncio.shield(found.task)
    done = await submit_once(request, backups.answer, Ask(caller=request.caller, body=manifest))
    return reply(done.status, done.answer)


async def list_backups(request: Request) -> Reply:
    """GET /v1/backups: a page of them; there are at most --backup-keep."""
    asked = request.query(BackupsQuery)
    found = await request.app.backups.listing()
    secret, items, cursor = request.app.keyring.cursor_secret, found.items, None
    if asked.cursor is not None:
        at_ms, path = wire.open_cursor(secret, LIST, asked.cursor)
        items = tuple(one for one in items if (one.created_at_ms, one.path) < (at_ms, path))
    if len(items) > asked.limit:
        items = items[: asked.limit]
        cursor = wire.seal_cursor(secret, LIST, [items[-1].created_at_ms, items[-1].path])
    return reply(200, structs.replace(found, items=items, next_cursor=cursor))


ROUTES = (
    Route(
        method="POST",
        path="/v1/backups",
        operation="create_backup",
        tag="backup",
        handler=create_backup,
        summary="Copy the whole database into the backup folder, verified, while work goes on",
        scope="backup:admin",
        answer=Manifest,
        status=201,
        responses={
            202: "It is being made: repeat, best with the same Idempotency-Key, until it is 201",
            503: "STORAGE_FULL, STORAGE_BUSY, STORAGE_UNAVAILABLE: nothing was left behind",
        },
    ),
    Route(
        method="GET",
        path="/v1/backups",
        operation="list_backups",
        tag="backup",
        handler=list_backups,
        summary="The backups of this database, newest first, and how far the one at work is",
        scope="backup:admin",
        query=BackupsQuery,
        answer=BackupList,
    ),
)
