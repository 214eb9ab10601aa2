"""Triggers: changes of records, and instants, that make workloads.

A definition is the body of the wire as a dictionary; `trigger_id` names it for good.
"""

from collections.abc import Mapping
from typing import Any

from feltd.worker.verbs.calls import Calls, Json, object_of, path_of


class TriggerVerbs(Calls):
    """Triggers, by tenant and id."""

    async def define_trigger(self, definition: Mapping[str, Any]) -> Json:
        """Make or replace a trigger; it keeps its cursor unless `start` is in the definition.

        A repeat of a lost answer moves no cursor again.
        """
        return object_of(await self.call("POST", "/v1/triggers", dict(definition), keyed=True))

    async def triggers(self, most: int | None = None, **query: Any) -> list[Json]:
        """Triggers, newest first."""
        return await self._list("/v1/triggers", most, **query)

    async def trigger(self, trigger_id: str, *, tenant_id: str | None = None) -> Json:
        """A trigger: what it says, how far it has come, how it fares."""
        query = {"tenant_id": tenant_id}
        return object_of(await self.call("GET", path_of("triggers", trigger_id), query=query))

    async def trigger_status(self, *, tenant_id: str | None = None) -> Json:
        """How far each trigger has come, and why some stand still."""
        query = {"tenant_id": tenant_id}
        return object_of(await self.call("GET", "/v1/triggers/status", query=query))

    async def evaluate_triggers(self, *, tenant_id: str | None = None) -> list[Json]:
        """Judge changes now, all there are; what was made of them."""
        made: list[Json] = []
        path, query, retry = "/v1/triggers/evaluate", {"tenant_id": tenant_id}, True
        while True:
            found = object_of(await self.call("POST", path, {"retry": retry}, query=query))
            made += found["produced"]
            if not found["more"]:
                return made
            retry = False

    async def enable_trigger(self, trigger_id: str, *, tenant_id: str | None = None) -> Json:
        """Have a trigger go on where it stood."""
        return await self._do(trigger_id, "enable", {}, tenant_id)

    async def disable_trigger(
        self, trigger_id: str, reason: str | None = None, *, tenant_id: str | None = None
    ) -> Json:
        """Stop a trigger; the log is held for it for seven days."""
        body = {} if reason is None else {"reason": reason}
        return await self._do(trigger_id, "disable", body, tenant_id)

    async def delete_trigger(self, trigger_id: str, *, tenant_id: str | None = None) -> None:
        """Delete a trigger; what it made stays."""
        query = {"tenant_id": tenant_id}
        await self.call("DELETE", path_of("triggers", trigger_id), query=query)

    async def preview_trigger(
        self, trigger_id: str, count: int = 5, *, tenant_id: str | None = None
    ) -> Json:
        """Which of the newest changes, or the next instants, would fire; makes nothing."""
        return await self._do(trigger_id, "preview", {"count": count}, tenant_id)

    async def run_trigger(self, trigger_id: str, *, tenant_id: str | None = None) -> Json:
        """Run a schedule now, out of turn, once however often an answer is lost."""
        return await self._do(trigger_id, "run", {}, tenant_id, keyed=True)

    async def _do(
        self,
        trigger_id: str,
        verb: str,
        body: Json,
        tenant_id: str | None,
        *,
        keyed: bool = False,
    ) -> Json:
        query, path = {"tenant_id": tenant_id}, path_of("triggers", trigger_id, verb)
        return object_of(await self.call("POST", path, body, query=query, keyed=keyed))
