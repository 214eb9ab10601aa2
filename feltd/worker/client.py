"""The verbs of the wire as methods, once, asynchronous; `Client` is the same for blocking code.

Every method repeats a lost reply with the same body, so each effect happens once. The methods
themselves stand in verbs/, a file a noun.
"""

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Self

from feltd.worker.verbs.calls import Json
from feltd.worker.verbs.claims import ClaimVerbs
from feltd.worker.verbs.events import EventVerbs
from feltd.worker.verbs.groups import GroupVerbs
from feltd.worker.verbs.holds import HoldVerbs
from feltd.worker.verbs.house import HouseVerbs
from feltd.worker.verbs.identity import IdentityVerbs
from feltd.worker.verbs.placements import PlacementVerbs
from feltd.worker.verbs.pools import PoolVerbs
from feltd.worker.verbs.state import StateVerbs
from feltd.worker.verbs.triggers import TriggerVerbs
from feltd.worker.verbs.workers import WorkerVerbs
from feltd.worker.verbs.workloads import WorkloadVerbs


class AsyncClient(
    HouseVerbs,
    IdentityVerbs,
    WorkerVerbs,
    PoolVerbs,
    WorkloadVerbs,
    GroupVerbs,
    ClaimVerbs,
    HoldVerbs,
    PlacementVerbs,
    TriggerVerbs,
    EventVerbs,
    StateVerbs,
):
    """The daemon at `url` (else FELTD_URL) for the bearer `key` (else FELTD_KEY).

    `socket` is the path of the daemon's local socket instead. `tenant` names the tenant of calls
    that need one. A call is repeated for `patience_ms` when no answer comes (None: for ever).
    Refusals are raised as `Refusal`, silence as `Unreachable`.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_ended: object) -> None:
        await self.close()


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

    def changes(self, after: int | None = None, **which: Any) -> Iterator[Json]:
        """The changes of a tenant, one after another. See AsyncClient.changes."""
        items = self._client.changes(after, **which)
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


for _name, _verb in inspect.getmembers(AsyncClient, inspect.iscoroutinefunction):
    if not _name.startswith("_") and _name != "close":
        setattr(Client, _name, _blocking(_verb))
