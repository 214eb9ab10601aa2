"""Records, the log of their changes, and the consumers that read it, by tenant.

A write may say which version it expects; where a reader stands is a number he keeps himself, or has
the daemon keep for him as a consumer.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from msgspec import Raw

from feltd.worker.refusal import Refusal
from feltd.worker.verbs.calls import Calls, Json, object_of, path_of

#: Changes asked for at once: the most there are in a page.
PAGE = 500
#: What `if_version` is where a write expects nothing.
ANYTHING: Any = object()


class StateVerbs(Calls):
    """Records, transactions, changes and consumers.

    `if_version` of a write is the version the record must be at, None where it must not be there.
    `cause` is the workload on whose behalf it is written. Values are plain JSON.
    """

    async def collections(
        self, most: int | None = None, *, tenant_id: str | None = None
    ) -> list[Json]:
        """The collections that hold records, by name."""
        return await self._list("/v1/collections", most, tenant_id=tenant_id)

    async def records(
        self,
        collection: str,
        most: int | None = None,
        *,
        prefix: str | None = None,
        tenant_id: str | None = None,
    ) -> list[Json]:
        """The records of a collection, newest first; with a prefix by id."""
        path = path_of("collections", collection, "records")
        return await self._list(path, most, prefix=prefix, tenant_id=tenant_id)

    async def record(self, collection: str, id: str, *, tenant_id: str | None = None) -> Json:
        """A record. Raises Refusal RECORD_NOT_FOUND."""
        query = {"tenant_id": tenant_id}
        return object_of(await self.call("GET", _record(collection, id), query=query))

    async def put_record(
        self,
        collection: str,
        id: str,
        value: Any,
        *,
        if_version: int | None = ANYTHING,
        cause: str | None = None,
        tenant_id: str | None = None,
    ) -> Json:
        """Make a record or replace its value; what it holds already changes nothing."""
        how = _how(if_version, cause, tenant_id)
        # None is a value here, not a body left out.
        body = Raw(b"null") if value is None else value
        return object_of(await self.call("PUT", _record(collection, id), body, **how))

    async def patch_record(
        self,
        collection: str,
        id: str,
        patch: Any,
        *,
        if_version: int | None = ANYTHING,
        cause: str | None = None,
        tenant_id: str | None = None,
    ) -> Json:
        """Change members of a record by a merge patch; None takes a member out."""
        how = _how(if_version, cause, tenant_id)
        body = Raw(b"null") if patch is None else patch
        return object_of(await self.call("PATCH", _record(collection, id), body, **how))

    async def delete_record(
        self,
        collection: str,
        id: str,
        *,
        if_version: int | None = ANYTHING,
        cause: str | None = None,
        tenant_id: str | None = None,
    ) -> None:
        """Delete a record; made again, its version goes on."""
        how = _how(if_version, cause, tenant_id)
        await self.call("DELETE", _record(collection, id), **how)

    async def provenance(
        self, collection: str, id: str, *, tenant_id: str | None = None, **query: Any
    ) -> Json:
        """Who made a record what it is; `cursor` goes on in its changes."""
        path = path_of("collections", collection, "records", id, "provenance")
        query["tenant_id"] = tenant_id
        return object_of(await self.call("GET", path, query=query))

    async def transact(
        self,
        mutations: Sequence[Mapping[str, Any]],
        *,
        request_id: str | None = None,
        cause: str | None = None,
        tenant_id: str | None = None,
    ) -> Json:
        """Write many records, all or none: `{op, collection, id, value?, if_version?}` each."""
        body: Json = {"mutations": list(mutations)}
        if request_id is not None:
            body["request_id"] = request_id
        how = _how(ANYTHING, cause, tenant_id)
        keyed = request_id is None
        return object_of(await self.call("POST", "/v1/transactions", body, keyed=keyed, **how))

    async def search(
        self,
        collection: str,
        query: str,
        limit: int = 20,
        *,
        cursor: str | None = None,
        tenant_id: str | None = None,
    ) -> Json:
        """Records whose JSON text holds `query`, case aside; `next_cursor` where it goes on."""
        body: Json = {"query": query, "limit": limit}
        if cursor is not None:
            body["cursor"] = cursor
        path = path_of("collections", collection, "search")
        return object_of(await self.call("POST", path, body, query={"tenant_id": tenant_id}))

    async def state_version(self, *, tenant_id: str | None = None) -> Json:
        """The number of the newest change, and which history it is of."""
        query = {"tenant_id": tenant_id}
        return object_of(await self.call("GET", "/v1/state/version", query=query))

    async def changes(
        self,
        after: int | None = None,
        *,
        collection: str | None = None,
        follow: bool = True,
        wait_ms: int = 20_000,
        tenant_id: str | None = None,
    ) -> AsyncIterator[Json]:
        """The changes of a tenant behind seq `after`, one after another, none missing, none twice.

        None: from the oldest kept. At the end of the log it waits for more, through any outage of
        the daemon, unless `follow` is off. Raises Refusal CHANGES_COMPACTED where the log does not
        reach back to `after` any more, or an earlier state of the database was put back meanwhile.
        """
        history: str | None = None
        how: Json = {"wait_ms": wait_ms, "patience_ms": None} if follow else {}
        while True:
            query = {
                "after": after,
                "collection": collection,
                "limit": PAGE,
                "wait_ms": wait_ms if follow else None,
                "tenant_id": tenant_id,
            }
            page = await self.call("GET", "/v1/changes", query=query, **how)
            if history not in (None, page["instance_id"]):
                raise _another(page)
            history = page["instance_id"]
            for change in page["items"]:
                yield change
            # A page may end early for its size: only one without changes is the end.
            after = page["items"][-1]["seq"] if page["items"] else page["head"]
            if not follow and (not page["items"] or after == page["head"]):
                return

    async def acknowledge_changes(
        self, name: str, ack: int, *, tenant_id: str | None = None
    ) -> Json:
        """Say as consumer `name` that every change up to `ack` is done with; begins it."""
        path, query = path_of("consumers", name), {"tenant_id": tenant_id}
        return object_of(await self.call("PUT", path, {"ack": ack}, query=query))

    async def consumer(self, name: str, *, tenant_id: str | None = None) -> Json:
        """A consumer, what it has acknowledged and how far behind it is."""
        query = {"tenant_id": tenant_id}
        return object_of(await self.call("GET", path_of("consumers", name), query=query))

    async def consumers(self, *, tenant_id: str | None = None) -> list[Json]:
        """Every consumer, by name."""
        page = await self.call("GET", "/v1/consumers", query={"tenant_id": tenant_id})
        return list(page["items"])

    async def delete_consumer(self, name: str, *, tenant_id: str | None = None) -> None:
        """Forget a consumer; repeating it is harmless."""
        path, query = path_of("consumers", name), {"tenant_id": tenant_id}
        await self.call("DELETE", path, query=query)


def _record(collection: str, id: str) -> str:
    return path_of("collections", collection, "records", id)


def _another(page: Json) -> Refusal:
    """What a reader meets whose history has ended: the numbers it knows name other changes now."""
    detail = "an earlier state of the database was put back: begin anew"
    facts = {name: page[name] for name in ("oldest", "head", "instance_id")}
    return Refusal("CHANGES_COMPACTED", detail, status=410, next="ask_operator", facts=facts)


def _how(if_version: int | None, cause: str | None, tenant_id: str | None) -> Json:
    headers = {}
    if if_version is None:
        headers["If-None-Match"] = "*"
    elif if_version is not ANYTHING:
        headers["If-Match"] = f'"{if_version}"'
    if cause is not None:
        headers["X-Feltd-Cause"] = cause
    return {"headers": headers, "query": {"tenant_id": tenant_id}}
