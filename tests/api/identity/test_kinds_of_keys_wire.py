"""Every route with every kind of key that is not enough for it: refused, and nothing is changed.

The table of routes says who may call what; whoever adds a route is held to it by that alone.
"""

from typing import Any

import pytest

from feltd.api.app import routes
from feltd.api.routes import Route
from feltd.config import Config
from tests.api.identity.conftest import Wire
from tests.api.identity.test_matrix_wire import Scene

GUARDED = [route for route in routes(Config()) if route.auth != "none"]
SCOPES = sorted({route.scope for route in GUARDED if route.scope is not None})
#: What any key may ask: it is about the key itself, or shows the key's own alone.
OF_ITSELF = {"GET /v1/readiness", "GET /v1/auth/me"}
OWN_ALONE = {"GET /v1/workloads"}
#: A claim that is not the caller's is a claim it does not hold; work that is held is not to be had.
NOT_HELD = {"WORKLOAD_STALE_FENCE", "WORKLOAD_NOT_READY"}
#: Calls off somebody's own work with one scope, everybody's with another.
EITHER = {"cancel": ("workloads:create", "workloads:operate")}
EITHER["cancel_group"] = EITHER["cancel"]


class House(Scene):
    """Tenant acme, and keys of it that are each not enough for something."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        enrolled = wire.enrolled()
        self.colleague = self.ready(enrolled[1], "colleague")
        self.fence |= {"worker_id": self.colleague["worker"]["worker_id"]}
        self.bare = self.key_with(())
        self._without: dict[tuple[str, ...], str] = {}

    def key_with(self, scopes: tuple[str, ...]) -> str:
        """A key of tenant acme, of somebody who submitted nothing."""
        made = self.wire.key(scopes=list(scopes), tenants=["acme"], identity_id="passer-by")
        return str(made["secret"])

    def without(self, missing: tuple[str, ...]) -> str:
        """A key of acme with every scope but these."""
        if missing not in self._without:
            scopes = tuple(scope for scope in SCOPES if scope not in missing)
            self._without[missing] = self.key_with(scopes)
        return self._without[missing]

    def call(self, route: Route, key: str) -> Any:
        """A call that fits, on acme's own objects."""
        before = self.rows()
        answer = self.wire.call(route.method, self.path(route), self.body(route), key=key)
        assert self.rows() == before
        return answer


@pytest.fixture(scope="module")
def house(wire: Wire) -> House:
    return House(wire)


def name(route: Route) -> str:
    return f"{route.method} {route.path}"


def needed(route: Route) -> tuple[str, ...]:
    """Scopes of which the route needs at least one."""
    return EITHER.get(route.operation) or ((route.scope,) if route.scope else ())


@pytest.mark.parametrize("route", GUARDED, ids=name)
def test_without_a_key_nobody_gets_in(house: House, route: Route) -> None:
    made_up = "flt_sk_" + "0" * 61
    for key in ("", made_up):
        answer = house.call(route, key)
        assert (answer.status, answer.body["code"]) == (401, "UNAUTHENTICATED")


@pytest.mark.parametrize("route", GUARDED, ids=name)
def test_a_key_without_the_scope_is_refused(house: House, route: Route) -> None:
    for key in (house.bare, house.without(needed(route))):
        answer = house.call(route, key)
        if name(route) in OF_ITSELF:
            assert answer.status == 200
        else:
            assert (answer.status, answer.body["code"]) == (403, "FORBIDDEN"), answer


@pytest.mark.parametrize("route", GUARDED, ids=name)
def test_a_colleague_s_worker_key_is_good_for_no_one_else_s_work(
    house: House, route: Route
) -> None:
    answer = house.call(route, house.colleague["worker_key"])

    if name(route) in OF_ITSELF:
        assert answer.status == 200
    elif name(route) in OWN_ALONE:
        assert answer.status in (200, 403)
        assert not answer.body.get("items")
    else:
        assert answer.status in (403, 404) or answer.body["code"] in NOT_HELD, answer
