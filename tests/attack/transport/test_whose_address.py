"""Whom a cap counts: an address, however it is written; of IPv6 the whole network of its owner."""

import asyncio

import pytest

from feltd.api.forwarded import Proxies, bounded_by, plain
from feltd.api.house import House, Line
from feltd.api.listen import ServerSettings
from feltd.errors import Refused


class Nowhere:
    """What a line asks of its writer before anything is written."""


@pytest.mark.parametrize(
    ("address", "whose"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:0:1::7", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff:ffff:ffff:ffff", "2001:db8:0:1::/64"),
        ("2001:db8:0:2::7", "2001:db8:0:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("testclient", "testclient"),
    ],
)
def test_whose_an_address_is(address: str, whose: str) -> None:
    assert bounded_by(address) == whose
    assert bounded_by(bounded_by(address)) == whose


def test_an_address_within_another_is_written_plainly_and_nothing_else_changes() -> None:
    assert plain("::ffff:127.0.0.1") == "127.0.0.1"
    for same in ("127.0.0.1", "::1", "fd00::2", "", "a.b:c"):
        assert plain(same) == same


@pytest.mark.anyio
async def test_a_network_of_ipv6_has_no_more_connections_than_an_address() -> None:
    settings = ServerSettings(max_connections=64, max_connections_per_address=4)
    house = House(settings, stop=asyncio.Event(), late_head=b"")
    lines = [Line(Nowhere(), settings) for _ in range(8)]  # type: ignore[arg-type]
    homes = [f"2001:db8:0:1::{number:x}" for number in range(8)]

    let_in = [house.enter(line, home, local=False) for line, home in zip(lines, homes, strict=True)]

    assert let_in == [True] * 4 + [False] * 4
    for line in lines[:4]:
        house.leave(line)
    assert house.enter(lines[7], homes[7], local=False)


def test_nor_more_calls_through_a_proxy() -> None:
    proxies = Proxies(["192.0.2.0/24"], calls_max=2)

    def call(number: int) -> str | None:
        told = [(b"x-forwarded-for", b"2001:db8:0:1::%x" % number)]
        scope = {"type": "http", "scheme": "http", "client": ("192.0.2.1", 1), "headers": told}
        proxies.resolve(scope)
        return proxies.enter(scope)

    first, _ = call(1), call(2)
    with pytest.raises(Refused, match="2 calls open"):
        call(3)
    proxies.leave(first)
    assert call(4) == "2001:db8:0:1::/64"
