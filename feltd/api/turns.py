"""Whose piece comes next: large ones go on one at a time, with rests, and addresses take turns.

A small call then waits for one piece, not for one of each connection that uploads. It knows
asyncio and no socket; who waits here is bounded by the connections there may be.
"""

import asyncio
from collections import deque

#: A received piece above this waits for its turn: it takes up to half a millisecond to go through.
SMALL_PIECE_BYTES = 8 * 1024
LARGE_BYTES_A_S = 32 * 1024 * 1024

Piece = tuple["asyncio.Future[None]", int]


class Turns:
    """The turns of one daemon, at most one in each round of the event loop."""

    def __init__(self) -> None:
        self._by_address: dict[str, deque[Piece]] = {}
        self._order: deque[str] = deque()
        #: The last piece goes through, or what follows it rests.
        self._taken = False
        self._rests = True

    async def take(self, address: str, received_bytes: int) -> None:
        """Return when a piece from there may go on; a small one may at once.

        A cancelled wait leaves the turn to the next.
        """
        if received_bytes <= SMALL_PIECE_BYTES:
            return
        if not self._taken:
            self._give(received_bytes)
            return
        turn = asyncio.get_running_loop().create_future()
        waiting = self._by_address.get(address)
        if waiting is None:
            waiting = self._by_address[address] = deque()
            self._order.append(address)
        waiting.append((turn, received_bytes))
        await turn

    def end_rests(self) -> None:
        """The daemon stops: what has been received goes on as fast as it can, one by one."""
        self._rests = False

    def _give(self, received_bytes: int) -> None:
        self._taken = True
        rest_s = received_bytes / LARGE_BYTES_A_S if self._rests else 0.0
        asyncio.get_running_loop().call_later(rest_s, self._next)

    def _next(self) -> None:
        while self._order:
            address = self._order.popleft()
            waiting = self._by_address[address]
            turn, received_bytes = waiting.popleft()
            if waiting:
                self._order.append(address)
            else:
                del self._by_address[address]
            if not turn.done():
                turn.set_result(None)
                self._give(received_bytes)
                return
        self._taken = False
