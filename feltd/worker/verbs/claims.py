"""Claims: taken, acted under, ended by hand; and what the owner of a sink asks of them.

A fence goes with each write and decides whether it counts.
"""

from typing import Any

from feltd.worker.verbs.calls import Calls, Json, object_of, path_of


class ClaimVerbs(Calls):
    """Claims, and the fences of sinks."""

    async def claim(self, workload_id: str, body: Json | None = None) -> Json:
        """Take one workload by its id."""
        return object_of(
            await self.call("POST", path_of("workloads", workload_id, "claim"), body or {})
        )

    async def fenced(self, verb: str, workload_id: str, body: Json, **how: Any) -> Json:
        """start, renew, checkpoint, complete, fail, release or log under the fence in `body`."""
        return object_of(
            await self.call("POST", path_of("workloads", workload_id, verb), body, **how)
        )

    async def claims(self, most: int | None = None, **query: Any) -> list[Json]:
        """Claims, newest first; `live=True` for those that hold."""
        return await self._list("/v1/claims", most, **query)

    async def evict(self, claim_id: str, **body: Any) -> Json:
        """End a live claim by hand; the workload goes where `to` says."""
        return object_of(await self.call("POST", path_of("claims", claim_id, "evict"), body))

    async def validate(self, claim_id: str, fencing_token: int) -> Json:
        """The claim, if it holds now under this token; else Refusal MESH_STALE_FENCE."""
        body = {"fencing_token": fencing_token}
        return object_of(await self.call("POST", path_of("claims", claim_id, "validate"), body))

    async def fence(
        self, resource: str, fencing_token: int, *, tenant_id: str | None = None
    ) -> Json:
        """Keep the highest token of a resource: `{resource, highest}`.

        A token below it is refused with MESH_STALE_FENCE: the write must not be applied.
        """
        body = {"fencing_token": fencing_token, "tenant_id": tenant_id}
        return object_of(await self.call("POST", path_of("fences", resource), body))
