"""The console's files: the very ones that were looked at, small, kept by browsers for good."""

import gzip
import hashlib
from importlib.resources import files

from feltd.console import static
from tests.console.test_frame import call
from tests.console.town import Town

#: As their authors published them: htmx.org 4.0.1 and uplot 1.6.32, from the npm registry.
VENDORED = {
    "htmx.min.js": "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
    "hx-sse.min.js": "18ef2761356ec1fe0bb6d92612315b37517a7c1e9856b661c5ae81fef239d103",
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
VENDORED_GZIP_BYTES_MAX = 40_000
#: Of the console itself, styles and script together.
OWN_GZIP_BYTES_MAX = 12_000


def read(name: str) -> bytes:
    return files("feltd.console").joinpath("static", name).read_bytes()


def test_what_came_from_others_is_what_they_published_with_their_licences() -> None:
    assert {name: hashlib.sha256(read(name)).hexdigest() for name in VENDORED} == VENDORED
    assert b"Zero-Clause BSD" in read("htmx.LICENSE.txt")
    assert b"MIT" in read("uPlot.LICENSE.txt")


def test_a_page_costs_little() -> None:
    def packed(names: set[str]) -> int:
        return sum(len(gzip.compress(read(name), 9)) for name in names)

    own = {name for name in static.stored() if name.endswith((".js", ".css"))} - VENDORED.keys()
    assert packed(set(VENDORED)) < VENDORED_GZIP_BYTES_MAX
    assert packed(own) < OWN_GZIP_BYTES_MAX


def test_a_file_is_kept_for_good_under_its_digest_and_needs_no_key(town: Town) -> None:
    address = static.address("console.css")
    kept = call(town, "GET", address)
    asked_anew = call(town, "GET", "/console/static/console.css?v=old")

    assert kept.status == 200
    assert "immutable" in kept.headers["cache-control"]
    assert kept.headers["content-type"] == "text/css; charset=utf-8"
    assert asked_anew.headers["cache-control"] == "no-cache"
    again = call(town, "GET", address, **{"If-None-Match": kept.headers["etag"]})
    assert (again.status, again.body) == (304, "")


def test_a_file_travels_packed(town: Town) -> None:
    whole = call(town, "HEAD", static.address("htmx.min.js"))
    packed = call(town, "HEAD", static.address("htmx.min.js"), **{"Accept-Encoding": "gzip, br"})

    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) * 2 < int(whole.headers["content-length"])


def test_what_is_no_file_is_not_found(town: Town) -> None:
    for name in ("none.js", "..%2Ftemplates%2Fbase.html", "%2e%2e", "htmx.min.js%00"):
        assert call(town, "GET", f"/console/static/{name}").status in (400, 404)
