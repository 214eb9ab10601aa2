"""The wire between a worker under test and its daemon: it sees every call, and misbehaves as told.

It speaks enough HTTP to know which answer belongs to which call, and what both say. What it does
not change it passes on byte for byte; nothing here judges.
"""

import asyncio
import contextlib
import re
import threading
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

Json = dict[str, Any]

#: The lists of an exchange, each of whose items is the single call of that name.
ITEMS = ("start", "renew", "checkpoint", "complete", "fail", "release", "log")
_PLAIN = {"/v1/workers": "register", "/v1/auth/me": "me"}
_LENGTH = re.compile(rb"(?im)^content-length:[ \t]*(\d+)[ \t]*\r$")
_CHUNKED = re.compile(rb"(?im)^transfer-encoding:[ \t]*chunked[ \t]*\r$")
_EXPECTS = re.compile(rb"(?im)^expect:[ \t]*100-continue[ \t]*\r$")
_BEARER = re.compile(rb"(?im)^authorization:[ \t]*bearer[ \t]+(\S+)[ \t]*\r$")
SHED = (
    b'{"code": "SERVICE_OVERLOADED", "detail": "server is at its in-flight request limit", '
    b'"next": "repeat", "committed": false}'
)


@dataclass(slots=True)
class Call:
    """One call as it passed; `status` stays None until the answer went to the worker.

    `verbs` are what it asks for: those of its items too, where it is an exchange.
    """

    method: str
    path: str
    bearer: str
    body: Json
    raw: bytes
    at_s: float
    verbs: frozenset[str]
    status: int | None = None
    answer: Json = field(default_factory=dict)
    answered_s: float = 0.0
    lost: bool = False

    @property
    def next(self) -> set[str]:
        """What refusals in its answer told the worker to do; none where nothing was refused."""
        if self.status is None or self.lost:
            return set()
        if self.status >= 400:
            return {str(self.answer.get("next"))}
        told = [one for one in _list(self.answer.get("outcomes")) if _is(one)]
        return {str(one.get("next")) for one in told if one.get("ok") is False}

    def accepted(self, verb: str) -> bool:
        """Whether the worker was told that this was done."""
        if self.status != 200 or self.lost or verb not in self.verbs:
            return False
        told = [one for one in _list(self.answer.get("outcomes")) if _is(one)]
        return not any(one.get("op") == verb and one.get("ok") is False for one in told)

    def names(self, claim_id: str) -> bool:
        """Whether the worker acts on the claim in this call; a reconciliation only speaks of it."""
        if "reconcile" in self.verbs:
            return False
        items = [one for verb in ITEMS for one in _list(self.body.get(verb)) if _is(one)]
        beat = self.body.get("heartbeat") if _is(self.body.get("heartbeat")) else self.body
        running = _list((beat or {}).get("running_claims"))
        named = [self.body.get("claim_id"), *(one.get("claim_id") for one in items), *running]
        return claim_id in named

    def tells_lost(self, claim_id: str) -> bool:
        """Whether its answer told the worker that the claim is not its any more."""
        if self.lost or self.status is None:
            return False
        if "drop_claim" in self.next and self.body.get("claim_id") == claim_id:
            return True
        refused = [
            one.get("claim_id")
            for one in _list(self.answer.get("outcomes"))
            if _is(one) and one.get("next") == "drop_claim"
        ]
        return claim_id in [*_list(self.answer.get("fenced_claims")), *refused]


class Fault:
    """How the wire misbehaves; this one does not. Called on the wire's thread."""

    def sheds(self, call: Call) -> int | None:
        """Retry-After in seconds where the call is refused 503 and goes no further."""
        return None

    def there(self, call: Call) -> Json | None:
        """Another body to be sent on instead of the worker's."""
        return None

    def back(self, call: Call) -> Json | None:
        """Another answer to be given to the worker instead of the daemon's."""
        return None

    def loses(self, call: Call) -> bool:
        """Whether the worker never gets the answer; the daemon has done what it was asked."""
        return False


class Wire:
    """A listener for one worker, on the loop of `Wires`. `url` is what the worker is given."""

    def __init__(self, to: str, loop: asyncio.AbstractEventLoop) -> None:
        self.calls: list[Call] = []
        self.fault = Fault()
        self._to = urlsplit(to)
        self._loop = loop
        self._serving: set[asyncio.Task[Any]] = set()
        opened = asyncio.run_coroutine_threadsafe(self._open(), loop)
        self._server: asyncio.Server = opened.result()
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """Cut every connection and take no more. Safe to repeat."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()

    async def _open(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _close(self) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
                client = Stream(reader)
                while await self._exchange(client, writer):
                    pass
        finally:
            self._serving.discard(task)
            writer.transport.abort() if writer.transport.is_closing() else writer.close()

    async def _exchange(self, client: "Stream", writer: asyncio.StreamWriter) -> bool:
        """One call and its answer; False where the connection ends."""
        head, raw = await client.message(writer)
        call = _call(head, raw)
        self.calls.append(call)
        after_s = self.fault.sheds(call)
        if after_s is not None:
            call.status, call.answer = 503, msgspec.json.decode(SHED)
            # Before it is sent: nobody who waits from when he has it comes too early by this.
            call.answered_s = time.monotonic()
            writer.write(_head(503, len(SHED), f"retry-after: {after_s}\r\n") + SHED)
            await writer.drain()
            return False
        changed = self.fault.there(call)
        sent = raw if changed is None else msgspec.json.encode(changed)
        try:
            back, answer = await self._forward(client, _with_length(head, len(sent)) + sent)
        except OSError:
            return False  # the daemon is not there: the worker finds its connection closed
        call.answer = _object(answer)
        status = int(back.split(b" ", 2)[1])
        if self.fault.loses(call):
            call.lost, call.status = True, status
            return False
        call.status = status
        changed = self.fault.back(call)
        if changed is not None:
            call.answer, answer = changed, msgspec.json.encode(changed)
        writer.write(_with_length(back, len(answer)) + answer)
        await writer.drain()
        call.answered_s = time.monotonic()
        return b"connection: close" not in back.lower()

    async def _forward(self, client: "Stream", message: bytes) -> tuple[bytes, bytes]:
        """Ask the daemon; a worker that goes away meanwhile takes its call along."""
        reader, writer = await asyncio.open_connection(self._to.hostname, self._to.port)
        try:
            writer.write(message)
            answer = asyncio.ensure_future(Stream(reader).message(None))
            gone = asyncio.ensure_future(client.gone())
            try:
                await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    raise EOFError
                return await answer
            finally:
                for task in (answer, gone):
                    task.cancel()
                await asyncio.gather(answer, gone, return_exceptions=True)
        except EOFError as ended:
            raise ConnectionResetError from ended
        finally:
            writer.transport.abort()


class Stream:
    """What comes in on one side of a connection, message by message."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._ahead = bytearray()

    async def gone(self) -> None:
        """Return when the other side has closed."""
        while await self._more():
            pass

    async def message(self, writer: asyncio.StreamWriter | None) -> tuple[bytes, bytes]:
        """The next head and body. Raises EOFError at the end."""
        while (end := self._ahead.find(b"\r\n\r\n")) < 0:
            await self._must()
        head = self._take(end + 4)
        if writer is not None and _EXPECTS.search(head):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if _CHUNKED.search(head):
            return head, await self._chunks()
        found = _LENGTH.search(head)
        return head, await self._exactly(int(found.group(1)) if found else 0)

    async def _chunks(self) -> bytes:
        whole = b""
        while True:
            while (end := self._ahead.find(b"\r\n")) < 0:
                await self._must()
            size = int(self._take(end + 2).split(b";")[0], 16)
            whole += (await self._exactly(size + 2))[:-2]
            if size == 0:
                return whole

    async def _exactly(self, size: int) -> bytes:
        while len(self._ahead) < size:
            await self._must()
        return self._take(size)

    async def _must(self) -> None:
        if not await self._more():
            raise EOFError

    async def _more(self) -> bool:
        chunk = await self._reader.read(65_536)
        self._ahead += chunk
        return bool(chunk)

    def _take(self, size: int) -> bytes:
        taken = bytes(self._ahead[:size])
        del self._ahead[:size]
        return taken


class Wires:
    """The loop, on a thread of its own, that all wires of a run share."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)
        self._thread.start()

    def to(self, url: str) -> Wire:
        """A new wire to a daemon."""
        return Wire(url, self._loop)

    def close(self) -> None:
        """End the thread; the wires are closed by whoever opened them."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _call(head: bytes, raw: bytes) -> Call:
    method, path = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")[:2]
    found = _BEARER.search(head)
    body = _object(raw)
    bearer = found.group(1).decode("latin-1") if found else ""
    return Call(method, path, bearer, body, raw, time.monotonic(), _verbs(path, body))


def _verbs(path: str, body: Json) -> frozenset[str]:
    verb = _PLAIN.get(path.partition("?")[0]) or path.partition("?")[0].rpartition("/")[2]
    if verb != "exchange":
        return frozenset({verb})
    asked = {name for name in (*ITEMS, "heartbeat") if body.get(name)}
    return frozenset({verb, *asked, *(["claims"] if body.get("claim") else [])})


def _object(raw: bytes) -> Json:
    try:
        decoded = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _list(value: object) -> list[Any]:
    """An exchange's list; a pull has a flag of the same name."""
    return value if isinstance(value, list) else []


def _is(value: object) -> bool:
    return isinstance(value, dict)


def _head(status: int, size: int, more: str = "") -> bytes:
    return (
        f"HTTP/1.1 {status} \r\ncontent-type: application/problem+json\r\n{more}"
        f"connection: close\r\ncontent-length: {size}\r\n\r\n"
    ).encode()


def _with_length(head: bytes, size: int) -> bytes:
    """The head for a body of this size; one that fits already stays as it is."""
    found = _LENGTH.search(head)
    if found and int(found.group(1)) == size:
        return head
    if not found and not size and not _CHUNKED.search(head):
        return head
    kept = [
        line
        for line in head[:-4].split(b"\r\n")
        if not line.lower().startswith((b"content-length:", b"transfer-encoding:", b"expect:"))
    ]
    return b"\r\n".join([*kept, b"content-length: %d" % size, b"", b""])
