"""One WebSocket from a worker to its daemon: frames with an id out, answers and news in.

The only other file of the SDK that sends bytes. It knows no claim: what a frame holds and what news
mean is the loop's. Whatever goes wrong with it ends it; every frame may be sent again over HTTP.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    CloseConnection,
    Event,
    Message,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import ProtocolError

from feltd.worker import refusal
from feltd.worker.refusal import Refusal, Unreachable
from feltd.worker.verbs.calls import Json

PROTOCOL = "feltd.v1"
OPEN_S = 5.0
ANSWER_S = 20.0
#: The daemon pings every 20 s; a line without three of them is dead.
SILENT_S = 65.0
#: Above the daemon's largest answer.
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
READ_BYTES = 256 * 1024


class Channel:
    """An open channel. `closed` is set once it is over, `why` says then what was said of it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        wire: WSConnection,
        on_news: Callable[[Json], None],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._wire = wire
        self._on_news = on_news
        self._numbers = 0
        self._asked: dict[int, asyncio.Future[Json]] = {}
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._reading: asyncio.Task[None] | None = None
        self.closed = asyncio.Event()
        self.why = ""

    @classmethod
    async def open(
        cls, url: str, worker_id: str, key: str | None, on_news: Callable[[Json], None]
    ) -> Self:
        """Upgrade a connection of its own.

        Raises Refusal where the daemon, or a proxy before it, answers anything else; Unreachable
        where nothing answers, the upgrade or the first frame.
        """
        try:
            async with asyncio.timeout(OPEN_S):
                channel, refused = await cls._open(url, worker_id, key, on_news)
        except (OSError, ProtocolError, EOFError, TimeoutError) as error:
            raise Unreachable(f"no channel to {url}: {error or type(error).__name__}") from error
        if refused is not None:
            channel._writer.transport.abort()
            raise refused
        channel._reading = asyncio.create_task(channel._read())
        # Something between may let the upgrade through and no frame.
        try:
            await channel.call({}, OPEN_S)
        except BaseException:
            await channel.close()
            raise
        return channel

    @classmethod
    async def _open(
        cls, url: str, worker_id: str, key: str | None, on_news: Callable[[Json], None]
    ) -> tuple[Self, Refusal | None]:
        address = urlsplit(url)
        secure = address.scheme == "https"
        host, port = address.hostname or "", address.port or (443 if secure else 80)
        context = ssl.create_default_context() if secure else None
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        channel = cls(reader, writer, WSConnection(ConnectionType.CLIENT), on_news)
        headers = [(b"feltd-protocol", b"1")]
        if key is not None:
            headers.append((b"authorization", f"Bearer {key}".encode()))
        try:
            opening = Request(
                host=address.netloc.rpartition("@")[2],
                target=f"{address.path.rstrip('/')}/v1/workers/{worker_id}/channel",
                subprotocols=[PROTOCOL],
                extra_headers=headers,
            )
            channel._send(opening)
            return channel, await channel._accepted()
        except BaseException:
            writer.transport.abort()
            raise

    async def _accepted(self) -> Refusal | None:
        """None once it is open, else what the upgrade was answered with."""
        refused: tuple[int, str | None] | None = None
        body = b""
        while True:
            received = await self._reader.read(READ_BYTES)
            self._wire.receive_data(received or None)
            for event in self._wire.events():
                if isinstance(event, AcceptConnection):
                    if event.subprotocol != PROTOCOL:
                        raise ProtocolError(f"the server does not speak {PROTOCOL}")
                    return None
                if isinstance(event, RejectConnection):
                    told = {name.lower(): text for name, text in event.headers}
                    after = told.get(b"retry-after")
                    refused = event.status_code, None if after is None else after.decode()
                    if not event.has_body:
                        return refusal.read(event.status_code, b"", refused[1])
                elif isinstance(event, RejectData) and refused is not None:
                    body += event.data
                    if event.body_finished or len(body) > MESSAGE_BYTES_MAX:
                        return refusal.read(refused[0], body, refused[1])
            if not received:
                raise EOFError("the connection ended")

    async def call(self, frame: Json, answer_s: float = ANSWER_S) -> Json:
        """One frame, and its answer. Raises Refusal, or Unreachable: then the channel is over."""
        if self.closed.is_set():
            raise Unreachable(f"the channel is over: {self.why}")
        self._numbers += 1
        number = self._numbers
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._send_frame({"id": number, **frame})
            async with asyncio.timeout(answer_s):
                await self._writer.drain()
                answer: Json = await future
        except TimeoutError as error:
            self._over("a frame was not answered in time")
            raise Unreachable("the channel did not answer in time") from error
        except OSError as error:
            self._over(str(error))
            raise Unreachable(f"the channel is over: {error}") from error
        finally:
            self._asked.pop(number, None)
        if "code" in answer:
            after = answer.get("retry_after_s")
            raise Refusal(
                str(answer["code"]),
                str(answer.get("detail") or ""),
                status=int(answer.get("status") or 0),
                next=str(answer.get("next") or "ask_operator"),
                facts=answer,
                retry_after_s=float(after) if isinstance(after, int) else None,
            )
        return answer

    async def close(self) -> None:
        """Say goodbye and close. Safe to repeat."""
        if not self.closed.is_set():
            with contextlib.suppress(OSError, ProtocolError):
                self._send(CloseConnection(code=1000))
        self._over("closed")
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    # The line

    def _send(self, event: Event) -> None:
        self._writer.write(self._wire.send(event))

    def _send_frame(self, frame: Json) -> None:
        try:
            self._send(TextMessage(data=msgspec.json.encode(frame).decode()))
        except ProtocolError as error:
            raise OSError(str(error)) from error

    async def _read(self) -> None:
        try:
            while not self.closed.is_set():
                async with asyncio.timeout(SILENT_S):
                    received = await self._reader.read(READ_BYTES)
                self._wire.receive_data(received or None)
                for event in self._wire.events():
                    self._hear(event)
        except (OSError, ProtocolError, ValueError) as error:
            self._over(str(error) or type(error).__name__)
        except TimeoutError:
            self._over("the daemon is silent")
        except Exception as error:
            self._over(repr(error))
            raise

    def _hear(self, event: Event) -> None:
        if isinstance(event, Message):
            data = event.data
            self._pieces.append(data.encode() if isinstance(data, str) else bytes(data))
            self._bytes += len(self._pieces[-1])
            if self._bytes > MESSAGE_BYTES_MAX:
                raise ValueError("a message is larger than any of the daemon's")
            if event.message_finished:
                pieces, self._pieces, self._bytes = self._pieces, [], 0
                self._take(msgspec.json.decode(b"".join(pieces)))
        elif isinstance(event, Ping):
            self._send(event.response())
        elif isinstance(event, CloseConnection):
            with contextlib.suppress(ProtocolError):
                self._send(event.response())
            self._over(f"{event.code} {event.reason or ''}".strip())

    def _take(self, message: Any) -> None:
        if not isinstance(message, dict):
            raise ValueError("a message is no object")
        if isinstance(news := message.get("push"), dict):
            self._on_news(news)
            return
        future = self._asked.get(message.get("id"))  # type: ignore[arg-type]
        if future is not None and not future.done():
            future.set_result(message)

    def _over(self, why: str) -> None:
        if self.closed.is_set():
            return
        self.why = why
        self.closed.set()
        self._writer.close()
        for future in self._asked.values():
            if not future.done():
                future.set_exception(OSError(f"the channel is over: {why}"))
