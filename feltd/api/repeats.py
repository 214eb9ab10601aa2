"""The Idempotency-Key header at the edge: reading it, and submitting a command that is done once.

`answered = await submit_once(request, rule, ask)`; then `reply(answered.status, answered.answer)`.
"""

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

from feltd.api.request import Request
from feltd.api.wire import invalid
from feltd.clock import Now
from feltd.identity.answers import Answered, Once, once
from feltd.model.base import Ask
from feltd.store.tx import Tx

R = TypeVar("R")

HEADER = b"idempotency-key"
CHARS_MAX = 200


def request_key(request: Request) -> str | None:
    """The Idempotency-Key, None when there is none. Refuses REQUEST_INVALID for a bad one."""
    text = request.header(HEADER)
    if text is None:
        return None
    if not 1 <= len(text) <= CHARS_MAX or not text.isprintable():
        raise invalid("REQUEST_INVALID", "", "Idempotency-Key is 1-200 printable characters")
    return text


async def submit_once(
    request: Request,
    rule: Callable[[Tx, Ask[Any], Now], R],
    ask: Ask[Any],
    *,
    tenant: str = "",
    public: Callable[[R], object] | None = None,
    again: Callable[[Tx, Ask[Any], Now, Any], R] | None = None,
) -> Answered[R]:
    """Submit a rule so that a repeat with the same Idempotency-Key and body is answered alike.

    `public` and `again` are for answers that hold a secret; see identity/answers.Once.
    """
    command = once_of(request, rule, ask, public=public, again=again)

    def run(tx: Tx, cmd: Once[R], now: Now) -> Answered[R]:
        return once(tx, cmd, now)

    # The writer's metrics name an operation by its rule.
    run.__name__ = rule.__name__
    done: Answered[R] = await request.app.writer.submit(
        run,
        command,
        keep_alive=request.keep_alive,
        tenant=tenant,
        deadline_ms=request.deadline_ms,
    )
    return done


def once_of(
    request: Request,
    rule: Callable[[Tx, Ask[Any], Now], R],
    ask: Ask[Any],
    *,
    public: Callable[[R], object] | None = None,
    again: Callable[[Tx, Ask[Any], Now, Any], R] | None = None,
) -> Once[R]:
    """A call as a command that is done once, not yet submitted."""
    return Once(
        rule=rule,
        ask=ask,
        request_key=request_key(request),
        route=f"{request.route.operation} {request.scope['path']}",
        body_sha256=hashlib.sha256(request.body).hexdigest(),
        status=request.route.status,
        public=public,
        again=again,
    )
