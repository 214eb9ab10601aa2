"""Cross-origin calls: exact origins only, preflight before authentication, never credentials."""

from collections.abc import Iterable
from urllib.parse import urlsplit

from feltd.errors import Refused

Headers = list[tuple[bytes, bytes]]

EXPOSED = b"ETag, Retry-After, X-Request-Id, Feltd-Protocol"
ALLOWED_METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE"
ALLOWED_HEADERS = (
    b"Authorization, Content-Type, Feltd-Protocol, Idempotency-Key, If-Match, If-None-Match, "
    b"Last-Event-ID, Traceparent, X-Feltd-Cause, X-Feltd-Tenant, X-Request-Id"
)
#: Browsers ask again after ten minutes: a removed origin is out by then.
MAX_AGE_S = b"600"


def check_origin(text: str) -> str:
    """An origin as a browser sends it, lower case: scheme, host, port.

    Raises ValueError with a sentence for `*`, `null`, a path or anything else that is no origin.
    """
    parts = urlsplit(text)
    try:
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    bare = f"{parts.scheme}://{parts.netloc}"
    if not known or parts.username is not None or text.lower() != bare.lower():
        raise ValueError(
            f"invalid --allow-origin {text!r}: name one exact origin like https://ops.example.org"
        )
    return bare.lower()


class Origins:
    """The origins that browsers may call from."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(check_origin(origin).encode() for origin in allowed)

    def holds(self, origin: bytes | None) -> bool:
        """Whether a request's Origin is one of them."""
        return origin is not None and origin.lower() in self._allowed

    def headers(self, origin: bytes | None) -> Headers:
        """What an ordinary answer carries: nothing for strangers."""
        if not self._allowed:
            return []
        vary = (b"vary", b"Origin")
        if origin is None or not self.holds(origin):
            return [vary]
        return [
            vary,
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", EXPOSED),
        ]

    def preflight(self, origin: bytes) -> Headers:
        """What a preflight answer carries beside `headers`. Refuses FORBIDDEN for strangers."""
        if not self.holds(origin):
            raise Refused("FORBIDDEN", "the origin is not allowed", next="ask_operator")
        return [
            (b"access-control-allow-methods", ALLOWED_METHODS),
            (b"access-control-allow-headers", ALLOWED_HEADERS),
            (b"access-control-max-age", MAX_AGE_S),
        ]
