"""A lean HTTP/1.1 client for measuring: one socket, one request in flight, JSON both ways.

It parses no more than it must, so that the figures are the daemon's and not the client's.
"""

import asyncio
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Answered(Exception):
    """An answer that was not 2xx: status and body."""


class Line:
    """One keep-alive connection."""

    def __init__(self, host: str, port: int, bearer: str = "") -> None:
        self._host = host
        self._port = port
        self.bearer = bearer
        self._head = f"Host: {host}:{port}\r\nContent-Type: application/json\r\n"
        if bearer:
            self._head += f"Authorization: Bearer {bearer}\r\n"
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send one request and give the decoded answer; `Answered` unless it is 2xx."""
        answer = await self.send(method, path, b"" if body is None else _encode(body))
        return _decode(answer) if answer else None

    async def send(self, method: str, path: str, content: bytes) -> bytes:
        """The same, JSON as it is."""
        if self._reader is not None and self._reader.at_eof():
            self.close()  # idle for too long
            self._reader = None
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await asyncio.open_connection(
                self._host, self._port, limit=8 * 1024 * 1024
            )
        head = f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(content)}\r\n\r\n"
        self._writer.write(head.encode() + content)
        status, answer = await self._answer(self._reader)
        if status // 100 != 2:
            raise Answered(status, answer)
        return answer

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        lower = head.lower()
        at = lower.find(b"content-length:")
        if at < 0:
            return status, b""
        length = int(lower[at + 15 : lower.index(b"\r\n", at)])
        return status, await reader.readexactly(length) if length else b""

    def close(self) -> None:
        """Drop the connection."""
        if self._writer is not None:
            self._writer.close()


class Socket:
    """One WebSocket of a worker, one frame in flight; pings are passed over within a run."""

    def __init__(self, host: str, port: int, worker_id: str, bearer: str) -> None:
        self._at = (host, port)
        self._opening = (
            f"GET /v1/workers/{worker_id}/channel HTTP/1.1\r\nHost: {host}:{port}\r\n"
            f"Authorization: Bearer {bearer}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Protocol: feltd.v1\r\n\r\n"
        )

    async def open(self) -> None:
        """Upgrade."""
        self._reader, self._writer = await asyncio.open_connection(*self._at, limit=8 * 1024 * 1024)
        self._writer.write(self._opening.encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101"):
            raise Answered(int(head[9:12]), head)

    async def call(self, frame: Any) -> Any:
        """One frame and its answer; what is pushed before it is not looked at."""
        content = _encode(frame)
        size = len(content)
        # Masked by zeros: a client must mask, and this one does not want to be measured.
        if size < 126:
            head = bytes((0x81, 0x80 | size))
        elif size < 65536:
            head = b"\x81\xfe" + size.to_bytes(2, "big")
        else:
            head = b"\x81\xff" + size.to_bytes(8, "big")
        self._writer.write(head + b"\0\0\0\0" + content)
        while True:
            kind, answer = await self._frame()
            if kind == 1 and b'"push"' not in answer[:10]:
                decoded = _decode(answer)
                if "code" in decoded:
                    raise Answered(decoded["status"], answer)
                return decoded

    async def _frame(self) -> tuple[int, bytes]:
        first, size = await self._reader.readexactly(2)
        if size == 126:
            size = int.from_bytes(await self._reader.readexactly(2), "big")
        elif size == 127:
            size = int.from_bytes(await self._reader.readexactly(8), "big")
        return first & 15, await self._reader.readexactly(size)

    def close(self) -> None:
        """Go."""
        self._writer.close()
