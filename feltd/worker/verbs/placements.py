"""Work that is given to a worker: tried out, done, looked back at.

Who is chosen is the daemon's decision.
"""

from typing import Any

from feltd.worker.verbs.calls import Calls, Json, object_of, path_of


class PlacementVerbs(Calls):
    """Directed claims and the decisions about them."""

    async def give(self, workload_id: str, worker_id: str | None = None, **body: Any) -> Json:
        """Give a workload to the named worker, or to the one that is chosen; the claim.

        `placement` narrows the workload's own. The worker hears of it in its next heartbeat or
        pull. Nobody may take it: Refusal MESH_NO_ELIGIBLE_WORKER with `reasons`.
        """
        if worker_id is not None:
            body = {"worker_id": worker_id, **body}
        return object_of(await self.call("POST", path_of("workloads", workload_id, "claim"), body))

    async def try_placement(self, workload_id: str, **placement: Any) -> Json:
        """Who would be given this workload now, and why not the others; nothing is stored."""
        path = path_of("workloads", workload_id, "placement")
        return object_of(await self.call("POST", path, placement))

    async def placements(self, most: int | None = None, **query: Any) -> list[Json]:
        """Stored decisions, newest first, without what they read."""
        return await self._list("/v1/placements", most, **query)

    async def placement(self, decision_id: str) -> Json:
        """One decision with everything it read, decided once more: `agrees`."""
        return object_of(await self.call("GET", path_of("placements", decision_id)))
