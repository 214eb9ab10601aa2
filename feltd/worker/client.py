"""The verbs of the wire as methods, once, asynchronous; `Client` is the same for blocking code.

Bodies and answers are plain JSON values: a member this version does not know passes through. Every
method repeats a lost reply with the same body, so each effect happens once.
"""

import asyncio
import functools
import inspect
import os
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import httpx2

from feltd.worker import feed
from feltd.worker.transport import PATIENCE_MS, Call, Transport

Json = dict[str, Any]


class AsyncClient:
    """The daemon at `url` (else FELTD_URL) for the bearer `key` (else FELTD_KEY).

    `socket` is the path of the daemon's local socket instead. `tenant` names the tenant of calls
    that need one. A call is repeated for `patience_ms` when no answer comes (None: for ever).
    Refusals are raised as `Refusal`, silence as `Unreachable`.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        socket: str | None = None,
        tenant: str | None = None,
        patience_ms: int | None = PATIENCE_MS,
        inside: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        local = socket is not None or inside is not None
        address = url or ("http://localhost" if local else os.environ.get("FELTD_URL"))
        if not address:
            raise ValueError("no address: give url, or set FELTD_URL")
        bearer = key if key is not None or local else os.environ.get("FELTD_KEY")
        self.transport = Transport(address, bearer, socket=socket, inside=inside)
        self.patience_ms = patience_ms
        self._headers = {"X-Feltd-Tenant": tenant} if tenant else {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_ended: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give the connections back. Safe to repeat."""
        await self.transport.close()

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        wait_ms: int = 0,
        keyed: bool = False,
        **how: Any,
    ) -> Any:
        """Any call of the wire; the methods below are this one with a path.

        `keyed` sends an Idempotency-Key, for POSTs whose body has no key of its own. `how` takes
        `bearer` (another key than the client's), `answer_s` and `patience_ms`.
        """
        headers = dict(self._headers)
        if keyed:
            headers["Idempotency-Key"] = secrets.token_hex(16)
        how.setdefault("patience_ms", self.patience_ms)
        call = Call(method, path, body, query=query, headers=headers, wait_ms=wait_ms, **how)
        return await self.transport.send(call)

    async def pages(self, path: str, **query: Any) -> AsyncIterator[Json]:
        """Every item of a list, page by page, in the list's order."""
        cursor: str | None = None
        while True:
            page = await self.call("GET", path, query={**query, "cursor": cursor})
            for item in page["items"]:
                yield item
            cursor = page.get("next_cursor")
            if not cursor:
                return

    async def _list(self, path: str, most: int | None, **query: Any) -> list[Json]:
        found: list[Json] = []
        query.setdefault("limit", min(most or 500, 500))
        async for item in self.pages(path, **query):
            found.append(item)
            if most is not None and len(found) >= most:
                break
        return found

    # -- who I am, and how the daemon is

    async def me(self, **how: Any) -> Json:
        """The principal behind the key, with the facts of its bound grant."""
        return _object(await self.call("GET", "/v1/auth/me", **how))

    async def health(self) -> Json:
        """What the daemon says of itself; needs no key."""
        return _object(await self.call("GET", "/health"))

    async def acknowledge(self) -> None:
        """Take note of a recovered store, so that strict readiness passes again."""
        await self.call("POST", "/v1/health/acknowledge")

    # -- identity

    async def create_key(self, **body: Any) -> Json:
        """A new key; its `secret` is in this answer and nowhere else."""
        return _object(await self.call("POST", "/v1/keys", body, keyed=True))

    async def keys(self, most: int | None = None) -> list[Json]:
        """The keys the caller may see, newest first."""
        return await self._list("/v1/keys", most)

    async def revoke_key(self, key_id: str) -> None:
        """End a key, and those it obtained, at the next statement."""
        await self.call("DELETE", _path("keys", key_id))

    async def rotate_key(self, key_id: str, overlap_ms: int = 0) -> Json:
        """A new secret for a key; the old one works on for `overlap_ms`."""
        body = {"overlap_ms": overlap_ms}
        return _object(await self.call("POST", _path("keys", key_id, "rotate"), body, keyed=True))

    async def issue_grant(self, **body: Any) -> Json:
        """A signed permission: `{grant, token}`."""
        return _object(await self.call("POST", "/v1/grants", body, keyed=True))

    async def grants(self, most: int | None = None, **query: Any) -> list[Json]:
        """The grants the caller may see, newest first."""
        return await self._list("/v1/grants", most, **query)

    async def grant(self, grant_id: str) -> Json:
        """One grant as it stands."""
        return _object(await self.call("GET", _path("grants", grant_id)))

    async def replace_grant(self, grant_id: str, **body: Any) -> Json:
        """Change a grant; claims that exceed it end: `{grant, token, fenced_claims, remaining}`."""
        return _object(await self.call("PUT", _path("grants", grant_id), body))

    async def revoke_grant(self, grant_id: str, **body: Any) -> Json:
        """End a grant, its descendants, the keys bound to them and the claims under them."""
        return _object(await self.call("POST", _path("grants", grant_id, "revoke"), body))

    # -- workers

    async def register(self, body: Json, **how: Any) -> Json:
        """Register a worker. The same process_id with the same body changes nothing."""
        return _object(await self.call("POST", "/v1/workers", body, **how))

    async def workers(self, most: int | None = None, **query: Any) -> list[Json]:
        """The workers the caller may see."""
        return await self._list("/v1/workers", most, **query)

    async def worker(self, worker_id: str, *, recent: int | None = None, **how: Any) -> Json:
        """One worker; `recent` adds that many of its last claims."""
        query = {"recent": recent}
        return _object(await self.call("GET", _path("workers", worker_id), query=query, **how))

    async def remove_worker(self, worker_id: str) -> None:
        """Remove a worker without live claims."""
        await self.call("DELETE", _path("workers", worker_id))

    async def drain(self, worker_id: str, body: Json | None = None, **how: Any) -> Json:
        """Give a worker no more work: `{worker, outstanding_claims, safe_to_stop, safe_at_ms}`."""
        path = _path("workers", worker_id, "drain")
        return _object(await self.call("POST", path, body or {}, **how))

    async def resume(self, worker_id: str) -> Json:
        """End a drain."""
        return _object(await self.call("POST", _path("workers", worker_id, "resume"), {}))

    async def recover(self, worker_id: str) -> Json:
        """Give an OFFLINE worker one timeout to reconcile."""
        return _object(await self.call("POST", _path("workers", worker_id, "recover"), {}))

    async def heartbeat(self, worker_id: str, body: Json, **how: Any) -> Json:
        """Say that the process lives, renew what it holds, hear the differences."""
        path = _path("workers", worker_id, "heartbeat")
        return _object(await self.call("POST", path, body, **how))

    async def reconcile(self, worker_id: str, body: Json, **how: Any) -> Json:
        """Compare both sides after an outage; the daemon's rows decide."""
        path = _path("workers", worker_id, "reconcile")
        return _object(await self.call("POST", path, body, **how))

    async def pull(self, worker_id: str, body: Json, **how: Any) -> Json:
        """Take up to `max` workloads, waiting up to `wait_ms`. A request_id is added."""
        body = {"request_id": secrets.token_hex(16), **body}
        path = _path("workers", worker_id, "claims")
        wait_ms = int(body.get("wait_ms") or 0)
        return _object(await self.call("POST", path, body, wait_ms=wait_ms, **how))

    async def exchange(self, worker_id: str, body: Json, **how: Any) -> Json:
        """Deliver many outcomes and take work in one call; each item stands for itself."""
        wanted = body.get("claim")
        wait_ms = 0
        if wanted is not None:
            body = {**body, "claim": {"request_id": secrets.token_hex(16), **wanted}}
            wait_ms = int(wanted.get("wait_ms") or 0)
        path = _path("workers", worker_id, "exchange")
        return _object(await self.call("POST", path, body, wait_ms=wait_ms, **how))

    # -- events

    def events(
        self, after: int | None = None, *, follow: bool = True, wait_ms: int = 20_000
    ) -> AsyncIterator[Json]:
        """What happened in the key's tenants, one event after another, none missing, none twice.

        Begins behind seq `after`; None: at the oldest kept. At the end of the feed it waits for
        more, through any outage of the daemon, unless `follow` is off. Whoever keeps the seq of
        the last event he is done with goes on from there. Raises Refusal EVENTS_COMPACTED where
        the feed does not reach back to `after` any more.
        """
        if not follow:
            return feed.follow(self.call, after, None)
        return feed.follow(self.call, after, wait_ms, patience_ms=None)

    # -- workloads and claims

    async def create(self, body: Json) -> Json:
        """A workload. An idempotency_key is made where the body has none."""
        body = {"idempotency_key": secrets.token_hex(16), **body}
        return _object(await self.call("POST", "/v1/workloads", body))

    async def create_batch(self, workloads: list[Json], *, atomic: bool = False) -> list[Json]:
        """Up to 1,000 workloads in one transaction, answered item by item."""
        named = [{"idempotency_key": secrets.token_hex(16), **one} for one in workloads]
        body = {"workloads": named, "atomic": atomic}
        answer = await self.call("POST", "/v1/workloads/batch", body)
        return list(answer["items"])

    async def workload(self, workload_id: str, wait_ms: int = 0) -> Json:
        """One workload; with `wait_ms` (up to 30,000) once it is final, or as it is by then."""
        query = {"wait_ms": wait_ms} if wait_ms else None
        path = _path("workloads", workload_id)
        return _object(await self.call("GET", path, query=query, wait_ms=wait_ms))

    async def workloads(self, most: int | None = None, **query: Any) -> list[Json]:
        """Workloads, newest first, filtered as the wire says."""
        return await self._list("/v1/workloads", most, **query)

    async def workload_events(self, workload_id: str, after: int = 0) -> Json:
        """What happened to a workload, oldest first, behind seq `after`: one page."""
        path = _path("workloads", workload_id, "events")
        return _object(await self.call("GET", path, query={"after": after, "limit": 500}))

    async def workload_logs(self, workload_id: str, after: int = 0, wait_ms: int = 0) -> Json:
        """Log lines of a workload behind seq `after`, waiting up to `wait_ms` for one."""
        query = {"after": after, "wait_ms": wait_ms or None}
        path = _path("workloads", workload_id, "logs")
        return _object(await self.call("GET", path, query=query, wait_ms=wait_ms))

    async def late_results(self, workload_id: str) -> list[Json]:
        """Outcomes that came after their claim had ended: kept as evidence, never the result."""
        answer = await self.call("GET", _path("workloads", workload_id, "late-results"))
        return list(answer["items"])

    async def claim(self, workload_id: str, body: Json | None = None) -> Json:
        """Take one workload by its id."""
        return _object(
            await self.call("POST", _path("workloads", workload_id, "claim"), body or {})
        )

    async def fenced(self, verb: str, workload_id: str, body: Json, **how: Any) -> Json:
        """start, renew, checkpoint, complete, fail, release or log under the fence in `body`."""
        return _object(await self.call("POST", _path("workloads", workload_id, verb), body, **how))

    async def cancel(self, workload_id: str, **body: Any) -> Json:
        """Cancel; work that is held is told, with force it is fenced at once."""
        return _object(await self.call("POST", _path("workloads", workload_id, "cancel"), body))

    async def requeue(self, workload_id: str, **body: Any) -> Json:
        """Give a dead letter another life, its attempts counted anew."""
        path = _path("workloads", workload_id, "requeue")
        return _object(await self.call("POST", path, body, keyed=True))

    async def claims(self, most: int | None = None, **query: Any) -> list[Json]:
        """Claims, newest first; `live=True` for those that hold."""
        return await self._list("/v1/claims", most, **query)

    async def evict(self, claim_id: str, **body: Any) -> Json:
        """End a live claim by hand; the workload goes where `to` says."""
        return _object(await self.call("POST", _path("claims", claim_id, "evict"), body))


class Client:
    """`AsyncClient` for blocking code: the same methods, driven on a thread of its own.

    Use it as a context manager, or close it. Safe to share between threads.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]: ...

    def __init__(self, url: str | None = None, key: str | None = None, **how: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="feltd-client", daemon=True
        )
        self._thread.start()
        try:
            self._client = self.drive(_made(url, key, how))
        except BaseException:
            self._stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_ended: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections and the thread back. Safe to repeat."""
        if not self._loop.is_closed():
            self.drive(self._client.close())
            self._stop()

    def drive(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the client's thread and wait for it; Ctrl-C cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def pages(self, path: str, **query: Any) -> Iterator[Json]:
        """Every item of a list, page by page, in the list's order."""
        items = self._client.pages(path, **query)
        while (item := self.drive(_next(items))) is not None:
            yield item

    def events(
        self, after: int | None = None, *, follow: bool = True, wait_ms: int = 20_000
    ) -> Iterator[Json]:
        """What happened, one event after another. See AsyncClient.events."""
        items = self._client.events(after, follow=follow, wait_ms=wait_ms)
        while (item := self.drive(_next(items))) is not None:
            yield item

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _made(url: str | None, key: str | None, how: Json) -> AsyncClient:
    return AsyncClient(url, key, **how)


async def _next(items: AsyncIterator[Json]) -> Json | None:
    return await anext(items, None)


def _blocking(verb: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(verb)
    def drive(self: Client, *arguments: Any, **named: Any) -> Any:
        return self.drive(verb(self._client, *arguments, **named))

    return drive


for _name, _verb in list(vars(AsyncClient).items()):
    if not _name.startswith("_") and inspect.iscoroutinefunction(_verb) and _name != "close":
        setattr(Client, _name, _blocking(_verb))


def _path(*segments: str) -> str:
    return "/v1/" + "/".join(quote(segment, safe="") for segment in segments)


def _object(answer: Any) -> Json:
    """The answer of a call that answers with an object; an empty one where it has no body."""
    return answer if isinstance(answer, dict) else {}
