"""Places for processes: so many in all, of which no tenant takes more than its share.

Tenants that wait take turns, so that the work of one keeps no other waiting for all of it. It knows
asyncio and no process.
"""

import asyncio
from collections import Counter, deque


class Places:
    """The places of one daemon: `most` in all, `most_of_one` of them a tenant's."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._free = most
        self._most_of_one = most_of_one
        self._held: Counter[str] = Counter()
        # Tenants in the order of their turns.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def share(self, tenant_id: str) -> "Share":
        """What the programs of a tenant run in."""
        return Share(self, tenant_id)

    async def take(self, tenant_id: str) -> None:
        """Return when the tenant has one place more. A cancelled wait takes none."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant_id, deque()).append(turn)
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(tenant_id)
            raise

    def give_back(self, tenant_id: str) -> None:
        """End the use of one place."""
        self._free += 1
        self._held[tenant_id] -= 1
        if not self._held[tenant_id]:
            del self._held[tenant_id]
        self._serve()

    def _serve(self) -> None:
        while self._free:
            within = (one for one in self._waiting if self._held[one] < self._most_of_one)
            tenant_id = next(within, None)
            if tenant_id is None:
                return
            turns = self._waiting.pop(tenant_id)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant_id] = turns
            if not turn.done():
                self._free -= 1
                self._held[tenant_id] += 1
                turn.set_result(None)


class Share:
    """A tenant's part: within `async with` one of its places is taken."""

    def __init__(self, places: Places, tenant_id: str) -> None:
        self._places = places
        self._tenant_id = tenant_id

    async def __aenter__(self) -> None:
        await self._places.take(self._tenant_id)

    async def __aexit__(self, *_: object) -> None:
        self._places.give_back(self._tenant_id)
