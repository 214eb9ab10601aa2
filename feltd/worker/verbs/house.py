"""Who I am, and how the daemon is.

Neither changes any work.
"""

from typing import Any

from feltd.worker.verbs.calls import Calls, Json, object_of


class HouseVerbs(Calls):
    """Me, health, acknowledge."""

    async def me(self, **how: Any) -> Json:
        """The principal behind the key, with the facts of its bound grant."""
        return object_of(await self.call("GET", "/v1/auth/me", **how))

    async def health(self) -> Json:
        """What the daemon says of itself; needs no key."""
        return object_of(await self.call("GET", "/health"))

    async def acknowledge(self) -> None:
        """Take note of a recovered store, so that strict readiness passes again."""
        await self.call("POST", "/v1/health/acknowledge")
