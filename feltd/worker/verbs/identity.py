"""Keys and grants: made, listed, changed, ended.

A secret is in the answer that makes it and nowhere else.
"""

from typing import Any

from feltd.worker.verbs.calls import Calls, Json, object_of, path_of


class IdentityVerbs(Calls):
    """Keys and grants."""

    async def create_key(self, **body: Any) -> Json:
        """A new key; its `secret` is in this answer and nowhere else."""
        return object_of(await self.call("POST", "/v1/keys", body, keyed=True))

    async def keys(self, most: int | None = None) -> list[Json]:
        """The keys the caller may see, newest first."""
        return await self._list("/v1/keys", most)

    async def revoke_key(self, key_id: str) -> None:
        """End a key, and those it obtained, at the next statement."""
        await self.call("DELETE", path_of("keys", key_id))

    async def rotate_key(self, key_id: str, overlap_ms: int = 0) -> Json:
        """A new secret for a key; the old one works on for `overlap_ms`."""
        body = {"overlap_ms": overlap_ms}
        return object_of(
            await self.call("POST", path_of("keys", key_id, "rotate"), body, keyed=True)
        )

    async def issue_grant(self, **body: Any) -> Json:
        """A signed permission: `{grant, token}`."""
        return object_of(await self.call("POST", "/v1/grants", body, keyed=True))

    async def grants(self, most: int | None = None, **query: Any) -> list[Json]:
        """The grants the caller may see, newest first."""
        return await self._list("/v1/grants", most, **query)

    async def grant(self, grant_id: str) -> Json:
        """One grant as it stands."""
        return object_of(await self.call("GET", path_of("grants", grant_id)))

    async def replace_grant(self, grant_id: str, **body: Any) -> Json:
        """Change a grant; claims that exceed it end: `{grant, token, fenced_claims, remaining}`."""
        return object_of(await self.call("PUT", path_of("grants", grant_id), body))

    async def revoke_grant(self, grant_id: str, **body: Any) -> Json:
        """End a grant, its descendants, the keys bound to them and the claims under them."""
        return object_of(await self.call("POST", path_of("grants", grant_id, "revoke"), body))
