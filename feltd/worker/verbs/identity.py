"""Keys, grants and users: made, listed, changed, ended.

A secret is in the answer that makes it and nowhere else.
"""

from typing import Any

from feltd.worker.verbs.calls import Calls, Json, object_of, path_of


class IdentityVerbs(Calls):
    """Keys, grants, users and their sessions."""

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

    async def create_user(self, **body: Any) -> Json:
        """A new user, who may log in with the `password` given here."""
        return object_of(await self.call("POST", "/v1/users", body))

    async def users(self, most: int | None = None) -> list[Json]:
        """The users the caller may see, newest first."""
        return await self._list("/v1/users", most)

    async def disable_user(self, username: str) -> Json:
        """Let a user log in no more, for ever; his sessions end."""
        return object_of(await self.call("POST", path_of("users", username, "disable"), {}))

    async def change_role(self, username: str, roles: dict[str, str | None]) -> Json:
        """Give a user roles in these tenants; None takes one away."""
        body = {"roles": roles}
        return object_of(await self.call("POST", path_of("users", username, "role"), body))

    async def login(self, username: str, password: str) -> Json:
        """A session of a user: `{session, expires_at_ms}`; the session is a bearer."""
        body = {"username": username, "password": password}
        return object_of(await self.call("POST", "/v1/auth/login", body))

    async def logout(self, session: str) -> None:
        """End a session."""
        await self.call("POST", "/v1/auth/logout", {}, bearer=session)

    async def change_password(self, session: str | None = None, **body: Any) -> None:
        """Change the password of a session's user; `session` None: of the client's own bearer."""
        if session is None:
            await self.call("POST", "/v1/auth/password", body)
        else:
            await self.call("POST", "/v1/auth/password", body, bearer=session)
