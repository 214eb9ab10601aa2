"""Calls of the daemon to itself: the SDK's requests, straight into the application.

No socket lies between, and nothing else is left out: the gate, the door, the permits and the
deadlines are those of every call. A caller that gives up is a client that went away.
"""

import asyncio
from typing import Any

import httpx2

from feltd.api.request import ON_GONE, Gone
from feltd.api.stack import Stack

#: Whoever asks where a call comes from is told: from this machine.
CLIENT = ("127.0.0.1", 0)


class Inside(httpx2.AsyncBaseTransport):
    """A transport into one application."""

    def __init__(self, app: Stack) -> None:
        self._app = app
        self._calls: set[asyncio.Task[None]] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The whole answer; ReadTimeout where the caller's own time is over before it."""
        call = _Call(request, await request.aread())
        task = asyncio.get_running_loop().create_task(
            self._app(call.scope, call.receive, call.send)
        )
        self._calls.add(task)
        task.add_done_callback(self._ended)
        limit_s = (request.extensions.get("timeout") or {}).get("read")
        try:
            await asyncio.wait([task], timeout=limit_s)
        finally:
            # Answered, it hears this after its answer; given up, while it still waits.
            call.gone.set()
        if not task.done():
            raise httpx2.ReadTimeout("the daemon has not answered itself", request=request)
        task.result()
        return httpx2.Response(call.status, headers=call.headers, content=bytes(call.body))

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._calls.discard(task)
        if not task.cancelled():
            # Looked at here too, for calls that nobody waits for any more.
            task.exception()


class _Call:
    """One call as ASGI has it."""

    def __init__(self, request: httpx2.Request, content: bytes) -> None:
        self.gone = Gone()
        self.status = 500
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self._content: bytes | None = content
        path, _, query = request.url.raw_path.partition(b"?")
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "client": CLIENT,
            "server": (request.url.host, request.url.port),
            "extensions": {ON_GONE: self.gone.when},
        }

    async def receive(self) -> dict[str, Any]:
        if self._content is not None:
            content, self._content = self._content, None
            return {"type": "http.request", "body": content, "more_body": False}
        left = asyncio.Event()
        self.gone.when(left.set)
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message.get("headers") or ())
        elif message["type"] == "http.response.body":
            self.body += message.get("body") or b""
