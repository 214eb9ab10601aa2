"""Workloads: made, looked at, changed, called off.

What is done under a claim is in claims.py.
"""

import secrets
from typing import Any

from feltd.worker.verbs.calls import Calls, Json, object_of, path_of


class WorkloadVerbs(Calls):
    """Workloads, by their id or by a filter."""

    async def create(self, body: Json) -> Json:
        """A workload. An idempotency_key is made where the body has none."""
        body = {"idempotency_key": secrets.token_hex(16), **body}
        return object_of(await self.call("POST", "/v1/workloads", body))

    async def create_batch(self, workloads: list[Json], *, atomic: bool = False) -> list[Json]:
        """Up to 1,000 workloads in one transaction, answered item by item."""
        named = [{"idempotency_key": secrets.token_hex(16), **one} for one in workloads]
        body = {"workloads": named, "atomic": atomic}
        answer = await self.call("POST", "/v1/workloads/batch", body)
        return list(answer["items"])

    async def workload(self, workload_id: str, wait_ms: int = 0) -> Json:
        """One workload; with `wait_ms` (up to 30,000) once it is final, or as it is by then."""
        query = {"wait_ms": wait_ms} if wait_ms else None
        path = path_of("workloads", workload_id)
        return object_of(await self.call("GET", path, query=query, wait_ms=wait_ms))

    async def workloads(self, most: int | None = None, **query: Any) -> list[Json]:
        """Workloads, newest first, filtered as the wire says."""
        return await self._list("/v1/workloads", most, **query)

    async def workload_events(self, workload_id: str, after: int = 0) -> Json:
        """What happened to a workload, oldest first, behind seq `after`: one page."""
        path = path_of("workloads", workload_id, "events")
        return object_of(await self.call("GET", path, query={"after": after, "limit": 500}))

    async def workload_logs(self, workload_id: str, after: int = 0, wait_ms: int = 0) -> Json:
        """Log lines of a workload behind seq `after`, waiting up to `wait_ms` for one."""
        query = {"after": after, "wait_ms": wait_ms or None}
        path = path_of("workloads", workload_id, "logs")
        return object_of(await self.call("GET", path, query=query, wait_ms=wait_ms))

    async def late_results(self, workload_id: str) -> list[Json]:
        """Outcomes that came after their claim had ended: kept as evidence, never the result."""
        answer = await self.call("GET", path_of("workloads", workload_id, "late-results"))
        return list(answer["items"])

    async def cancel(self, workload_id: str, **body: Any) -> Json:
        """Cancel; work that is held is told, with force it is fenced at once."""
        return object_of(await self.call("POST", path_of("workloads", workload_id, "cancel"), body))

    async def requeue(self, workload_id: str, **body: Any) -> Json:
        """Give a dead letter another life, its attempts counted anew."""
        path = path_of("workloads", workload_id, "requeue")
        return object_of(await self.call("POST", path, body, keyed=True))

    async def edit(self, workload_id: str, **changes: Any) -> Json:
        """Change a workload that nobody holds; what is not named stays, None is the default."""
        return object_of(await self.call("PATCH", path_of("workloads", workload_id), changes))

    async def run_now(self, workload_id: str) -> Json:
        """End its waiting for an instant or a backoff. What else it waits for stays."""
        return await self.edit(workload_id, not_before_at_ms=0)

    async def bulk(self, action: str, chosen: Json, **how: Any) -> Json:
        """One chunk, up to 500, of what the filter `chosen` lets through: `{changed, remaining}`.

        `action` is cancel, requeue or reprioritise (with `priority`). Call it again while
        something is changed and something remains; `dry_run=True` only counts.
        """
        body = {"action": action, "filter": chosen, **how}
        return object_of(await self.call("POST", "/v1/workloads/bulk", body, keyed=True))

    async def dead_letters(self, **query: Any) -> Json:
        """Dead letters by what they died of, most first: `{items, capped}`."""
        return object_of(await self.call("GET", "/v1/dead-letters", query=query))

    async def why(self, workload_id: str) -> Json:
        """Why a workload stands as it does: each reason with what changes it."""
        return object_of(await self.call("GET", path_of("workloads", workload_id, "why")))

    async def backlog(self, **query: Any) -> Json:
        """What waits, kind by kind, with what keeps it back: `{items, left_out, at_ms}`."""
        return object_of(await self.call("GET", "/v1/backlog", query=query))
