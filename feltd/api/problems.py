"""A refusal as the bytes of an `application/problem+json` answer.

The only place where a `Refused` becomes HTTP. Clients match `code` and `next`, never the text; a
503 always says whether anything was committed and when to come back.
"""

import re
from typing import Any

from feltd.api import wire
from feltd.api.explain import EXPLANATIONS
from feltd.errors import TABLE, Refused

Headers = list[tuple[bytes, bytes]]
#: Status, body and headers of an answer.
Rendered = tuple[int, bytes, Headers]

#: Facts that travel as headers only.
RETRY_AFTER_S = "retry_after_s"
ALLOW = "allow"
#: Asked of a client when nobody knows better.
RETRY_AFTER_DEFAULT_S = 1

_STORAGE_FAILURES = {
    "worker": "MESH_STORAGE_FAILURE",
    "pool": "MESH_STORAGE_FAILURE",
    "workload": "WORKLOAD_STORAGE_FAILURE",
    "claim": "WORKLOAD_STORAGE_FAILURE",
    "trigger": "TRIGGER_STORAGE_FAILURE",
}

_EXAMPLE_REQUEST_ID = "0f3c9a52-1"
_CHARS = re.compile(r"[^\x20-\x7e]")


def document(refused: Refused, request_id: str) -> dict[str, Any]:
    """The members of the problem document, in the order they are written."""
    row, facts = refused.row, dict(refused.facts)
    facts.pop(RETRY_AFTER_S, None)
    facts.pop(ALLOW, None)
    if row.status == 503:
        facts.setdefault("committed", "unknown" if row.code == "OUTCOME_UNKNOWN" else False)
    facts.pop("next", None)
    own = {
        "type": f"/errors/{row.code}",
        "title": row.title,
        "status": row.status,
        "detail": refused.detail,
        "error": refused.detail,
        "code": row.code,
        "next": refused.next,
        "request_id": request_id,
    }
    return own | {name: fact for name, fact in facts.items() if name not in own}


def render(refused: Refused, request_id: str, *, status: int = 0) -> tuple[int, bytes, Headers]:
    """Status, body and headers of the answer to `refused`.

    `status` replaces the table's where HTTP itself has a narrower one (505); 0 does not.
    """
    row, facts = refused.row, refused.facts
    members = document(refused, request_id)
    status = status or row.status
    members["status"] = status
    body = _ordered(members)
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", b"%d" % len(body)),
    ]
    if row.status == 503 or RETRY_AFTER_S in facts:
        seconds = int(facts.get(RETRY_AFTER_S, RETRY_AFTER_DEFAULT_S))
        headers.append((b"retry-after", b"%d" % seconds))
    if ALLOW in facts:
        headers.append((b"allow", str(facts[ALLOW]).encode("ascii")))
    if row.status == 426:
        headers.append((b"upgrade", b"websocket"))
    if row.status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="feltd"'))
    return status, body, headers


def of_noun(refused: Refused, noun: str) -> Refused:
    """A failing storage is told under the code of the noun it failed for.

    A full disk and a foreign lock keep their own codes on every route.
    """
    code = _STORAGE_FAILURES.get(noun)
    if refused.code != "STORAGE_UNAVAILABLE" or code is None:
        return refused
    return Refused(code, refused.detail, **refused.facts)


def internal() -> Refused:
    """What a client learns of a fault of feltd: nothing but where it is logged."""
    return Refused("INTERNAL", "the daemon met a fault of its own; its log has it by request_id")


def cut_short(method: str | None) -> Refused:
    """What a client learns whose call was still at work when the daemon had to end."""
    if method in ("GET", "HEAD"):
        return Refused("SERVICE_OVERLOADED", "the daemon is stopping", committed=False)
    return Refused("OUTCOME_UNKNOWN", "the daemon stopped in the middle", committed="unknown")


def explanation(code: str) -> dict[str, Any]:
    """The document `GET /errors/<CODE>`. Refuses ROUTE_NOT_FOUND for a code that is none."""
    row = TABLE.get(code)
    if row is None:
        shown = _CHARS.sub("?", code)[:64]
        raise Refused("ROUTE_NOT_FOUND", f"there is no error code {shown}")
    told = EXPLANATIONS[code]
    return {
        "code": row.code,
        "status": row.status,
        "meaning": row.title,
        "cause": told.cause,
        "next": row.next,
        "next_step": told.remedy,
        "example": document(Refused(code, row.title), _EXAMPLE_REQUEST_ID),
    }


def _ordered(members: dict[str, Any]) -> bytes:
    # Written member by member so that `type`, `title`, `status` come first for a reader of logs;
    # values inside are as deterministic as every other answer.
    pairs = (wire.encode(name) + b":" + wire.encode(fact) for name, fact in members.items())
    return b"{" + b",".join(pairs) + b"}"
