"""Every route is sent what its body cannot hold: refused in the law's words, nothing half done.

The daemon is a real one and the objects are there: what is wrong is the body alone.
"""

import http.client
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from copy import deepcopy
from typing import Any
from urllib.parse import urlsplit

import msgspec
import msgspec.inspect as inspect
import pytest

from feltd.api.app import routes
from feltd.api.routes import Route
from feltd.config import Config
from feltd.errors import NEXTS, TABLE
from tests.api.identity.conftest import Wire
from tests.api.identity.test_matrix_wire import Scene
from tests.attack.hostile import shapes
from tests.daemon.running import Daemon

WITH_BODY = [route for route in routes(Config()) if route.body is not None]
#: A wrong word that is a right one elsewhere: what it names is not there, or cannot be done.
BEYOND = {400, 413, 422}
#: What only a call makes; the keeper comes round meanwhile and ends this and that.
TABLES = (
    "workloads", "claims", "keys", "grants", "pools", "holds", "fences", "decisions",
    "workload_groups", "dependency_waits", "workers", "records", "changes", "consumers",
)  # fmt: skip
COUNTED = "SELECT " + ", ".join(f"(SELECT count(*) FROM {table})" for table in TABLES)  # noqa: S608


class Hostile(Scene):
    """An operator and a worker of acme who send anything."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        address = urlsplit(wire.daemon.url)
        self._line = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        made = self.wire.key(scopes=["*"], tenants=["*"])
        self.boss = str(made["secret"])
        self.doer = self.ready(wire.enrolled()[1], "doer")
        self.fence |= {"worker_id": self.doer["worker"]["worker_id"]}
        self._rows = sqlite3.connect(f"file:{wire.data}?mode=ro", uri=True)

    def close(self) -> None:
        self._line.close()
        self._rows.close()

    def body(self, route: Route) -> Any:
        """A body that fits and waits for nothing."""
        body = deepcopy(super().body(route))
        for asked in (body, (body or {}).get("claim")):
            if asked and "wait_ms" in asked:
                asked["wait_ms"] = 0
        return body

    def send(self, route: Route, body: bytes, media: str = "application/json") -> Any:
        """The status and the answer; whatever is refused has left nothing behind."""
        own = route.auth == "worker"
        doer = own and route.path.startswith("/v1/workers/")
        path = self.path(route, self.doer["worker"]["worker_id"] if doer else "")
        key = self.doer["worker_key"] if own else self.boss
        headers = {"Authorization": f"Bearer {key}", "Content-Type": media}
        if not own:
            headers["X-Feltd-Tenant"] = "acme"
        before = self.kept()
        self._line.request(route.method, path, body, headers)
        got = self._line.getresponse()
        text = got.read()
        told = json.loads(text) if text else {}
        assert got.status < 500, (body[:300], told)
        if got.status >= 400:
            assert TABLE[told["code"]].status == got.status
            assert told["next"] in NEXTS
            assert len(text) < 8_000, "it is told at length what was wrong"
            assert self.kept() == before, (body[:300], told)
        return got.status, told

    def kept(self) -> Any:
        """How much there is of everything."""
        return self._rows.execute(COUNTED).fetchone()


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """A daemon whose keeper seldom comes round."""
    daemon = Daemon(tmp_path_factory.mktemp("hostile") / "feltd.db", "--tick-ms", "60000")
    try:
        yield Wire(daemon.init().start())
    finally:
        daemon.close()


@pytest.fixture(scope="module")
def hostile(wire: Wire) -> Any:
    with closing(Hostile(wire)) as scene:
        yield scene


def name(route: Route) -> str:
    return f"{route.method} {route.path}"


def written(body: Any, kind: Any, place: shapes.Place, text: str) -> bytes:
    """The body with these letters of JSON at the place."""
    return (
        json.dumps(shapes.put(body, kind, place, "\ue000"))
        .replace('"\\ue000"', text)
        .encode(errors="surrogatepass")
    )


def written_well(body: bytes) -> bool:
    """Whether it is JSON."""
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


@pytest.mark.parametrize("route", WITH_BODY, ids=name)
def test_what_is_no_value_of_a_member_is_refused(hostile: Hostile, route: Route) -> None:
    kind, body = inspect.type_info(route.body), hostile.body(route)
    for number, (place, _) in enumerate(shapes.places(kind)):
        # A third of them at each place, each of them at a third of the places.
        for text in shapes.ODD[number % 3 :: 3]:
            hostile.send(route, written(body, kind, place, text))


@pytest.mark.parametrize("route", WITH_BODY, ids=name)
def test_one_beyond_each_bound_is_refused_and_the_bound_is_not(
    hostile: Hostile, route: Route
) -> None:
    """BC-082."""
    kind, body = inspect.type_info(route.body), hostile.body(route)
    for place, value, fits in shapes.edges(kind):
        if place[-1] == "wait_ms" and fits and value:
            continue  # it would be waited for
        whole = json.dumps(shapes.put(body, kind, place, value)).encode()
        status, told = hostile.send(route, whole)
        pointer = "".join(f"/{step}" for step in place)
        errors = told.get("errors", []) if status in BEYOND else []
        blamed = [one["pointer"] for one in errors if one["pointer"].startswith(pointer)]
        if not fits:
            assert status in BEYOND, (pointer, str(value)[:80], told)
            assert blamed, (pointer, str(value)[:80], told)


@pytest.mark.parametrize("route", routes(Config()), ids=name)
def test_what_is_no_body_is_refused(hostile: Hostile, route: Route) -> None:
    """BC-083."""
    if route.method == "GET" or route.auth == "none":
        return
    body = json.dumps(hostile.body(route) or {}).encode()
    twice = body[:-1] + (b"," if len(body) > 2 else b"") + b'"unknown":1,"unknown":2}'
    wrong = (b"{", b"[]", b"null", b'"x"', b"\xff", b"\xef\xbb\xbf{}", body + b"x", b"[" * 100_000,
             b"{}\0", b'{"a":"\xed\xa0\x80"}', twice)  # fmt: skip
    for sent in wrong:
        if route.body is Any and (sent == twice or (len(sent) < 10 and written_well(sent))):
            continue  # the body is a value of any kind
        status, told = hostile.send(route, sent)
        assert status in BEYOND, (sent[:40], told)
    for media in ("text/plain", "application/xml", "application/x-www-form-urlencoded", "x", ""):
        status, told = hostile.send(route, body, media)
        assert told.get("code") == "MEDIA_TYPE_UNSUPPORTED", (media, told)
    # Nothing at all is `{}`: it may be enough, or a member is missing.
    hostile.send(route, b"")


def test_the_daemon_is_as_well_as_before(hostile: Hostile) -> None:
    assert hostile.wire.get("/health")["status"] in ("healthy", "degraded")
    assert "Traceback" not in hostile.wire.daemon.told()
    hostile.wire.daemon.stop()
    checked = hostile.wire.daemon.check()
    assert checked.returncode == 0, checked.stdout
