"""Groups: work that ends together and is called off together.

A group begins with the first workload that names it.
"""

from typing import Any

from feltd.worker.verbs.calls import Calls, Json, object_of, path_of

#: One question for the end of a group; well below what the daemon lets anybody wait.
WAIT_MS = 20_000


class GroupVerbs(Calls):
    """Groups, by tenant and name."""

    async def group(self, name: str, wait_ms: int = 0, *, tenant_id: str | None = None) -> Json:
        """A group; with `wait_ms` (up to 30,000) once it has ended, or as it is by then."""
        query = {"tenant_id": tenant_id, "wait_ms": wait_ms or None}
        path = path_of("groups", name)
        return object_of(await self.call("GET", path, query=query, wait_ms=wait_ms))

    async def wait_group(self, name: str, *, tenant_id: str | None = None) -> Json:
        """The group once it is sealed and all of it has ended, however long that takes."""
        while True:
            found = await self.group(name, WAIT_MS, tenant_id=tenant_id)
            if found["ended"]:
                return found

    async def seal_group(self, name: str, *, tenant_id: str | None = None) -> Json:
        """Close a group to new work, so that other work may wait for `group:<name>`."""
        query = {"tenant_id": tenant_id}
        return object_of(await self.call("POST", path_of("groups", name, "seal"), {}, query=query))

    async def cancel_group(self, name: str, *, tenant_id: str | None = None, **body: Any) -> Json:
        """One chunk, up to 500, of a group's cancellation: `{changed, remaining}`.

        Call it again while something is changed and something remains. `force=True` takes held
        work from its workers at once.
        """
        query = {"tenant_id": tenant_id}
        path = path_of("groups", name, "cancel")
        return object_of(await self.call("POST", path, body, query=query, keyed=True))
