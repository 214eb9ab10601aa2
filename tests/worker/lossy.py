"""A wire between a worker and its daemon that loses replies, sheds, or falls silent, as told.

It speaks enough HTTP to know which request a reply belongs to. What it forwards it forwards
byte for byte; the daemon behind it is the real one.
"""

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

#: What to do with a request: pass it, lose its reply (the daemon has done it), or refuse it 503.
PASS, LOSE, SHED = "pass", "lose", "shed"

SHED_ANSWER = (
    b"HTTP/1.1 503 \r\ncontent-type: application/problem+json\r\nretry-after: 0\r\n"
    b"connection: close\r\ncontent-length: 92\r\n\r\n"
    b'{"code": "SERVICE_OVERLOADED", "detail": "full", "next": "repeat", "committed": false}      '
)


class Wire:
    """A proxy on its own thread. `judge` sees "POST /path" and the number of such lines so far."""

    def __init__(self, url: str, judge: Callable[[str, int], str] = lambda _line, _n: PASS) -> None:
        self._to = urlsplit(url)
        self.judge = judge
        self._passing = threading.Event()
        self._passing.set()
        self.counts: dict[str, int] = {}
        self.lost: list[str] = []
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._serve, "127.0.0.1", 0))
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_ended: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Fall silent: nothing passes in either direction until `mend`."""
        self._passing.clear()

    def mend(self) -> None:
        """Pass again; what was open is cut, as after a real outage."""
        self._passing.set()
        for writer in list(self._open):
            self._loop.call_soon_threadsafe(writer.transport.abort)

    async def _close(self) -> None:
        self._passing.set()
        self._server.close()
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    def _do(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
            there, back = await asyncio.open_connection(self._to.hostname, self._to.port)
            self._open.add(back)
            try:
                while await self._exchange(reader, writer, there, back):
                    pass
            finally:
                back.close()
                self._open.discard(back)
        writer.close()
        self._open.discard(writer)

    async def _exchange(self, reader: Any, writer: Any, there: Any, back: Any) -> bool:
        """One request and its reply; False where the connection ends."""
        head, body = await message(reader)
        line = " ".join(head.split(b"\r\n", 1)[0].decode().split()[:2])
        kind = re.sub(r"worker_[0-9a-f]+|workload_[0-9a-f]+", "…", line)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        await self._while_silent()
        verdict = self.judge(kind, self.counts[kind])
        if verdict == SHED:
            writer.write(SHED_ANSWER)
            await writer.drain()
            return False
        back.write(head + body)
        await back.drain()
        head, body = await message(there)
        await self._while_silent()
        if verdict == LOSE:
            self.lost.append(kind)
            return False
        writer.write(head + body)
        await writer.drain()
        return True

    async def pause(self, seconds: float) -> None:
        """Hold up what is under way on this connection."""
        await asyncio.sleep(seconds)

    async def _while_silent(self) -> None:
        await self._loop.run_in_executor(None, self._passing.wait)


async def message(reader: Any) -> tuple[bytes, bytes]:
    """One request or reply: its head and its body, as they came."""
    head = await reader.readuntil(b"\r\n\r\n")
    found = re.search(rb"(?i)content-length: *(\d+)", head)
    return head, await reader.readexactly(int(found.group(1))) if found else b""
