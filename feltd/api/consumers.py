"""Consumers over HTTP: begun and moved on by what they acknowledge, looked at, forgotten.

Keyed by tenant and name. A handler decodes, finds the tenant, submits one rule and replies.
"""

from typing import Any

from feltd.api.door import tenant_of
from feltd.api.records import INVALID, OfTenant, named
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.model import record
from feltd.model.base import Ask
from feltd.model.change import Acknowledge, Consumer, ConsumerPage
from feltd.state import consumers

READ = "state:read"


async def acknowledge_changes(request: Request) -> Reply:
    """PUT /v1/consumers/{name}; see consumers.acknowledge."""
    request.query(OfTenant)
    body = request.decode(Acknowledge)
    consumer, begun = await _submit(request, consumers.acknowledge, body.ack)
    return reply(201 if begun else 200, consumer)


async def get_consumer(request: Request) -> Reply:
    """GET /v1/consumers/{name}."""
    request.query(OfTenant)
    cmd = consumers.OfConsumer(tenant_of(request), named(request, "name"))
    return reply(200, await request.app.readers.read(consumers.get, cmd))


async def list_consumers(request: Request) -> Reply:
    """GET /v1/consumers: all of them, by name."""
    request.query(OfTenant)
    cmd = record.OfTenant(tenant_of(request))
    found = await request.app.readers.read(consumers.of_tenant, cmd)
    return reply(200, ConsumerPage(items=found))


async def delete_consumer(request: Request) -> Reply:
    """DELETE /v1/consumers/{name}; repeating it is harmless."""
    request.query(OfTenant)
    await _submit(request, consumers.delete, 0)
    return reply(204)


async def _submit(request: Request, rule: Any, ack: int) -> Any:
    cmd = consumers.OfConsumer(tenant_of(request), named(request, "name"), ack)
    ask = Ask(caller=request.caller, body=cmd)
    return await request.app.writer.submit(
        rule, ask, tenant=cmd.tenant_id, deadline_ms=request.deadline_ms
    )


_DROPPED = "It was dropped, and the changes behind it are gone; `oldest` is the first one kept"

ROUTES = (
    Route(
        method="GET",
        path="/v1/consumers",
        operation="list_consumers",
        tag="consumer",
        handler=list_consumers,
        summary="Who acknowledges changes of the tenant, and how far behind each is",
        scope=READ,
        query=OfTenant,
        answer=ConsumerPage,
    ),
    Route(
        method="PUT",
        path="/v1/consumers/{name}",
        operation="acknowledge_changes",
        tag="consumer",
        handler=acknowledge_changes,
        summary="Say that every change up to `ack` is done with; what lies behind it is kept for "
        "this consumer, within limits",
        scope=READ,
        query=OfTenant,
        body=Acknowledge,
        answer=Consumer,
        status=201,
        invalid_code=INVALID,
        example={"ack": 0},
        responses={
            200: "It was known",
            409: "It has acknowledged more already, `ack`",
            410: "The changes behind `ack` are gone; `oldest` is the first one kept",
            429: "The tenant has as many consumers as it may have",
        },
    ),
    Route(
        method="GET",
        path="/v1/consumers/{name}",
        operation="get_consumer",
        tag="consumer",
        handler=get_consumer,
        summary="A consumer, what it has acknowledged and how far behind it is",
        scope=READ,
        query=OfTenant,
        answer=Consumer,
        invalid_code=INVALID,
        responses={404: "No such consumer", 410: _DROPPED},
    ),
    Route(
        method="DELETE",
        path="/v1/consumers/{name}",
        operation="delete_consumer",
        tag="consumer",
        handler=delete_consumer,
        summary="Forget a consumer; compaction waits for it no more",
        scope=READ,
        query=OfTenant,
        status=204,
        invalid_code=INVALID,
    ),
)
