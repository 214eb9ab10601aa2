"""Cross-origin calls: exact origins only, preflight before authentication, never credentials."""

from collections.abc import Iterable

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


class Origins:
    """The origins that browsers may call from."""

    def __init__(self, allowed: Iterable[str]) -> None:
        """`allowed` are origins as config.origin gives them."""
        self._allowed = frozenset(origin.encode() for origin in allowed)

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
