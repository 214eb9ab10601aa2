"""A line to a daemon that is cut again and again, and two readers who hold on to the feed."""

import asyncio
import http.client
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from feltd.worker import AsyncClient
from tests.api.events.listening import Listener
from tests.mesh.rebuilt import Rebuilt


class Line:
    """Passes bytes between its clients and whatever daemon `target` names at that moment."""

    def __init__(self, target: Callable[[], str]) -> None:
        self._target = target
        #: Connections that were open when they were cut.
        self.cuts = 0
        self._open: set[asyncio.Transport] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        ).result()
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """End every connection as a broken cable does, in the middle of whatever passes."""

        def abort() -> None:
            self.cuts += len(self._open)
            for transport in tuple(self._open):
                transport.abort()

        self._loop.call_soon_threadsafe(abort)

    def close(self) -> None:
        """Pass nothing more."""

        async def end() -> None:
            self._server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer.transport)  # type: ignore[arg-type]
        with suppress(OSError):
            address = urlsplit(self._target())
            there, back = await asyncio.open_connection(address.hostname, address.port)
            await asyncio.wait(
                [
                    asyncio.ensure_future(_pass(reader, back)),
                    asyncio.ensure_future(_pass(there, writer)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
            back.transport.abort()  # type: ignore[attr-defined]
        writer.transport.abort()  # type: ignore[attr-defined]
        self._open.discard(writer.transport)  # type: ignore[arg-type]


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while some := await reader.read(512):
            writer.write(some)
            await writer.drain()


class Follower:
    """A reader on a thread of its own that rebuilds the mesh from what it reads."""

    def __init__(self, follow: Callable[["Follower"], None]) -> None:
        self.known = Rebuilt()
        #: How often it was let in, all but the last of which broke off.
        self.opened = 0
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=follow, args=(self,))
        self._thread.start()

    def stop(self) -> None:
        """Listen no more."""
        self.stopped.set()
        self._thread.join()


def by_stream(url: str, key: str) -> Callable[[Follower], None]:
    """Server-sent events, each time from the last number that was heard."""

    def listen(self: Follower, last: int | None) -> Iterator[int | None]:
        with Listener(url, key, last=last) as listener:
            if listener.status == 200:
                self.opened += 1
            listener.connection.sock.settimeout(1.0)
            for heard in listener:
                if heard.event is None and heard.data is not None:
                    self.known.take(heard.data)
                yield heard.id

    def follow(self: Follower) -> None:
        last: int | None = None
        while not self.stopped.is_set():
            with suppress(OSError, http.client.HTTPException, ValueError):
                for number in listen(self, last):
                    last = last if number is None else number
            time.sleep(random.random() * 0.02)

    return follow


def by_client(url: str, key: str) -> Callable[[Follower], None]:
    """The SDK's iterator, which mends what breaks by itself."""

    async def listen(self: Follower, client: AsyncClient) -> None:
        async for event in client.events(wait_ms=2_000):
            self.known.take(event)

    async def until_stopped(self: Follower) -> None:
        async with AsyncClient(url, key) as client:
            listening = asyncio.ensure_future(listen(self, client))
            await asyncio.to_thread(self.stopped.wait)
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening

    return lambda self: asyncio.run(until_stopped(self))


def wait(done: Callable[[], Any], what: str, patience_s: float = 60.0) -> None:
    """Wait for something to become so."""
    ends = time.monotonic() + patience_s
    while not done():
        assert time.monotonic() < ends, f"never: {what}"
        time.sleep(0.05)
