"""The pipes to a program, on the event loop.

asyncio's own subprocesses are not used: when their owner goes they kill their child at once, and
the launcher has to live long enough to end what it has started.
"""

import asyncio
import contextlib
from typing import IO, Any


class Pipes:
    """Ends of pipes in this process; `close` closes all of them."""

    def __init__(self) -> None:
        self._transports: list[asyncio.BaseTransport] = []

    async def reader(self, file: IO[bytes]) -> asyncio.StreamReader:
        """What comes out of a pipe; the file is this object's from here on."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), file
        )
        self._transports.append(transport)
        return reader

    async def feed(self, file: IO[bytes], given: bytes) -> None:
        """Write all of it into a pipe and close that. A program need not read its input."""
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), file
        )
        self._transports.append(transport)
        writer = asyncio.StreamWriter(transport, protocol, None, loop)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            writer.write(given)
            await writer.drain()
        writer.close()

    def close(self) -> None:
        """Close what is still open."""
        for transport in self._transports:
            transport.close()


async def keep_tail(stream: asyncio.StreamReader, kept: bytearray, bytes_max: int) -> None:
    """Read to the end, and keep the last so many bytes."""
    while chunk := await stream.read(65_536):
        kept += chunk
        del kept[:-bytes_max]


async def keep_words(stream: asyncio.StreamReader, said: dict[str, Any]) -> None:
    """Read `name value` lines to the end; `said` is complete when this returns."""
    while line := await stream.readline():
        name, _, value = line.decode(errors="replace").rstrip().partition(" ")
        said[name] = value
