"""Pools of workers with a ceiling, by tenant and id.

Who is a member is the daemon's to say.
"""

from typing import Any

from feltd.worker.verbs.calls import Calls, Json, object_of, path_of


class PoolVerbs(Calls):
    """Pools."""

    async def create_pool(self, **body: Any) -> Json:
        """Make a pool; the same members once more change nothing."""
        return object_of(await self.call("POST", "/v1/pools", body))

    async def pools(self, most: int | None = None, **query: Any) -> list[Json]:
        """Pools, newest first."""
        return await self._list("/v1/pools", most, **query)

    async def pool(self, pool_id: str, *, tenant_id: str | None = None) -> Json:
        """A pool, its members and its live claims counted."""
        query = {"tenant_id": tenant_id}
        return object_of(await self.call("GET", path_of("pools", pool_id), query=query))

    async def replace_pool(self, pool_id: str, **body: Any) -> Json:
        """Change who is in a pool and its ceiling, for new claims; every member is given anew."""
        body = {"pool_id": pool_id, **body}
        return object_of(await self.call("PUT", path_of("pools", pool_id), body))

    async def delete_pool(self, pool_id: str, *, tenant_id: str | None = None) -> None:
        """Delete a pool; work that names it waits until it is made again."""
        await self.call("DELETE", path_of("pools", pool_id), query={"tenant_id": tenant_id})
