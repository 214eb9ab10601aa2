"""The door: from a bearer to a caller, out of memory, before anything else is spent on a call.

Every key is in a map, read once at the start; a commit that changes a key takes it out of the map
before its own answer is given, and the next call with it reads it again. So a revocation holds at
the next call, an unknown key costs no read, and neither bearer nor secret is ever kept or logged.
What the door lets in is tested again where it commits (identity/principals.confirm).
"""

import asyncio
import hashlib
import hmac
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import structlog

from feltd.api import byhand, cookies
from feltd.api.request import Request
from feltd.api.routes import Route
from feltd.api.wire import invalid, query_pairs
from feltd.clock import wall_ms
from feltd.config import Config
from feltd.errors import Refused
from feltd.identity import bearer, roles
from feltd.identity.principals import LOCAL, NO_KEY, OPEN, OPEN_TENANT, ended, require_scope
from feltd.identity.standing import MINUTE_MS, Standing, standings
from feltd.model.base import Caller, Name
from feltd.store.readers import Readers

#: Reading every key at the start, or after a foreign write: 100,000 take about a second.
FILL_TIMEOUT_MS = 30_000
#: Keys whose use is written down in one operation of the writer.
USED_MAX = 500

#: HTTP knows the scheme in any case.
SCHEME = "bearer "
#: What these open belongs to no tenant and tells of all of them.
WHOLE_DAEMON = frozenset({"audit:read", "backup:admin", "daemon:operate", "metrics:read"})
#: What the rules of these routes ask of people; anybody's own work is also a creator's.
ASKED_OF_PEOPLE = {"cancel": "workloads:operate", "cancel_group": "workloads:operate"}

HEADER_CHARS = len(SCHEME) + bearer.BEARER_CHARS
#: Where the id stands in the header. What matches a digest has the shape of a key as well.
ID_PLACE = slice(len(SCHEME) + 7, len(SCHEME) + 7 + bearer.ID_CHARS)
TENANT_HEADER = b"x-feltd-tenant"

S = TypeVar("S", bound=msgspec.Struct)

#: Compared with when a key is unknown, so that unknown and wrong cost the same.
_NOBODY = hashlib.sha256(b"nobody").digest()

log = structlog.get_logger("feltd.door")


class Door:
    """The map of keys of one daemon. Used on the event loop alone."""

    def __init__(self, config: Config, clock_ms: Callable[[], int] = wall_ms) -> None:
        """`clock_ms` gives wall time, which keys expire by."""
        self._namespace = config.namespace
        self._no_auth = config.no_auth
        self._clock_ms = clock_ms
        self._readers: Readers | None = None
        self._known: dict[str, Standing] = {}
        self._stale: set[str] = set()
        # Nothing is known before the first fill; nothing is again after a foreign write.
        self._blank = True
        self._catching_up: asyncio.Task[None] | None = None
        self._failing = False
        self._used: dict[str, int] = {}

    async def fill(self, readers: Readers) -> None:
        """Read every key; once, before the first call."""
        self._readers = readers
        await self._catch_up()

    def told(self, topic: str, key: str) -> None:
        """Hear of a commit: a key that changed is read again before it is let in again."""
        if topic == "key":
            self._known.pop(key, None)
            self._stale.add(key)
        elif topic == "foreign_write":
            self._known = {}
            self._blank = True

    async def authenticate(self, request: Request) -> None:
        """Set `request.caller`, or refuse UNAUTHENTICATED or FORBIDDEN. See `allow`.

        Without a bearer the local socket lets the operator in, elsewhere a session's cookie its
        user; under --no-auth everybody is in. A session is narrowed to what the route needs.
        """
        if self._no_auth:
            byhand.refuse_brought(request)
            caller = OPEN
        else:
            text = request.header(b"authorization")
            if text is None and request.local:
                byhand.refuse_led(request)
                caller = LOCAL
            else:
                if text is None and (session := cookies.session_of(request)) is not None:
                    caller = await self.caller(SCHEME + session, used=not _of_itself(request))
                    cookies.refuse_foreign(request)
                    request.by_cookie = caller.session_id
                else:
                    caller = await self.caller(text)
                if caller.session_id is not None:
                    caller = _as_before(request, caller) or narrowed(request, caller)
        allow(request.route, caller, request.path_params)
        request.caller = caller

    async def caller(self, authorization: str | None, *, used: bool = True) -> Caller:
        """Who an Authorization header is. Refuses UNAUTHENTICATED.

        `reasons` say why a key has ended, only to the bearer whose secret is right. A call that
        nobody made himself has not `used` it.
        """
        if authorization is None or len(authorization) != HEADER_CHARS:
            raise Refused("UNAUTHENTICATED", NO_KEY)
        text = authorization[len(SCHEME) :].encode()
        if authorization[: len(SCHEME)].lower() != SCHEME or not bearer.matches(text):
            raise Refused("UNAUTHENTICATED", NO_KEY)
        key_id = authorization[ID_PLACE]
        known = self._known.get(key_id)
        while known is None and (self._catching_up or self._blank or key_id in self._stale):
            await self._catch_up()
            known = self._known.get(key_id)
        digest = _NOBODY if known is None else known.digest
        right = hmac.compare_digest(hashlib.sha256(text).digest(), digest)
        if known is None or not right:
            raise Refused("UNAUTHENTICATED", NO_KEY)
        at_ms = self._clock_ms()
        if known.until_ms <= at_ms and (why := known.ending(at_ms)) is not None:
            raise ended(why)
        if known.namespaces is not None and self._namespace not in known.namespaces:
            raise Refused("UNAUTHENTICATED", "the key does not list this daemon's namespace")
        minute = at_ms // MINUTE_MS
        if used and minute > known.used_minute:
            known.used(minute)
            self._used[key_id] = minute * MINUTE_MS
        return known.caller

    def take_used(self) -> list[tuple[str, int]]:
        """Keys used since they were last taken, with the minute, at most USED_MAX; for the keeper.

        What `identity.keys.note_used` is given.
        """
        taken = list(self._used.items())[:USED_MAX]
        for key_id, _ in taken:
            del self._used[key_id]
        return taken

    async def _catch_up(self) -> None:
        # One reading for all who wait; a caller that goes away does not end it.
        if self._catching_up is None:
            self._catching_up = asyncio.get_running_loop().create_task(self._read())
            # Looked at here too: those who waited for it may all have gone.
            self._catching_up.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._catching_up)

    async def _read(self) -> None:
        try:
            while self._blank or self._stale:
                await self._read_once()
        finally:
            self._catching_up = None

    async def _read_once(self) -> None:
        if self._readers is None:
            raise Refused("SERVICE_OVERLOADED", "the daemon is starting", committed=False)
        wanted = None if self._blank else sorted(self._stale)
        asked, self._stale = self._stale, set()
        self._blank = False
        try:
            found = await self._readers.read(standings, wanted, FILL_TIMEOUT_MS)
        except BaseException as error:
            self._stale |= asked
            self._blank = self._blank or wanted is None
            if isinstance(error, Exception) and not self._failing:
                # Once: every call that waits for a key would say it again.
                self._failing = True
                log.error("bearer authentication worker failed", error=repr(error))
            raise
        self._failing = False
        if self._blank:
            return
        # What changed while this was read is older here than in the database.
        for key_id in self._stale:
            found.pop(key_id, None)
        for key_id in found.keys() & self._used.keys():
            # Its row learns of this use only later.
            found[key_id].used(self._used[key_id] // MINUTE_MS)
        if wanted is None:
            self._known = found
        else:
            self._known.update(found)


def _as_before(request: Request, caller: Caller) -> Caller | None:
    """The session's caller as this call began, where it is asked for again: an open poll or stream.

    It goes on reading what it read. Refuses FORBIDDEN where his roles no longer allow all of that.
    """
    before: Caller | None = request.caller
    if before is None or before.session_id != caller.session_id:
        return None
    if not roles.covers(caller.roles or {}, before):
        raise Refused("FORBIDDEN", roles.CHANGED)
    return before


def _of_itself(request: Request) -> bool:
    """Whether a page makes this call by itself, as long as it is open: nobody may be there.

    Else the browser of somebody who went home would keep his session alive.
    """
    if request.scope["method"] != "GET":
        return False
    listens = "text/event-stream" in (request.header(b"accept") or "")
    return listens or any(name == "part" for name, _ in query_pairs(request.query_string))


def narrowed(request: Request, caller: Caller) -> Caller:
    """A session's caller as he is for this call: see identity/roles.narrow.

    What is the whole daemon's is not narrowed to a tenant that a probe adds to its URL.
    """
    route = request.route
    scope = ASKED_OF_PEOPLE.get(route.operation, route.scope)
    named = None if scope in WHOLE_DAEMON else next(iter(_named(request, None).values()), None)
    return roles.narrow(caller, scope, named)


def allow(route: Route, caller: Caller, path_params: dict[str, str]) -> None:
    """Refuse FORBIDDEN unless the caller may use the route at all.

    A route with a scope needs that scope, one of the whole daemon also a key of every tenant; a
    route for workers needs a worker's key. A worker's key
    is good for no path under another worker, whatever the route; `any` routes ask more in a rule.
    """
    if route.auth == "scope" and route.scope is not None:
        require_scope(caller, route.scope)
        if route.scope in WHOLE_DAEMON and "*" not in caller.tenants:
            raise Refused("FORBIDDEN", "this is the whole daemon's: it needs a key of tenants *")
    elif route.auth == "worker" and caller.worker_id is None and not caller.open:
        raise Refused("FORBIDDEN", "this needs the key of a worker")
    of_worker = caller.worker_id is not None and route.path.startswith("/v1/workers/{")
    if of_worker and next(iter(path_params.values())) != caller.worker_id:
        raise Refused("FORBIDDEN", "the key is another worker's")


def tenant_of(request: Request, body: object = None) -> str:
    """The tenant a call is about, where its object is keyed by tenant or made with one.

    The one the key has; of several the one named by X-Feltd-Tenant, the query or the body. Names
    that differ, or none where there are several, refuse the route's invalid code; a tenant that is
    not the caller's refuses FORBIDDEN.
    """
    caller: Caller = request.caller
    code = request.route.invalid_code
    named = _named(request, body)
    if len(set(named.values())) > 1:
        raise invalid(code, _pointer(named), f"{' and '.join(named)} name different tenants")
    for tenant_id in named.values():
        if not caller.may_see(tenant_id):
            raise Refused("FORBIDDEN", "the caller's key is not of this tenant")
        return tenant_id
    if caller.open:
        return OPEN_TENANT
    if len(caller.tenants) != 1 or caller.tenants == ("*",):
        raise invalid(
            code, "/tenant_id", "is required, here or in X-Feltd-Tenant: the key has several"
        )
    return caller.tenants[0]


def tenant_filter(request: Request) -> str | None:
    """The one tenant a list is asked for by header or query, None for all of the caller's.

    Refuses as `tenant_of` does.
    """
    return tenant_of(request) if _named(request, None) else None


def in_tenant(request: Request, body: S) -> S:
    """A body that makes something, with the tenant that header or query name in it.

    Where they name none it stays as it is: the grant says the tenant. Refuses as `tenant_of` does.
    """
    if request.header(TENANT_HEADER) is None and not request.query_string:
        return body
    if not _named(request, None):
        return body
    return msgspec.structs.replace(body, tenant_id=tenant_of(request, body))


def _named(request: Request, body: object) -> dict[str, str]:
    named: dict[str, Any] = {"X-Feltd-Tenant": request.header(TENANT_HEADER)}
    for name, text in query_pairs(request.query_string):
        # The form of a page sends each of its fields, also the one that was left empty.
        if name == "tenant_id" and (text or not request.route.page):
            named["the query"] = text
    named["the body"] = getattr(body, "tenant_id", None)
    named = {where: text for where, text in named.items() if text is not None}
    for where, text in named.items():
        try:
            msgspec.convert(text, Name)
        except msgspec.ValidationError:
            raise invalid(
                request.route.invalid_code, "/tenant_id", f"{where} names no tenant"
            ) from None
    return named


def _pointer(named: dict[str, str]) -> str:
    return "/tenant_id" if "the body" in named else ""
