"""Workers: registered, looked at, drained, kept apart; and what a worker itself says.

The loop that decides what to say is in session.py.
"""

import secrets
from typing import Any

from feltd.worker.verbs.calls import Calls, Json, object_of, path_of


class WorkerVerbs(Calls):
    """Workers, by their id."""

    async def register(self, body: Json, **how: Any) -> Json:
        """Register a worker. The same process_id with the same body changes nothing."""
        return object_of(await self.call("POST", "/v1/workers", body, **how))

    async def workers(self, most: int | None = None, **query: Any) -> list[Json]:
        """The workers the caller may see."""
        return await self._list("/v1/workers", most, **query)

    async def worker(self, worker_id: str, *, recent: int | None = None, **how: Any) -> Json:
        """One worker; `recent` adds that many of its last claims."""
        query = {"recent": recent}
        return object_of(await self.call("GET", path_of("workers", worker_id), query=query, **how))

    async def remove_worker(self, worker_id: str) -> None:
        """Remove a worker without live claims."""
        await self.call("DELETE", path_of("workers", worker_id))

    async def drain(self, worker_id: str, body: Json | None = None, **how: Any) -> Json:
        """Give a worker no more work: `{worker, outstanding_claims, safe_to_stop, safe_at_ms}`."""
        path = path_of("workers", worker_id, "drain")
        return object_of(await self.call("POST", path, body or {}, **how))

    async def resume(self, worker_id: str) -> Json:
        """End a drain."""
        return object_of(await self.call("POST", path_of("workers", worker_id, "resume"), {}))

    async def recover(self, worker_id: str) -> Json:
        """Give an OFFLINE worker one timeout to reconcile."""
        return object_of(await self.call("POST", path_of("workers", worker_id, "recover"), {}))

    async def heartbeat(self, worker_id: str, body: Json, **how: Any) -> Json:
        """Say that the process lives, renew what it holds, hear the differences."""
        path = path_of("workers", worker_id, "heartbeat")
        return object_of(await self.call("POST", path, body, **how))

    async def reconcile(self, worker_id: str, body: Json, **how: Any) -> Json:
        """Compare both sides after an outage; the daemon's rows decide."""
        path = path_of("workers", worker_id, "reconcile")
        return object_of(await self.call("POST", path, body, **how))

    async def pull(self, worker_id: str, body: Json, **how: Any) -> Json:
        """Take up to `max` workloads, waiting up to `wait_ms`. A request_id is added."""
        body = {"request_id": secrets.token_hex(16), **body}
        path = path_of("workers", worker_id, "claims")
        wait_ms = int(body.get("wait_ms") or 0)
        return object_of(await self.call("POST", path, body, wait_ms=wait_ms, **how))

    async def exchange(self, worker_id: str, body: Json, **how: Any) -> Json:
        """Deliver many outcomes and take work in one call; each item stands for itself."""
        wanted = body.get("claim")
        wait_ms = 0
        if wanted is not None:
            body = {**body, "claim": {"request_id": secrets.token_hex(16), **wanted}}
            wait_ms = int(wanted.get("wait_ms") or 0)
        path = path_of("workers", worker_id, "exchange")
        return object_of(await self.call("POST", path, body, wait_ms=wait_ms, **how))

    async def transition(self, worker_id: str, to: str) -> Json:
        """Put a worker along an edge of its lifecycle."""
        path = path_of("workers", worker_id, "transition")
        return object_of(await self.call("POST", path, {"to": to}))

    async def quarantine(self, worker_id: str, **body: Any) -> Json:
        """Give a worker no more work, for a `reason`, until `until_at_ms` or until it is lifted."""
        path = path_of("workers", worker_id, "quarantine")
        return object_of(await self.call("POST", path, body))

    async def unquarantine(self, worker_id: str) -> Json:
        """Lift a quarantine; the worker may be given work at once."""
        return object_of(await self.call("POST", path_of("workers", worker_id, "unquarantine"), {}))

    async def why_worker(self, worker_id: str) -> Json:
        """Why a worker gets no work, and whether it may be stopped: `{reasons, safe_to_stop}`."""
        return object_of(await self.call("GET", path_of("workers", worker_id, "why")))
