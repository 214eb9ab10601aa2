"""Behind a proxy: who called is what a trusted one says, and nobody else's word counts."""

from types import SimpleNamespace
from typing import Any

import pytest

from feltd.api.forwarded import PEER, Proxies, behind_proxy, own_origin
from feltd.api.request import LOCAL
from feltd.errors import Refused
from tests.api.transport.kit import request, serving

pytestmark = pytest.mark.anyio

PROXY = ("10.0.0.0/8", "2001:db8::/32")


def scope(peer: str, *headers: tuple[str, str], scheme: str = "http") -> dict[str, Any]:
    return {
        "client": (peer, 4711) if peer else None,
        "scheme": scheme,
        "headers": [(name.encode(), text.encode("latin-1")) for name, text in headers],
        "extensions": {},
    }


def seen(peer: str, *headers: tuple[str, str], networks: tuple[str, ...] = PROXY) -> str:
    """The client's address, as the layers inside see it."""
    call = scope(peer, *headers)
    Proxies(networks).resolve(call)
    return call["client"][0] if call["client"] else ""


@pytest.mark.parametrize(
    ("peer", "said", "found"),
    [
        ("10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("::ffff:10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db9::7", "2001:db9::7"),
        ("10.0.0.1", "[2001:db9::7]:443", "2001:db9::7"),
        ("10.0.0.1", "192.0.2.7:51000", "192.0.2.7"),
        # What the client wrote itself stands before what the proxies added.
        ("10.0.0.1", "1.1.1.1, 192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "1.1.1.1, 192.0.2.7, 10.0.0.9", "192.0.2.7"),
        ("10.0.0.1", "10.0.0.8, 10.0.0.9", "10.0.0.8"),
        ("10.0.0.1", "1.1.1.1, unknown", "10.0.0.1"),
        ("10.0.0.1", "1.1.1.1, unknown, 10.0.0.9", "10.0.0.9"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("192.0.2.1", "1.1.1.1", "192.0.2.1"),
        ("", "1.1.1.1", ""),
    ],
)
def test_the_client_is_the_last_address_that_no_trusted_proxy_has(
    peer: str, said: str, found: str
) -> None:
    assert seen(peer, ("x-forwarded-for", said)) == found


def test_several_headers_are_one_list() -> None:
    said = (("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", "192.0.2.7"))
    assert seen("10.0.0.1", *said) == "192.0.2.7"


def test_a_peer_on_a_unix_socket_is_this_machine() -> None:
    said = ("x-forwarded-for", "192.0.2.7")
    assert seen("", said, networks=("127.0.0.0/8",)) == "192.0.2.7"
    assert seen("", said, networks=("::1",)) == ""


def test_the_operators_socket_takes_nobodys_word() -> None:
    call = scope("", ("x-forwarded-for", "192.0.2.7"), ("x-forwarded-proto", "https"))
    call["extensions"][LOCAL] = True
    Proxies(("127.0.0.1",)).resolve(call)
    assert (call["client"], call["scheme"]) == (None, "http")


@pytest.mark.parametrize(
    ("peer", "scheme", "said", "found"),
    [
        ("10.0.0.1", "http", "https", "https"),
        ("10.0.0.1", "ws", "https", "wss"),
        ("10.0.0.1", "https", "http", "http"),
        ("10.0.0.1", "http", "HTTPS", "https"),
        ("10.0.0.1", "http", "http, https", "https"),
        ("10.0.0.1", "http", "https, http", "http"),
        ("10.0.0.1", "http", "gopher", "http"),
        ("192.0.2.1", "http", "https", "http"),
    ],
)
def test_the_scheme_is_what_the_nearest_proxy_says(
    peer: str, scheme: str, said: str, found: str
) -> None:
    call = scope(peer, ("x-forwarded-proto", said), scheme=scheme)
    Proxies(PROXY).resolve(call)
    assert call["scheme"] == found


def test_the_own_origin_follows_the_scheme_and_the_host_as_named() -> None:
    call = scope("10.0.0.1", ("host", "Felt.Example:8443"), ("x-forwarded-proto", "https"))
    assert own_origin(call) == "http://felt.example:8443"
    Proxies(PROXY).resolve(call)
    assert own_origin(call) == "https://felt.example:8443"
    assert own_origin(scope("", ("host", "a"), scheme="wss")) == "https://a"


def test_calls_that_one_address_has_open_through_the_proxy_are_bounded() -> None:
    proxies = Proxies(PROXY, calls_max=2)
    calls = [scope("10.0.0.1", ("x-forwarded-for", "192.0.2.7")) for _ in range(3)]
    for call in calls:
        proxies.resolve(call)
    first, second = proxies.enter(calls[0]), proxies.enter(calls[1])
    assert (first, second) == ("192.0.2.7", "192.0.2.7")
    with pytest.raises(Refused, match="has 2 calls open"):
        proxies.enter(calls[2])
    other = scope("10.0.0.1", ("x-forwarded-for", "192.0.2.8"))
    proxies.resolve(other)
    assert proxies.enter(other) == "192.0.2.8"
    proxies.leave(first)
    assert proxies.enter(calls[2]) == "192.0.2.7"
    direct = scope("192.0.2.7")
    proxies.resolve(direct)
    assert proxies.enter(direct) is None


def test_over_the_wire_calls_of_one_address_are_refused_and_room_comes_back() -> None:
    told = {"X_Forwarded_For": "192.0.2.7"}
    settings = {"trust_proxy": ("127.0.0.0/8",), "calls_per_address_max": 1}
    with serving(stack=settings) as house:
        held = house.connect().send(request("POST", "/v1/hold", **told))
        house.eventually(lambda: house.world.entered == 1)
        refused = house.call("GET", "/v1/items", **told)
        assert (refused.status, refused.code) == (503, "SERVICE_OVERLOADED")
        assert house.call("GET", "/v1/items", X_Forwarded_For="192.0.2.8").status == 200
        house.do(house.world.release.set)
        assert held.answer().status == 200
        assert house.call("GET", "/v1/items", **told).status == 200


async def door(call: Any) -> None:
    call.caller = "let in"


def call(address: str, *, local: bool = False, scheme: str = "http", **marks: Any) -> Any:
    return SimpleNamespace(
        client_address=address, local=local, scheme=scheme, scope=marks, caller=None
    )


async def test_without_networks_the_door_stands_alone() -> None:
    assert behind_proxy((), door) is door


@pytest.mark.parametrize("address", ["10.1.2.3", "127.0.0.1", "::1", "::ffff:10.1.2.3", ""])
async def test_the_proxy_and_this_machine_come_through(address: str) -> None:
    asked = call(address)
    await behind_proxy(("10.0.0.0/8",), door)(asked)
    assert asked.caller == "let in"


async def test_anybody_else_is_refused_before_his_key_is_looked_at() -> None:
    asked = call("192.0.2.1")
    with pytest.raises(Refused) as refused:
        await behind_proxy(("10.0.0.0/8",), door)(asked)
    assert (refused.value.code, asked.caller) == ("FORBIDDEN", None)


@pytest.mark.parametrize(
    "asked",
    [
        call("192.0.2.1", local=True),
        call("192.0.2.1", scheme="https"),
        call("192.0.2.1", **{PEER: "10.1.2.3"}),
    ],
    ids=["the operator", "by TLS", "brought by the proxy"],
)
async def test_a_stranger_may_come_by_other_safe_ways(asked: Any) -> None:
    await behind_proxy(("10.0.0.0/8",), door)(asked)
    assert asked.caller == "let in"
