"""What was done, told once on the next page: a cookie, because the page is another call.

Another page on this machine, or of a sibling domain, can plant a cookie here. So it carries a MAC
over whom it is told to: nobody puts words into the mouth of the daemon, and what was done in one
session is not told in the next.
"""

import hashlib
import hmac
from urllib.parse import quote, unquote

from feltd.api.request import Request
from feltd.model.base import Caller

NAME = "feltd_said"
CHARS_MAX = 600
KEPT_S = 60
#: Where nobody is known any more, or yet.
OUTSIDE = "/console/login"

_DOMAIN = b"feltd.said.v1\0"
_MAC_CHARS = 32

Header = tuple[bytes, bytes]


def put(request: Request, to: str, text: str) -> Header:
    """The header that has `text` told on the page `to`."""
    kept = quote(text[:CHARS_MAX], safe="")
    to_whom = "" if to.startswith(OUTSIDE) else _to_whom(request)
    return _header(request, f"{kept}.{_mac(request, to_whom, kept)}", KEPT_S)


def take(request: Request) -> tuple[str, list[Header]]:
    """What is to be told on this page, '' for nothing, and the headers that have it told once."""
    found = [
        pair.strip()[len(NAME) + 1 :]
        for name, text in request.scope["headers"]
        if name == b"cookie"
        for pair in text.decode("latin-1").split(";")
        if pair.strip().startswith(NAME + "=")
    ]
    if not found:
        return "", []
    to_whom = _to_whom(request)
    for kept, _, mac in (one.rpartition(".") for one in found):
        if hmac.compare_digest(mac.encode(), _mac(request, to_whom, kept).encode()):
            return unquote(kept)[:CHARS_MAX], [_header(request, "", 0)]
    return "", [_header(request, "", 0)]


def _to_whom(request: Request) -> str:
    caller: Caller | None = request.caller
    return "" if caller is None else caller.key_id


def _mac(request: Request, to_whom: str, kept: str) -> str:
    secret: bytes = request.app.keyring.cursor_secret
    message = _DOMAIN + to_whom.encode() + b"\0" + kept.encode()
    return hmac.digest(secret, message, hashlib.sha256).hex()[:_MAC_CHARS]


def _header(request: Request, text: str, age_s: int) -> Header:
    secure = "; Secure" if request.scope.get("scheme") == "https" else ""
    kept = f"{NAME}={text}; Path=/console; Max-Age={age_s}; HttpOnly; SameSite=Lax{secure}"
    return b"set-cookie", kept.encode("latin-1")
