"""Transactions over HTTP: many writes of records, all of them or none.

Values are brought into the form they are stored in here, off the writer. With a request_id (or an
Idempotency-Key) a repeat is answered as the first was.
"""

import hashlib

from msgspec import UNSET

from feltd.api.door import tenant_of
from feltd.api.records import INVALID, OfTenant, canonical, cause_of
from feltd.api.repeats import request_key
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.api.wire import invalid
from feltd.clock import Now
from feltd.identity.answers import Answered, Once, once
from feltd.model.base import Ask
from feltd.model.record import Committed, Expect, Mutation, Transaction
from feltd.state import transactions
from feltd.state.transactions import Step, Transacting
from feltd.store.tx import Tx

#: Values in an answer, bytes together; fewer in one that is kept a day for its repeat.
VALUES_BYTES_MAX = 4 * 1024 * 1024
KEPT_VALUES_BYTES_MAX = 256 * 1024


async def transact(request: Request) -> Reply:
    """POST /v1/transactions; see transactions.transact."""
    request.query(OfTenant)
    body, tenant_id = request.decode(Transaction), tenant_of(request)
    key = _key(request, body, tenant_id)
    cmd = Transacting(
        tenant_id,
        tuple(_step(place, one) for place, one in enumerate(body.mutations)),
        request.body,
        VALUES_BYTES_MAX if key is None else KEPT_VALUES_BYTES_MAX,
        cause_of(request),
    )
    command = Once(
        rule=transactions.transact,
        ask=Ask(caller=request.caller, body=cmd),
        request_key=key,
        route=f"{request.route.operation} {tenant_id}",
        body_sha256=hashlib.sha256(request.body).hexdigest(),
        status=request.route.status,
    )
    done: Answered[Committed] = await request.app.writer.submit(
        _transact, command, tenant=tenant_id, deadline_ms=request.deadline_ms
    )
    return reply(done.status, done.answer)


def _transact(tx: Tx, cmd: Once[Committed], now: Now) -> Answered[Committed]:
    return once(tx, cmd, now)


# The writer's metrics name an operation by its rule.
_transact.__name__ = transactions.transact.__name__


def _key(request: Request, body: Transaction, tenant_id: str) -> str | None:
    if body.request_id is not None:
        return f"transaction/{tenant_id}/{body.request_id}"
    return request_key(request)


def _step(place: int, one: Mutation) -> Step:
    pointer = f"/mutations/{place}/value"
    value = b""
    if one.op == "delete":
        if one.value is not UNSET:
            raise invalid(INVALID, pointer, "goes with put and patch alone")
    elif one.value is UNSET:
        raise invalid(INVALID, pointer, "is required")
    else:
        value = canonical(one.value, one.collection, pointer)
    return Step(one.op, one.collection, one.id, value, Expect(if_version=one.if_version))


ROUTES = (
    Route(
        method="POST",
        path="/v1/transactions",
        operation="transact",
        tag="transaction",
        handler=transact,
        summary="Write up to 1,000 records in order, all of them or none; if_version says what "
        "must hold of each, null that it is not there",
        auth="any",
        scope=transactions.WRITE,
        query=OfTenant,
        body=Transaction,
        answer=Committed,
        invalid_code=INVALID,
        example={
            "mutations": [
                {"op": "put", "collection": "orders", "id": "o-1", "value": {"status": "paid"}},
                {"op": "patch", "collection": "orders", "id": "o-1", "value": {"total": 1250}},
            ],
            "request_id": "2026-11-30/1",
        },
        responses={
            403: "It needs state:write, and for _flow_capabilities capabilities:write instead",
            404: "A record to patch or delete is not there; `errors` points at the mutation",
            412: "A record is not at its if_version; `errors` points at the mutation",
            429: "The tenant has as many collections as it may have",
        },
    ),
)
