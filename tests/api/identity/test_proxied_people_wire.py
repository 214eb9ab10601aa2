"""People behind a proxy that ends TLS: the cookie is for TLS, and each address waits for itself."""

from collections.abc import Iterator

import pytest

from feltd.identity.throttle import ADDRESS_FREE
from tests.api.identity.conftest import Wire
from tests.daemon.running import Answer, Daemon

PASSWORD = "correct horse battery"
HOST = "felt.example"


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """A daemon that believes the proxy on this machine."""
    daemon = Daemon(
        tmp_path_factory.mktemp("proxied") / "feltd.db", "--trust-proxy", "127.0.0.1/32"
    )
    try:
        yield Wire(daemon.init().start())
    finally:
        daemon.close()


def login(wire: Wire, name: str, password: str = PASSWORD, address: str = "192.0.2.1") -> Answer:
    """As the proxy passes it on."""
    return wire.call(
        "POST", "/v1/auth/login", {"username": name, "password": password}, key="", Host=HOST,
        X_Forwarded_For=address, X_Forwarded_Proto="https",
    )  # fmt: skip


def test_the_cookie_is_only_for_tls_and_a_page_of_the_proxys_name_may_act(wire: Wire) -> None:
    wire.post("/v1/users", {"username": "ada", "password": PASSWORD, "roles": {"acme": "viewer"}})

    kept = login(wire, "ada").headers["set-cookie"]

    cookie = kept.partition(";")[0]
    assert cookie.startswith("__Host-feltd_session=felt_h_")
    assert {"Secure", "HttpOnly", "Path=/", "SameSite=Lax"} <= set(kept.split("; "))
    assert "Domain" not in kept
    told = {"Host": HOST, "X_Forwarded_Proto": "https", "Cookie": cookie}
    assert wire.call("GET", "/v1/workers", key="", **told).status == 200
    plain = wire.call("POST", "/v1/auth/logout", {}, key="", Origin=f"http://{HOST}", **told)
    own = wire.call("POST", "/v1/auth/logout", {}, key="", Origin=f"https://{HOST}", **told)
    assert "only from a page of this daemon" in plain.body["detail"]
    assert "form token" in own.body["detail"], "the origin is right"
    named = told | {"Cookie": cookie.removeprefix("__Host-")}
    assert wire.call("GET", "/v1/workers", key="", **named).status == 401


def test_an_address_that_tries_many_names_waits_and_its_network_with_it(wire: Wire) -> None:
    wire.post("/v1/users", {"username": "bob", "password": PASSWORD})

    tried = [
        login(wire, f"name-{number}", "x", f"2001:db8:0:1::{number + 1:x}")
        for number in range(ADDRESS_FREE)
    ]

    assert {one.status for one in tried} == {401}
    assert login(wire, "bob", address="2001:db8:0:1:ffff::1").status == 429
    assert login(wire, "bob", address="2001:db8:0:2::1").status == 200
