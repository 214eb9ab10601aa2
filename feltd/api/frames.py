"""The messages of a channel, read and written: nothing is decided here.

What does not fit is refused as the exchange over HTTP refuses it, under the id the frame names.
"""

from typing import Any

import msgspec
from msgspec import UNSET

from feltd.api import problems, wire
from feltd.api.claiming import INVALID
from feltd.errors import Refused
from feltd.model.channel import Auth, Credit, Frame, Named, Wanted
from feltd.model.claim import Pull
from feltd.model.exchange import Exchange, ExchangeAnswer

#: What only a pull has: an order that stands takes none of it.
OF_PULLS = ("max", "wait_ms", "request_id")


class Unreadable(Exception):
    """A frame that is not one: whom its refusal is for, and why."""

    def __init__(self, frame_id: object, refused: Refused) -> None:
        super().__init__(str(refused))
        self.frame_id = frame_id
        self.refused = refused


def read(message: bytes) -> tuple[object, Exchange, Credit | None]:
    """The id, the exchange and the order of one frame. Raises Unreadable."""
    try:
        frame = wire.decode(message, Frame, INVALID)
        pull, credit = _claim_part(frame.claim)
    except Refused as refused:
        raise Unreadable(_id_of(message), refused) from None
    exchange = Exchange(
        heartbeat=frame.heartbeat,
        start=frame.start,
        renew=frame.renew,
        checkpoint=frame.checkpoint,
        complete=frame.complete,
        fail=frame.fail,
        release=frame.release,
        log=frame.log,
        claim=pull,
    )
    return frame.id, exchange, credit


def read_auth(message: bytes) -> str:
    """The bearer in a first frame. Refuses UNAUTHENTICATED."""
    try:
        return wire.decode(message, Auth).auth
    except Refused:
        raise Refused(
            "UNAUTHENTICATED", 'the first frame must be {"auth": "<key>"}, as no key came before'
        ) from None


def answer(frame_id: object, done: ExchangeAnswer) -> str:
    """The message that answers a frame."""
    return _with_id(frame_id, wire.encode(done))


def refusal(frame_id: object, refused: Refused, request_id: str) -> str:
    """The message that refuses a frame: what HTTP would have said, Retry-After included."""
    _, body, headers = problems.render(refused, request_id)
    for name, seconds in headers:
        if name == b"retry-after":
            body = body[:-1] + b',"retry_after_s":' + seconds + b"}"
    return _with_id(frame_id, body)


def _with_id(frame_id: object, body: bytes) -> str:
    return (b'{"id":' + wire.encode(frame_id) + b"," + body[1:]).decode()


def _claim_part(wanted: Wanted | None) -> tuple[Pull | None, Credit | None]:
    if wanted is None:
        return None, None
    said: dict[str, Any] = {
        name: value for name in OF_PULLS if (value := getattr(wanted, name)) is not UNSET
    }
    common: dict[str, Any] = {
        "lease_ms": wanted.lease_ms,
        "workload_kinds": wanted.workload_kinds,
        "start": wanted.start,
    }
    if wanted.credit is UNSET:
        return Pull(**common, **said), None
    if said:
        name = next(iter(said))
        raise wire.invalid(INVALID, f"/claim/{name}", "does not go together with credit")
    return None, Credit(most=wanted.credit, **common)


def _id_of(message: bytes) -> object:
    """The id of a frame that does not fit otherwise, None where there is none to answer under."""
    try:
        named = msgspec.json.decode(message, type=Named).id
    except (msgspec.DecodeError, RecursionError, UnicodeError, ValueError):
        return None
    fits = isinstance(named, str) and len(named) <= 200
    fits = fits or (type(named) is int and abs(named) <= wire.INT_MAX)
    return named if fits else None
