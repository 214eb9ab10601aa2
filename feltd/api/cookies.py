"""The cookie of a session, and the defence of what is done with it.

A browser sends the cookie whoever made it call, so a call that changes anything by cookie must
also come from a page of this daemon (Origin) and carry what only such a page was given (the form
token). A bearer in the header needs neither, and decides where both come.
"""

import hashlib
import hmac
from urllib.parse import parse_qs

from feltd.api.forwarded import own_origin
from feltd.api.request import Request
from feltd.clock import wall_ms
from feltd.config import is_loopback
from feltd.errors import Refused
from feltd.identity.keyring import Keyring

#: With the prefix a browser takes it only from this very host, over TLS, for every path.
NAME_SECURE = "__Host-feltd_session"
#: Over plain HTTP a browser would not take it; that is served to this machine alone.
NAME_LOOPBACK = "feltd_session"
#: A session and nothing else may come by cookie.
KIND = "felt_h_"

FORM_TOKEN_HEADER = b"x-feltd-form-token"
FORM_TOKEN_FIELD = "form_token"
FORM_MEDIA = b"application/x-www-form-urlencoded"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

#: Beside an answer given for a cookie: no proxy knows that it is one person's, and the browser is
#: another's after the logout.
UNKEPT = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))

_DOMAIN = b"feltd.form.v1\0"

Header = tuple[bytes, bytes]


def is_secure(request: Request) -> bool:
    """Whether the cookie is only for TLS: always, but for plain HTTP within this machine."""
    server = request.scope.get("server") or ("", None)
    return request.scope.get("scheme") == "https" or not is_loopback(str(server[0] or ""))


def session_of(request: Request) -> str | None:
    """The session a cookie brings, as bearer text; None without one, or with several.

    None on a WebSocket too: a browser opens those from any page.
    """
    if request.scope["type"] != "http":
        return None
    wanted = (NAME_SECURE if is_secure(request) else NAME_LOOPBACK) + "="
    found = [
        pair.strip().removeprefix(wanted)
        for name, text in request.scope["headers"]
        if name == b"cookie"
        for pair in text.decode("latin-1").split(";")
        if pair.strip().startswith(wanted)
    ]
    # Of two, somebody else may have planted one.
    return found[0] if len(found) == 1 and found[0].startswith(KIND) else None


def set_cookie(request: Request, session: str, expires_at_ms: int) -> Header:
    """The header that keeps a session in the browser until it expires."""
    return _header(request, session, max(0, expires_at_ms - wall_ms()) // 1000)


def clear_cookie(request: Request) -> Header:
    """The header that takes it out of the browser."""
    return _header(request, "", 0)


def form_token(keyring: Keyring, session_id: str) -> str:
    """What a page of this session puts into its forms; good as long as the session and keyring."""
    mac = hmac.digest(keyring.cursor_secret, _DOMAIN + session_id.encode(), hashlib.sha256)
    return mac.hex()


def refuse_foreign(request: Request) -> None:
    """Refuse FORBIDDEN for a call that changes something from a page that is not the daemon's."""
    if request.scope["method"] in SAFE:
        return
    if request.header(b"origin") != own_origin(request.scope):
        raise Refused(
            "FORBIDDEN", "a session's cookie changes things only from a page of this daemon"
        )


def refuse_unmeant(request: Request, session_id: str) -> None:
    """Refuse FORBIDDEN for a call that changes something without the session's form token.

    It comes in the header X-Feltd-Form-Token, or as the field form_token of a form.
    """
    if request.scope["method"] in SAFE:
        return
    given = request.header(FORM_TOKEN_HEADER)
    if given is None:
        given = _field(request)
    right = form_token(request.app.keyring, session_id)
    if given is None or not hmac.compare_digest(given.encode(), right.encode()):
        raise Refused("FORBIDDEN", "the form token is missing or not of this session: reload")


def _field(request: Request) -> str | None:
    media = (request.header(b"content-type") or "").partition(";")[0].strip().lower()
    if media.encode("latin-1") != FORM_MEDIA:
        return None
    try:
        fields = parse_qs(request.body.decode("ascii"), max_num_fields=4_096)
    except ValueError:
        return None
    found = fields.get(FORM_TOKEN_FIELD, [])
    return found[0] if len(found) == 1 else None


def _header(request: Request, session: str, age_s: int) -> Header:
    secure = is_secure(request)
    name = NAME_SECURE if secure else NAME_LOOPBACK
    kept = f"{name}={session}; Path=/; Max-Age={age_s}; HttpOnly; SameSite=Lax"
    return b"set-cookie", (kept + ("; Secure" if secure else "")).encode("latin-1")
