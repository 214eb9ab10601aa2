"""Answers of many megabytes: sending one must not hold up everybody else."""

import asyncio
from typing import Any

import pytest

from feltd.api.house import Line
from feltd.api.listen import ServerSettings

pytestmark = pytest.mark.anyio

MESSAGE_BYTES = 32 * 1024 * 1024


class Copied(bytes):
    """Bytes that count how many of them slices have copied."""

    copied = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        if isinstance(found, bytes):
            Copied.copied += len(found)
        return found


async def test_a_large_answer_is_copied_once_however_large() -> None:
    received: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        count = 0
        while piece := await reader.read(1024 * 1024):
            count += len(piece)
        writer.close()
        received.set_result(count)

    server = await asyncio.start_server(client, "127.0.0.1")
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        assert await Line(writer, ServerSettings()).send(Copied(MESSAGE_BYTES))
        writer.close()
        await writer.wait_closed()
        assert await received == MESSAGE_BYTES

    assert Copied.copied == MESSAGE_BYTES
