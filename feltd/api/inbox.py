"""What a connection has received for one call and the application has not yet taken.

It stands in for the queue that hypercorn would use, because that one deadlocks when an answer is
given while an unread body fills it, and because this one tells at once, without a task, that the
client went away.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from feltd.api.request import Gone, Message

#: Bytes that may wait unread; beyond them the connection stops reading from the client.
WAITING_BYTES_MAX = 64 * 1024

_ENDS = ("http.disconnect", "websocket.disconnect")


class Inbox:
    """`put` is the connection's side, `get` is the application's `receive`."""

    __slots__ = ("_before_wait", "_end", "_getter", "_messages", "_room", "_waiting_bytes", "gone")

    def __init__(self, before_wait: Callable[[], Awaitable[None]]) -> None:
        """`before_wait` is awaited each time the application asks and nothing is there yet."""
        self._messages: deque[Message] = deque()
        self._before_wait = before_wait
        self._getter: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._waiting_bytes = 0
        self._end: Message | None = None
        self.gone = Gone()

    async def put(self, message: Message) -> None:
        """Take one message; waits while too much is unread. After the end everything is dropped."""
        if self._end is not None:
            return
        if message["type"] in _ENDS:
            self._end = message
            self.gone.set()
            _wake(self._room)
            _wake(self._getter)
            return
        self._messages.append(message)
        self._waiting_bytes += _size(message)
        _wake(self._getter)
        if self._waiting_bytes > WAITING_BYTES_MAX:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    async def get(self) -> Message:
        """The next message; pieces of a body that are already here come as one."""
        while not self._messages:
            if self._end is not None:
                return self._end
            await self._before_wait()
            if self._messages or self._end is not None:
                continue
            self._getter = asyncio.get_running_loop().create_future()
            await self._getter
        message = self._messages.popleft()
        if message.get("more_body") and self._messages:
            message = self._joined(message)
        self._waiting_bytes = sum(map(_size, self._messages)) if self._messages else 0
        if self._waiting_bytes <= WAITING_BYTES_MAX:
            _wake(self._room)
        return message

    def _joined(self, first: Message) -> Message:
        pieces, more = [first["body"]], True
        while more and self._messages:
            piece = self._messages.popleft()
            pieces.append(piece["body"])
            more = piece["more_body"]
        return {"type": "http.request", "body": b"".join(pieces), "more_body": more}


def _size(message: Message) -> int:
    return len(message.get("body") or message.get("bytes") or message.get("text") or b"")


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
