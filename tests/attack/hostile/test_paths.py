"""Every route is asked for odd names, and every list for what it has no page of."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec.inspect as inspect
import pytest

from feltd.api.app import routes
from feltd.api.routes import Route
from feltd.config import Config
from feltd.errors import NEXTS, TABLE
from tests.api.identity.conftest import Wire
from tests.api.identity.test_matrix_wire import Scene
from tests.attack.hostile import shapes
from tests.attack.hostile.test_bodies import name
from tests.attack.hostile.test_bodies import wire as wire

NAMED = [route for route in routes(Config()) if "{" in route.path]
ASKED = [route for route in routes(Config()) if route.query is not None and route.auth != "none"]
#: As they stand in a URL.
NAMES = (
    "%00", "%0A", "%0d%0aX-Evil:%201", "a%2Fb", "%2e%2e", "%2e%2e%2f%2e%2e", "..%5c", "%ff%fe",
    "%c0%ae", "%ed%a0%80", "%25", "%", "%zz", "%F0%9F%92%A9", "'%20OR%201=1--", "%22", "*", "_",
    "-1", "x" * 201, "x" * 4_000, "%20", "group:acme%2Fgroup-of-acme", "GROUP-OF-ACME",
)  # fmt: skip
#: Which of them anybody may give to what is made by being named first.
GOOD = {"_", "-1", "GROUP-OF-ACME"}
MADE = ("/v1/collections/", "/v1/consumers/")
CURSORS = (
    "",
    "x",
    "AAAA",
    "=",
    "-_-_",
    "A" * 3_000,
    "bm90IG91cnMgYXQgYWxsLCByZWFsbHk",
)


class Asking(Scene):
    """A key of every tenant, and what it is answered."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        address = urlsplit(wire.daemon.url)
        self._line = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
        self.boss = str(wire.key(scopes=["*"], tenants=["*"])["secret"])

    def close(self) -> None:
        self._line.close()

    def ask(self, method: str, path: str, body: Any = None, key: str = "", **more: str) -> Any:
        """The status and the answer."""
        sent = {"Authorization": f"Bearer {key or self.boss}"} | more
        raw = None
        if body is not None:
            raw, sent["Content-Type"] = json.dumps(body).encode(), "application/json"
        self._line.request(method, path, raw, sent)
        got = self._line.getresponse()
        text = got.read()
        kind = got.headers.get("Content-Type", "")
        told = json.loads(text) if "json" in kind else {}
        assert got.status < 500, (method, path[:200], told)
        if got.status >= 400:
            assert TABLE[told["code"]].status == got.status
            assert told["next"] in NEXTS
            assert len(text) < 8_000
        return got.status, told


@pytest.fixture(scope="module")
def asking(wire: Wire) -> Iterator[Asking]:
    with closing(Asking(wire)) as scene:
        yield scene


@pytest.mark.parametrize("route", NAMED, ids=name)
def test_an_odd_name_is_the_name_of_nothing(asking: Asking, route: Route) -> None:
    start, _, rest = route.path.partition("{")
    end = asking.path(replace(route, path=rest.partition("}")[2]), "record-of-acme")
    key = asking.worker["worker_key"] if route.auth == "worker" else asking.boss
    before = asking.rows()
    for odd in NAMES:
        if route.path.startswith(MADE) and odd in GOOD:
            continue
        more = {} if route.auth == "worker" else {"X-Feltd-Tenant": "acme"}
        status, told = asking.ask(route.method, start + odd + end, asking.body(route), key, **more)
        if route.operation == "fence" and status == 200:
            continue  # whoever writes somewhere names the place as he likes
        # A claim that never was is one that does not hold.
        stale = told.get("code") == "MESH_STALE_FENCE"
        assert stale or status in (400, 403, 404, 405, 413, 422), (odd[:40], told)
    if route.operation != "fence":
        assert asking.rows() == before


@pytest.mark.parametrize("route", ASKED, ids=name)
def test_what_is_beyond_a_list_s_bounds_is_refused(asking: Asking, route: Route) -> None:
    path, body = asking.path(route), asking.body(route)

    def told(query: str, **more: str) -> tuple[int, Any]:
        return asking.ask(route.method, f"{path}?{query}", body, **more)  # type: ignore[no-any-return]

    for (member, *_), value, fits in shapes.edges(inspect.type_info(route.query)):
        if member == "wait_ms" and fits and value:
            continue
        status, answer = told(f"{member}={quote(str(value))}")
        if not fits:
            assert status == 422
            assert answer["errors"][0]["pointer"].startswith(f"/{member}"), answer
    for field in inspect.type_info(route.query).fields:  # type: ignore[attr-defined]
        for odd in ("", "%00", "%ff", "%", "-1", "1.5", "1e3", "0x10", "9" * 30, "x" * 5_000, "[]"):
            told(f"{field.encode_name}={odd}")
        for twice in ("1", "acme"):
            told(f"{field.encode_name}={twice}&{field.encode_name}=2")
    assert told("no_such_thing=1")[0] == 422
    assert told("&".join(f"p{n}=1" for n in range(200)))[0] in (413, 422)
    assert told("tenant_id=acme", **{"X-Feltd-Tenant": "other"})[0] in (400, 422)
    assert told("token=x")[0] == 400


#: What is keyed by tenant is listed of one tenant.
KEYED = ("/v1/collections",)


def whose(route: Route) -> dict[str, str]:
    """The tenant whose list it is, where it is of one."""
    return {"X-Feltd-Tenant": "acme"} if route.path.startswith(KEYED) else {}


LISTS = [route for route in ASKED if "cursor" in route.query.__struct_fields__]


@pytest.mark.parametrize("route", LISTS, ids=name)
def test_a_cursor_is_good_for_its_own_list_and_tenant_alone(asking: Asking, route: Route) -> None:
    """BC-097."""
    for cursor in CURSORS:
        status, told = asking.ask("GET", f"{asking.path(route)}?cursor={cursor}", **whose(route))
        assert (status, told.get("code")) == (400, "REQUEST_MALFORMED"), (cursor[:40], told)
    own = {}
    for other in LISTS:
        status, page = asking.ask("GET", f"{asking.path(other)}?limit=1", **whose(other))
        assert status == 200
        if page["next_cursor"]:
            own[other.path] = page["next_cursor"]
    assert {"/v1/keys", "/v1/grants", "/v1/workers", "/v1/workloads"} <= set(own)
    for path, cursor in own.items():
        asked = f"{asking.path(route)}?limit=1&cursor={cursor}"
        status, told = asking.ask("GET", asked, **whose(route))
        if path == route.path:
            assert status == 200
            status, told = asking.ask("GET", asked, key=asking.operator)
        assert (status, told["code"]) == (400, "REQUEST_MALFORMED"), path


def test_the_daemon_says_nothing_of_a_fault(asking: Asking) -> None:
    assert "Traceback" not in asking.wire.daemon.told()
    assert asking.wire.daemon.stop() == 0
    assert asking.wire.daemon.check().returncode == 0
