"""Records over HTTP: listed, read, written, searched. Keyed by tenant, collection and id.

A handler decodes, finds the tenant, submits one rule and replies. Values are brought into the form
they are stored in here, off the writer; the version of a record is its ETag.
"""

import asyncio
import re
from typing import Any

import msgspec
from msgspec import Struct

from feltd.api import wire
from feltd.api.door import tenant_of
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.api.wire import invalid
from feltd.model.base import Ask, Name
from feltd.model.page import LIMIT_DEFAULT, Limit
from feltd.model.record import (
    ANY,
    CollectionPage,
    Expect,
    Found,
    Prefix,
    Provenance,
    Record,
    RecordPage,
    Search,
    record_bytes_max,
)
from feltd.state import listing, provenance, searching, transactions
from feltd.state.records import Stored

INVALID = "RECORD_INVALID"
CAUSE = b"x-feltd-cause"
CAUSE_CHARS_MAX = 200

_ETAG = re.compile(r'"([1-9][0-9]{0,15})"')


class OfTenant(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of which tenant."""

    tenant_id: Name | None = None


class ListQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A page of a list."""

    limit: Limit = LIMIT_DEFAULT
    cursor: str | None = None
    tenant_id: Name | None = None


class RecordsQuery(ListQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A page of a collection; with a prefix, also an empty one, by id."""

    prefix: Prefix | None = None


async def list_collections(request: Request) -> Reply:
    """GET /v1/collections, by name."""
    query, tenant_id = request.query(ListQuery), tenant_of(request)
    bound = ["collections", tenant_id]
    after = _opened(request, bound, query.cursor, "")
    cmd = listing.CollectionsOf(tenant_id, query.limit, after)
    found = await request.app.readers.read(listing.collections, cmd)
    return reply(200, CollectionPage(items=found.items, next_cursor=_sealed(request, bound, found)))


async def list_records(request: Request) -> Reply:
    """GET /v1/collections/{collection}/records, newest created first; with a prefix by id."""
    query, tenant_id = request.query(RecordsQuery), tenant_of(request)
    collection = named(request, "collection")
    bound = ["records", tenant_id, collection, query.prefix]
    place = _opened(request, bound, query.cursor, None)
    cmd = listing.PageOf(tenant_id, collection, query.limit, query.prefix)
    if place is not None:
        member = "before" if query.prefix is None else "after"
        cmd = msgspec.structs.replace(cmd, **{member: place})
    found = await request.app.readers.read(listing.page, cmd)
    return reply(200, RecordPage(items=found.items, next_cursor=_sealed(request, bound, found)))


async def get_record(request: Request) -> Reply:
    """GET one, with its version as ETag."""
    request.query(OfTenant)
    cmd = listing.OfRecord(tenant_of(request), named(request, "collection"), named(request, "id"))
    found: Record = await request.app.readers.read(listing.get, cmd)
    return reply(200, found, {"ETag": etag(found.version)})


async def get_provenance(request: Request) -> Reply:
    """GET …/provenance: who made a record what it is."""
    query, tenant_id = request.query(ListQuery), tenant_of(request)
    collection, record_id = named(request, "collection"), named(request, "id")
    bound = ["provenance", tenant_id, collection, record_id]
    after = _opened(request, bound, query.cursor, 0)
    cmd = provenance.History(tenant_id, collection, record_id, query.limit, after)
    told = await request.app.readers.read(provenance.of_record, cmd)
    cursor = _sealed(request, bound, told)
    return reply(200, msgspec.structs.replace(told.provenance, next_cursor=cursor))


async def put_record(request: Request) -> Reply:
    """PUT: the body is the value; see records.put."""
    return await _write(request, "put")


async def patch_record(request: Request) -> Reply:
    """PATCH: the body is a merge patch; see records.patch."""
    return await _write(request, "patch")


async def delete_record(request: Request) -> Reply:
    """DELETE; see records.delete."""
    return await _write(request, "delete")


async def search_records(request: Request) -> Reply:
    """POST …/search: look at newer records first, until there is enough or it took too long."""
    request.query(OfTenant)
    body, tenant_id = request.decode(Search), tenant_of(request)
    collection, needle = named(request, "collection"), body.query.lower()
    bound = ["search", tenant_id, collection, needle]
    last = _opened(request, bound, body.cursor, None)
    loop = asyncio.get_running_loop()
    ends_at_s = loop.time() + searching.TIME_MS_MAX / 1_000
    items: list[Record] = []
    scanned, complete = 0, False
    while not complete and len(items) < body.limit and scanned < searching.ROWS_MAX:
        cmd = searching.Slice(
            tenant_id=tenant_id,
            collection=collection,
            needle=needle,
            matches=body.limit - len(items),
            rows=min(searching.SLICE_ROWS, searching.ROWS_MAX - scanned),
            before=last,
        )
        sliced = await request.app.readers.read(searching.search_slice, cmd)
        items += sliced.items
        scanned += sliced.scanned
        complete, last = sliced.last is None, sliced.last
        if loop.time() >= ends_at_s or searching.full(items):
            break
    cursor = None if complete else wire.seal_cursor(_secret(request), bound, [last])
    found = Found(items=tuple(items), next_cursor=cursor, scanned=scanned, complete=complete)
    return reply(200, found)


def named(request: Request, segment: str) -> str:
    """A name in the path. Refuses RECORD_INVALID where it is none."""
    text = request.path_params[segment]
    try:
        return msgspec.convert(text, Name)
    except msgspec.ValidationError:
        detail = "is 1-128 of A-Za-z0-9._@+- and neither . nor .."
        raise invalid(INVALID, f"/{segment}", detail) from None


def cause_of(request: Request) -> str | None:
    """The workload that X-Feltd-Cause names. Refuses RECORD_INVALID for what is no id."""
    text = request.header(CAUSE)
    if text is None:
        return None
    if not 1 <= len(text) <= CAUSE_CHARS_MAX or not (text.isascii() and text.isprintable()):
        raise invalid(INVALID, "/X-Feltd-Cause", "is no id of a workload")
    return text


def etag(version: int) -> str:
    """The ETag of a version."""
    return f'"{version}"'


def expected(request: Request) -> Expect:
    """What If-Match or If-None-Match expect. Refuses RECORD_INVALID for tags feltd never gave."""
    match, none_match = request.header(b"if-match"), request.header(b"if-none-match")
    if match is not None and none_match is not None:
        raise invalid(INVALID, "/If-None-Match", "does not go together with If-Match")
    if none_match is not None:
        if none_match.strip() != "*":
            raise invalid(INVALID, "/If-None-Match", "is * on a write: the record is not there yet")
        return Expect(if_version=None)
    if match is None:
        return ANY
    if match.strip() == "*":
        return Expect(exists=True)
    tag = _ETAG.fullmatch(match.strip())
    if tag is None:
        raise invalid(INVALID, "/If-Match", 'is * or one version in quotes, as in "3"')
    return Expect(if_version=int(tag[1]))


async def _write(request: Request, op: str) -> Reply:
    request.query(OfTenant)
    tenant_id, collection = tenant_of(request), named(request, "collection")
    value = b""
    if op != "delete":
        value = canonical(request.decode(Any), collection)
    step = transactions.Step(op, collection, named(request, "id"), value, expected(request))
    ask = Ask(
        caller=request.caller,
        body=transactions.Write(tenant_id, step, cause_of(request)),
    )
    stored: Stored = await request.app.writer.submit(
        transactions.write, ask, tenant=tenant_id, deadline_ms=request.deadline_ms
    )
    if op == "delete":
        return reply(204)
    status = 201 if stored.kind == "created" else 200
    return reply(status, listing.shown(stored), {"ETag": etag(stored.version)})


def canonical(value: object, collection: str, pointer: str = "") -> bytes:
    """A value as it is stored. Refuses RECORD_INVALID where the store would not hold it so."""
    return wire.check_free_json(value, record_bytes_max(collection), code=INVALID, pointer=pointer)


def _secret(request: Request) -> bytes:
    secret: bytes = request.app.keyring.cursor_secret
    return secret


def _opened(request: Request, bound: list[Any], cursor: str | None, start: Any) -> Any:
    if cursor is None:
        return start
    return wire.open_cursor(_secret(request), bound, cursor)[0]


def _sealed(request: Request, bound: list[Any], found: Any) -> str | None:
    if found.last is None:
        return None
    return wire.seal_cursor(_secret(request), bound, [found.last])


_RECORD = "/v1/collections/{collection}/records/{id}"
_GONE = {404: "No such record"}
_WRITES = {
    403: "It needs state:write, and in _flow_capabilities capabilities:write instead",
    412: "The record is not as If-Match or If-None-Match expects it",
    429: "The tenant has as many collections as it may have",
}

ROUTES = (
    Route(
        method="GET",
        path="/v1/collections",
        operation="list_collections",
        tag="record",
        handler=list_collections,
        summary="The collections that hold records, by name",
        scope="state:read",
        query=ListQuery,
        answer=CollectionPage,
    ),
    Route(
        method="GET",
        path="/v1/collections/{collection}/records",
        operation="list_records",
        tag="record",
        handler=list_records,
        summary="The records of a collection, newest first; with a prefix by id",
        scope="state:read",
        query=RecordsQuery,
        answer=RecordPage,
        invalid_code=INVALID,
    ),
    Route(
        method="GET",
        path=_RECORD,
        operation="get_record",
        tag="record",
        handler=get_record,
        summary="A record, its version as ETag",
        scope="state:read",
        query=OfTenant,
        answer=Record,
        invalid_code=INVALID,
        responses=_GONE,
    ),
    Route(
        method="PUT",
        path=_RECORD,
        operation="put_record",
        tag="record",
        handler=put_record,
        summary="Make a record or replace its value, which is the whole body; If-Match or "
        "If-None-Match: * say what must hold",
        auth="any",
        scope=transactions.WRITE,
        query=OfTenant,
        body=Any,
        answer=Record,
        status=201,
        invalid_code=INVALID,
        example={"status": "paid", "total": 1250},
        responses={200: "It was there, or holds this value already", **_WRITES},
    ),
    Route(
        method="PATCH",
        path=_RECORD,
        operation="patch_record",
        tag="record",
        handler=patch_record,
        summary="Change members of a record by a merge patch (RFC 7396)",
        auth="any",
        scope=transactions.WRITE,
        query=OfTenant,
        body=Any,
        answer=Record,
        invalid_code=INVALID,
        example={"status": "shipped", "note": None},
        responses={**_GONE, **_WRITES},
    ),
    Route(
        method="DELETE",
        path=_RECORD,
        operation="delete_record",
        tag="record",
        handler=delete_record,
        summary="Delete a record; made again, its version goes on",
        auth="any",
        scope=transactions.WRITE,
        query=OfTenant,
        status=204,
        invalid_code=INVALID,
        responses={**_GONE, 403: _WRITES[403], 412: _WRITES[412]},
    ),
    Route(
        method="GET",
        path=_RECORD + "/provenance",
        operation="get_provenance",
        tag="record",
        handler=get_provenance,
        summary="Who made a record what it is: its changes without their values",
        scope="state:read",
        query=ListQuery,
        answer=Provenance,
        invalid_code=INVALID,
        responses=_GONE,
    ),
    Route(
        method="POST",
        path="/v1/collections/{collection}/search",
        operation="search_records",
        tag="record",
        handler=search_records,
        summary="Records whose JSON text holds some letters, case aside; ends at the limit, 10,000 "
        "records or 250 ms and then says where it goes on",
        scope="state:read",
        query=OfTenant,
        body=Search,
        answer=Found,
        invalid_code=INVALID,
        example={"query": "paid", "limit": 20},
    ),
)
