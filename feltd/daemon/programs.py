"""The records of one tenant as programs reach them: one operation a step, by the ordinary rules.

Reads go to the readers, writes to the writer in the tenant's turn and under the program's claim.
Between two steps nothing is held, neither here nor in the database.
"""

import time
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw

from feltd.api import wire
from feltd.errors import Refused
from feltd.executor.records import Found, Held, Page, failed
from feltd.executor.steps import PROGRAMS
from feltd.identity.executors import EXECUTOR
from feltd.model import record as nouns
from feltd.model.base import Ask, Caller
from feltd.model.change import Following
from feltd.model.record import Expect, Record
from feltd.state import changes, held, listing, searching
from feltd.state.transactions import Step
from feltd.store.readers import Readers
from feltd.store.writer import Writer

#: Programs read at a time; a page also ends at its bytes.
PAGE_ROWS = 200
DEADLINE_MS = 10_000
#: What stands around the records in what a search found.
ENVELOPE_BYTES = 1_024


class TenantRecords:
    """What the programs of one tenant may ask; see executor.records.Records."""

    def __init__(
        self, writer: Writer, readers: Readers, cursor_secret: bytes, tenant_id: str
    ) -> None:
        self._writer = writer
        self._readers = readers
        self._secret = cursor_secret
        self._tenant_id = tenant_id
        #: The change up to which the programs are known, and of which history; None: none yet.
        self._place: tuple[int, str] | None = None

    async def ask(self, claim: Held, asked: dict[str, Any]) -> Any:
        """One get, search, put or patch of a program."""
        try:
            if asked["op"] == "get":
                return await self._get(asked)
            if asked["op"] == "search":
                return await self._search(asked)
            return await self._write(claim, asked)
        except Refused as refused:
            known = failed(refused.code, refused.detail)
            if known is None:
                raise
            raise known from None

    async def program(self, name: str) -> bytes | None:
        """A program as it is now."""
        try:
            found = await self._readers.read(
                listing.get, listing.OfRecord(self._tenant_id, PROGRAMS, name)
            )
        except Refused as refused:
            if refused.code == "RECORD_NOT_FOUND":
                return None
            known = failed(refused.code, refused.detail)
            raise known or refused from None
        return bytes(found.value)

    async def programs(self) -> AsyncIterator[Page]:
        """Every program the first time, then what was written since; pages as they are read.

        Where the log has been cut behind what is known, or another history goes on, every program
        is read again.
        """
        place = self._place
        if place is not None:
            try:
                async for page in self._written_since(place):
                    yield page
                return
            except Refused as refused:
                if refused.code != "CHANGES_COMPACTED":
                    raise
        async for page in self._all():
            yield page

    async def _all(self) -> AsyncIterator[Page]:
        # The head first: what is written while the list is read is read once more.
        version = await self._readers.read(changes.version, nouns.OfTenant(self._tenant_id))
        after: str | None = ""
        anew = True
        while after is not None:
            wanted = listing.PageOf(self._tenant_id, PROGRAMS, PAGE_ROWS, prefix="", after=after)
            page = await self._readers.read(listing.page, wanted)
            yield Page([Found(one.id, bytes(one.value)) for one in page.items], anew)
            anew = False
            after = cast(str | None, page.last)
        self._place = version.sequence, version.instance_id

    async def _written_since(self, place: tuple[int, str]) -> AsyncIterator[Page]:
        seq, instance_id = place
        while True:
            wanted = Following(
                tenant_id=self._tenant_id, after=seq, collection=PROGRAMS, limit=PAGE_ROWS
            )
            page = await self._readers.read(changes.page, wanted)
            if page.instance_id != instance_id:
                raise Refused("CHANGES_COMPACTED", "another history goes on")
            yield Page([Found(one.id, _bytes(one.after)) for one in page.items])
            seq = page.items[-1].seq if page.items else page.head
            self._place = seq, instance_id
            if not page.items:
                return

    async def _get(self, asked: dict[str, Any]) -> Record | None:
        wanted = listing.OfRecord(self._tenant_id, asked["collection"], asked["id"])
        try:
            return await self._readers.read(listing.get, wanted)
        except Refused as refused:
            if refused.code == "RECORD_NOT_FOUND":
                return None
            raise

    async def _search(self, asked: dict[str, Any]) -> nouns.Found:
        """As `POST …/search`, slice by slice; it also ends before its items take bytes_max."""
        collection, needle, limit = asked["collection"], asked["query"].lower(), asked["limit"]
        bound = ["search", self._tenant_id, collection, needle]
        last: int | None = None
        if asked["cursor"] is not None:
            (last,) = wire.open_cursor(self._secret, bound, asked["cursor"])
        ends_s = time.monotonic() + searching.TIME_MS_MAX / 1_000
        items: list[Record] = []
        scanned, left, complete = 0, asked["bytes_max"] - ENVELOPE_BYTES, False
        while not complete and len(items) < limit and scanned < searching.ROWS_MAX:
            wanted = searching.Slice(
                tenant_id=self._tenant_id,
                collection=collection,
                needle=needle,
                # No more at once than fit whatever their size: the place behind the last is known.
                matches=min(limit - len(items), max(1, left // nouns.record_bytes_max(collection))),
                rows=min(searching.SLICE_ROWS, searching.ROWS_MAX - scanned),
                before=last,
            )
            sliced = await self._readers.read(searching.search_slice, wanted)
            left -= sum(len(msgspec.json.encode(one)) + 1 for one in sliced.items)
            if items and left < 0:
                break
            items += sliced.items
            scanned += sliced.scanned
            complete, last = sliced.last is None, sliced.last
            if time.monotonic() >= ends_s:
                break
        cursor = None if complete else wire.seal_cursor(self._secret, bound, [last])
        return nouns.Found(
            items=tuple(items), next_cursor=cursor, scanned=scanned, complete=complete
        )

    async def _write(self, claim: Held, asked: dict[str, Any]) -> Record:
        bytes_max = nouns.record_bytes_max(asked["collection"])
        value = wire.check_free_json(asked["value"], bytes_max, code="RECORD_INVALID")
        caller = Caller(
            subject=EXECUTOR,
            tenants=(self._tenant_id,),
            worker_id=claim.worker_id,
            incarnation=claim.incarnation,
            local=True,
        )
        step = Step(
            asked["op"],
            asked["collection"],
            asked["id"],
            value,
            Expect(if_version=asked.get("if_version", UNSET)),
        )
        body = held.HeldWrite(
            claim_id=claim.claim_id,
            worker_id=claim.worker_id,
            fencing_token=claim.fencing_token,
            tenant_id=self._tenant_id,
            step=step,
        )
        stored = await self._writer.submit(
            held.write,
            Ask(caller=caller, body=body, id=claim.workload_id),
            tenant=self._tenant_id,
            deadline_ms=DEADLINE_MS,
        )
        return listing.shown(stored)


def _bytes(value: Raw | None) -> bytes | None:
    return None if value is None else bytes(value)
