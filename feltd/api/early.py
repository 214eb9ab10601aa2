"""The answers to what never became a request: they are written before any layer is asked."""

import os
from collections.abc import Sequence

from feltd.api import problems
from feltd.errors import Refused

Headers = Sequence[tuple[bytes, bytes]]

#: hypercorn must not be the first to refuse a long head: the gate's answer says what was too long.
HEAD_BYTES_MAX = 32 * 1024


def early_answer(status_code: int) -> tuple[int, bytes, problems.Headers]:
    """The status that hypercorn found, in feltd's words: status, body and headers."""
    if status_code == 505:
        refused = Refused("PROTOCOL_UNSUPPORTED", "this daemon speaks HTTP/1.1 only")
    elif status_code == 431:
        refused = Refused("REQUEST_TOO_LARGE", f"the head is longer than {HEAD_BYTES_MAX} bytes")
    elif status_code == 408:
        refused = Refused("REQUEST_TIMEOUT", "the head did not arrive in time")
    else:
        refused = Refused("REQUEST_MALFORMED", "this is not a request of HTTP/1.1")
    name = os.urandom(6).hex()
    status, body, headers = problems.render(refused, name, status=505 if status_code == 505 else 0)
    return status, body, [*headers, (b"x-request-id", name.encode()), (b"feltd-protocol", b"1")]


def closing(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The headers of an answer after which the connection ends, and says so."""
    close = (b"connection", b"close")
    return [*headers] if close in headers else [*headers, close]


def is_websocket(method: bytes, headers: Headers) -> bool:
    """Whether a request asks for a WebSocket, well or badly."""
    named = dict(headers)
    upgrade, tokens = named.get(b"upgrade", b""), named.get(b"connection", b"").lower().split(b",")
    return (
        method == b"GET"
        and upgrade.lower() == b"websocket"
        and b"upgrade" in [token.strip() for token in tokens]
    )


def opens_websocket(headers: Headers) -> bool:
    """Whether such a request is a whole handshake, and nothing but that."""
    named = dict(headers)
    return (
        named.get(b"sec-websocket-version") == b"13"
        and b"sec-websocket-key" in named
        and named.get(b"content-length", b"0").strip(b"0") == b""
        and b"transfer-encoding" not in named
        and all(text.isascii() for text in named.values())
    )


def late_head() -> bytes:
    """The whole answer to a head that did not end in time, as bytes of the wire."""
    status, body, headers = early_answer(408)
    lines = [b"HTTP/1.1 %d Request Timeout" % status, b"connection: close"]
    lines += [name + b": " + text for name, text in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
