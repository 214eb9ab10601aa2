"""Reading one request body: under its own deadline, its own limit and a shared budget.

It comes before the permit, so a client that drips its body holds nothing but its connection.
"""

import asyncio
from collections.abc import Callable

from feltd.api.admission import Admission
from feltd.api.request import ClientGone, Message, Receive
from feltd.errors import Refused

#: A body up to here is never refused for the memory that others take: a heartbeat, a renewal and
#: most outcomes fit, and all connections together hold half of the budget by it.
SMALL_BYTES = 16 * 1024

_JSON_TYPES = (b"application/json", b"application/merge-patch+json")


class Bodies:
    """What is being read now, and its bounds."""

    def __init__(
        self,
        admission: Admission,
        *,
        body_bytes_max: int,
        body_deadline_ms: int,
        reading_bytes_max: int,
    ) -> None:
        self.body_bytes_max = body_bytes_max
        #: Gauge: bytes of bodies received and not yet complete, over all connections.
        self.reading_bytes = 0
        self._reading_bytes_max = reading_bytes_max
        self._deadline_s = body_deadline_ms / 1000
        self._admission = admission

    async def read(
        self,
        receive: Receive,
        declared_bytes: int | None,
        bytes_max: int | None = None,
        *,
        keep_alive: bool = False,
        held_s: Callable[[], float] = float,
    ) -> bytes:
        """The whole body.

        Refuses REQUEST_TOO_LARGE at once when `declared_bytes` says so, else with the first byte
        over the limit; REQUEST_TIMEOUT when the end has not come by the deadline, however steadily
        it drips, `held_s` not counted: for so long it waited for those who upload beside it;
        SERVICE_OVERLOADED when all bodies being read together exceed their budget and
        this is not a small one: a few clients with slow large bodies must not silence the rest.
        Raises ClientGone when the client leaves in the middle.
        """
        limit = self.body_bytes_max if bytes_max is None else bytes_max
        if declared_bytes is not None and declared_bytes > limit:
            raise _too_large(limit)
        received = 0
        pieces = []
        # The client's own time: seconds on the loop's clock without those it was held.
        until_s = asyncio.get_running_loop().time() - held_s() + self._deadline_s
        try:
            while True:
                message = await _received(receive, until_s, held_s)
                if message["type"] == "http.disconnect":
                    raise ClientGone
                piece = message.get("body", b"")
                received += len(piece)
                self.reading_bytes += len(piece)
                if received > limit:
                    raise _too_large(limit)
                if received > SMALL_BYTES and self.reading_bytes > self._reading_bytes_max:
                    raise self._admission.refusal(keep_alive=keep_alive, reason="body_memory")
                pieces.append(piece)
                if not message.get("more_body", False):
                    break
        except TimeoutError:
            raise Refused(
                "REQUEST_TIMEOUT", f"the body did not arrive within {self._deadline_s:g} s"
            ) from None
        finally:
            self.reading_bytes -= received
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def _received(receive: Receive, until_s: float, held_s: Callable[[], float]) -> Message:
    """The next message. Raises TimeoutError once the client's time is up."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            async with asyncio.timeout_at(until_s + held_s()):
                return await receive()
        except TimeoutError:
            if loop.time() >= until_s + held_s():
                raise


def check_media_type(content_type: bytes | None) -> None:
    """A body must be JSON in UTF-8. Refuses MEDIA_TYPE_UNSUPPORTED."""
    media, _, parameters = (content_type or b"").partition(b";")
    charset = parameters.strip().lower().replace(b'"', b"")
    if media.strip().lower() not in _JSON_TYPES or charset not in (b"", b"charset=utf-8"):
        raise Refused(
            "MEDIA_TYPE_UNSUPPORTED", "a body needs the header Content-Type: application/json"
        )


def check_form(content_type: bytes | None) -> None:
    """The body of a page is a form. Refuses MEDIA_TYPE_UNSUPPORTED.

    Not a part of another: what a stranger's page may send without being asked stays the fewest.
    """
    media = (content_type or b"").partition(b";")[0].strip().lower()
    if media != b"application/x-www-form-urlencoded":
        raise Refused("MEDIA_TYPE_UNSUPPORTED", "a page takes application/x-www-form-urlencoded")


def _too_large(limit: int) -> Refused:
    return Refused("REQUEST_TOO_LARGE", f"the body is larger than {limit} bytes", limit=limit)
