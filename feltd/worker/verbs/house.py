"""Who I am, and how the daemon is.

Neither changes any work.
"""

from typing import Any

from feltd.worker.transport import TEXT
from feltd.worker.verbs.calls import Calls, Json, object_of


class HouseVerbs(Calls):
    """Me, health, acknowledge, metrics, diagnostics."""

    async def me(self, **how: Any) -> Json:
        """The principal behind the key, with the facts of its bound grant."""
        return object_of(await self.call("GET", "/v1/auth/me", **how))

    async def health(self) -> Json:
        """What the daemon says of itself; needs no key."""
        return object_of(await self.call("GET", "/health"))

    async def acknowledge(self) -> None:
        """Take note of a recovered store, so that strict readiness passes again."""
        await self.call("POST", "/v1/health/acknowledge")

    async def metrics(self, **how: Any) -> str:
        """Counters and gauges, as Prometheus text."""
        return str(await self.call("GET", "/metrics", headers={"Accept": TEXT}, **how))

    async def diagnostics(self, **how: Any) -> Json:
        """What the daemon knows of itself; no secret, and nothing of anybody's work."""
        return object_of(await self.call("GET", "/v1/diagnostics", **how))
