"""Holds: work that is kept from being claimed.

What runs goes on.
"""

from typing import Any

from feltd.worker.verbs.calls import Calls, Json, object_of, path_of


class HoldVerbs(Calls):
    """Holds."""

    async def place_hold(self, scope: str, reason: str, **body: Any) -> Json:
        """Keep work from being claimed: `scope` all, tenant, application, pool or definition."""
        body = {"scope": scope, "reason": reason, **body}
        return object_of(await self.call("POST", "/v1/holds", body, keyed=True))

    async def holds(self, most: int | None = None, **query: Any) -> list[Json]:
        """Holds that stand, newest first."""
        return await self._list("/v1/holds", most, **query)

    async def lift_hold(self, hold_id: str, *, tenant_id: str | None = None) -> None:
        """Lift a hold; waiting workers look for work at once."""
        await self.call("DELETE", path_of("holds", hold_id), query={"tenant_id": tenant_id})
