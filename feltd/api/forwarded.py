"""Who really called, and over what, when a proxy stands between: told by the proxy's headers.

X-Forwarded-For and X-Forwarded-Proto count only from a peer inside the networks of --trust-proxy;
anybody else's are as if they were not there. No other header is looked at: the proxy passes Host
on as it came. It runs before anything else of a call, so every reader of the scope's `client` and
`scheme` sees what came out.
"""

import ipaddress
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from feltd.api.request import LOCAL, Request, Scope
from feltd.errors import Refused

if TYPE_CHECKING:
    from feltd.api.dispatch import Authenticate

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: In the scope of a forwarded call: the address of the proxy that brought it.
PEER = "feltd.peer"
#: Addresses read from one call's headers: a chain of proxies is short.
HOPS_MAX = 32
#: Whose address a peer on a Unix socket has: it is on this machine, and has none of its own.
HERE = "127.0.0.1"

_SECURE = {"http": "https", "ws": "wss", "https": "https", "wss": "wss"}
_CLEAR = {"http": "http", "ws": "ws", "https": "http", "wss": "ws"}


class Proxies:
    """The networks of trusted proxies, and how many calls they have brought from each address."""

    def __init__(self, networks: Iterable[str] = (), calls_max: int = 512) -> None:
        """`calls_max` calls at once from one address, as its own connections would be bounded."""
        self._networks = tuple(ipaddress.ip_network(network) for network in networks)
        self._calls_max = calls_max
        self._calls: Counter[str] = Counter()
        self._known = lru_cache(1_024)(self._known_slowly)

    def trusts(self, address: str) -> bool:
        """Whether what this peer says of others counts; '' is a peer on a Unix socket."""
        return bool(self._networks) and self._known(address or HERE)

    def _known_slowly(self, address: str) -> bool:
        found = _address(address)
        return found is not None and any(found in network for network in self._networks)

    def resolve(self, scope: Scope) -> None:
        """Put the client's address and scheme into the scope of a call that a proxy brought."""
        if not self._networks or (scope.get("extensions") or {}).get(LOCAL):
            return
        peer = _client(scope)
        if not self.trusts(peer):
            return
        named, scheme = _told(scope)
        address = self._nearest_stranger(named) or peer
        scope[PEER] = peer
        scope["client"] = (address, 0) if address else None
        if scheme is not None:
            scope["scheme"] = (_SECURE if scheme == "https" else _CLEAR)[scope["scheme"]]

    def enter(self, scope: Scope) -> str | None:
        """Count a call that a proxy brought; the address to give to `leave`, None for another's.

        A client behind a proxy has no connection of its own to be bounded by. Refuses
        SERVICE_OVERLOADED when its address has too many calls open.
        """
        if PEER not in scope:
            return None
        address = bounded_by(_client(scope))
        if self._calls[address] >= self._calls_max:
            raise Refused(
                "SERVICE_OVERLOADED",
                f"this address has {self._calls_max} calls open already",
                committed=False,
                retry_after_s=1,
            )
        self._calls[address] += 1
        return address

    def leave(self, address: str | None) -> None:
        """The call ended."""
        if address is not None:
            self._calls[address] -= 1
            if not self._calls[address]:
                del self._calls[address]

    def _nearest_stranger(self, named: list[str]) -> str | None:
        """The last address that no trusted proxy has: what stands before it, anybody could say."""
        found = None
        for text in reversed(named[-HOPS_MAX:]):
            one = _address(_without_port(text))
            if one is None:
                break
            found = str(one)
            if not self._known(found):
                break
        return found


def behind_proxy(networks: tuple[str, ...], door: "Authenticate") -> "Authenticate":
    """The door, for calls that came by a trusted proxy, by TLS, or from this machine alone.

    Without networks it is the door itself. Refuses FORBIDDEN: a key sent in clear text past the
    proxy must not become a habit.
    """
    if not networks:
        return door
    proxies = Proxies(networks)

    async def authenticate(request: Request) -> None:
        address = request.client_address
        came = request.local or PEER in request.scope or request.scheme == "https"
        if not came and address and not proxies.trusts(address) and not _is_here(address):
            raise Refused("FORBIDDEN", "calls from this address must come through the proxy")
        await door(request)

    return authenticate


def plain(address: str) -> str:
    """An address as it is written where nothing is inside another: IPv4 is never in IPv6.

    A socket for both families shows IPv4 peers inside one network of IPv6. Other text stays.
    """
    if "." not in address or ":" not in address:
        return address
    found = _address(address)
    return address if found is None else str(found)


def bounded_by(address: str) -> str:
    """Whom caps and attempts are counted for: an address, of IPv6 its network.

    Whoever has one address there has all of them. What is no address stays as it is.
    """
    found = _address(address)
    if found is None or found.version == 4:
        return address if found is None else str(found)
    return str(ipaddress.ip_network((int(found), 64), strict=False))


def own_origin(scope: Scope) -> str:
    """The origin that a page of this daemon has in the browser that makes this call.

    Scheme by the transport or the trusted proxy, host as the client named it, lower case.
    """
    host = next((text for name, text in scope["headers"] if name == b"host"), b"")
    scheme = "https" if scope.get("scheme") in ("https", "wss") else "http"
    return f"{scheme}://{host.decode('latin-1').lower()}"


def _client(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _told(scope: Scope) -> tuple[list[str], str | None]:
    """The addresses of all X-Forwarded-For, and what the nearest proxy says of the scheme."""
    named: list[str] = []
    scheme = None
    for name, text in scope["headers"]:
        if name == b"x-forwarded-for":
            named += [part.strip() for part in text.decode("latin-1").split(",")]
        elif name == b"x-forwarded-proto":
            last = text.rpartition(b",")[2].strip().lower()
            scheme = last.decode("latin-1") if last in (b"http", b"https") else None
    return named, scheme


def _without_port(text: str) -> str:
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


@lru_cache(1_024)
def _address(text: str) -> Address | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    # A socket for both families shows IPv4 peers inside IPv6.
    return getattr(found, "ipv4_mapped", None) or found


def _is_here(address: str) -> bool:
    found = _address(address)
    return found is not None and found.is_loopback
