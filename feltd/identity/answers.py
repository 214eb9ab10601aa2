"""POSTs without a key of their own, made safe to repeat: the Idempotency-Key header.

The first answer is kept for a day in the commit that made it; a repeat with the same body gets it
again and does nothing. An answer with a secret is kept without it, so its repeat does its work
anew (`again`), taking back the first. A refusal is not kept: whatever it was, trying again is fine.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from feltd.clock import Now
from feltd.errors import Refused
from feltd.model.base import Ask
from feltd.store.tx import Tx

R = TypeVar("R")

#: On lease time, so that no step of the wall clock forgets or revives an answer.
KEPT_MS = 86_400_000

KEPT = """
SELECT route, body_sha256, status, answer, at_ms
  FROM answers
 WHERE caller = :caller
   AND request_key = :request_key
"""

KEEP = """
INSERT INTO answers (caller, request_key, route, body_sha256, status, answer, at_ms)
VALUES (:caller, :request_key, :route, :body_sha256, :status, :answer, :at_ms)
ON CONFLICT (caller, request_key) DO UPDATE
   SET route = excluded.route,
       body_sha256 = excluded.body_sha256,
       status = excluded.status,
       answer = excluded.answer,
       at_ms = excluded.at_ms
"""

PRUNE = """
DELETE FROM answers
 WHERE (caller, request_key) IN (SELECT caller, request_key
                                   FROM answers
                                  WHERE at_ms <= :before_ms
                                  ORDER BY at_ms, caller, request_key
                                  LIMIT :rows)
"""


class Once(Struct, Generic[R], frozen=True, kw_only=True):
    """A command that shall be done once.

    `rule(tx, ask, now)` does it. `request_key` is the header's text, None to just do it. `route`
    names the operation and what it is done to; `body_sha256` is the hex digest of the body as
    sent; `status` the HTTP status of the first answer. `public(answer)` is what may be kept of it
    (a secret left out). `again(tx, ask, now, kept)`, where given, answers a repeat in the rule's
    stead; `kept` is what was kept, as JSON members.
    """

    rule: Callable[[Tx, Ask[Any], Now], R]
    ask: Ask[Any]
    request_key: str | None
    route: str
    body_sha256: str
    status: int = 201
    public: Callable[[R], object] | None = None
    again: Callable[[Tx, Ask[Any], Now, Any], R] | None = None


class Answered(Struct, Generic[R], frozen=True, kw_only=True):
    """`answer` is the rule's, or for a repeat the kept text, byte by byte; encode it as it is."""

    status: int
    answer: R | Any
    repeated: bool


def once(tx: Tx, cmd: Once[R], now: Now) -> Answered[R]:
    """Do a command unless it was done under this request key within 24 h; then its answer.

    Refuses REQUEST_INVALID when the key came with another body or to another route before, and
    whatever the rule refuses.
    """
    if cmd.request_key is None:
        answer = cmd.rule(tx, cmd.ask, now)
        return Answered(status=cmd.status, answer=answer, repeated=False)
    name = {"caller": cmd.ask.caller.key_id, "request_key": cmd.request_key}
    first = kept(tx, cmd, now)
    if first is None:
        answer = cmd.rule(tx, cmd.ask, now)
    elif cmd.again is None:
        return first
    else:
        said: Any = first.answer
        answer = cmd.again(tx, cmd.ask, now, msgspec.json.decode(said))
    public = answer if cmd.public is None else cmd.public(answer)
    tx.change(
        KEEP,
        {
            **name,
            "route": cmd.route,
            "body_sha256": cmd.body_sha256,
            "status": cmd.status,
            "answer": msgspec.json.encode(public, order="deterministic").decode(),
            "at_ms": now.lease_ms,
        },
    )
    return Answered(status=cmd.status, answer=answer, repeated=first is not None)


def kept(tx: Tx, cmd: Once[R], now: Now) -> Answered[R] | None:
    """The answer kept under a command's request key, None for none; nothing is done.

    Refuses REQUEST_INVALID as `once` does.
    """
    if cmd.request_key is None:
        return None
    row = tx.row(KEPT, {"caller": cmd.ask.caller.key_id, "request_key": cmd.request_key})
    if row is None or row["at_ms"] + KEPT_MS <= now.lease_ms:
        return None
    if (row["route"], row["body_sha256"]) != (cmd.route, cmd.body_sha256):
        raise Refused("REQUEST_INVALID", "this Idempotency-Key came with another request")
    text = msgspec.Raw(row["answer"].encode())
    return Answered(status=row["status"], answer=text, repeated=True)


def prune(tx: Tx, limit: int, now: Now) -> int:
    """Forget answers older than 24 h, at most `limit`; how many."""
    return tx.change(PRUNE, {"before_ms": now.lease_ms - KEPT_MS, "rows": limit})
