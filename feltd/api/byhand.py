"""Whether a call without a key, where none is needed, is the operator's own doing.

The operator's socket may be brought to a port (ssh -L), where each page in his browser reaches it,
and a proxy that is given it would let everybody in. Neither is he. Where a key comes, it decides.
"""

from feltd.api.forwarded import own_origin
from feltd.api.request import Request
from feltd.config import is_loopback
from feltd.errors import Refused

#: What a proxy says of those it brings.
OF_PROXIES = frozenset(
    {b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host",
     b"x-real-ip"}
)  # fmt: skip


def refuse_brought(request: Request) -> None:
    """Refuse FORBIDDEN for a call that a proxy brought."""
    if any(name in OF_PROXIES for name, _ in request.scope["headers"]):
        raise Refused("FORBIDDEN", "a proxy brought this call, without a key: use one")


def refuse_led(request: Request) -> None:
    """Refuse FORBIDDEN for a call on the operator's socket that a page or a proxy made.

    A page is another's by its Origin; or by the name in Host, which only leads to this machine.
    """
    refuse_brought(request)
    host = request.header(b"host") or ""
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    # No name that anybody could point at this machine is without a dot.
    if "." in name and not is_loopback(name):
        raise Refused("FORBIDDEN", "on the operator's own socket the Host is localhost")
    origin = request.header(b"origin")
    if origin is not None and origin != own_origin(request.scope):
        raise Refused("FORBIDDEN", "a page of another origin is not the operator: use a key")
