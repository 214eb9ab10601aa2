"""The console's own files: scripts, styles, and the licences of what came from others.

They are read once and served under a digest, so that a browser keeps them for good and never runs
an old one. No key is needed: there is nothing in them but what everybody can install.
"""

import gzip
import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from msgspec import Struct

from feltd.api.request import Reply, Request
from feltd.api.routes import Route
from feltd.errors import Refused

PATH = "/console/static/"
DIGEST_CHARS = 12
#: A year, in seconds.
KEEP = b"public, max-age=31536000, immutable"

KINDS = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
}


class StaticQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`v` is the digest a page knows the file by."""

    v: str = ""


class File(NamedTuple):
    """One file: its bytes, the same packed, its media type and digest."""

    body: bytes
    packed: bytes
    media_type: str
    digest: str


@cache
def stored() -> dict[str, File]:
    """Every file by its name."""
    found = {}
    for entry in files("feltd.console").joinpath("static").iterdir():
        ending = entry.name[entry.name.rfind(".") :]
        if ending in KINDS:
            body = entry.read_bytes()
            digest = hashlib.sha256(body).hexdigest()[:DIGEST_CHARS]
            found[entry.name] = File(body, gzip.compress(body, 9, mtime=0), KINDS[ending], digest)
    return found


def address(name: str) -> str:
    """Where a page finds a file, by its content."""
    return f"{PATH}{name}?v={stored()[name].digest}"


async def static_file(request: Request) -> Reply:
    """GET /console/static/{name}. Refuses ROUTE_NOT_FOUND for a file that is none."""
    found = stored().get(request.path_params["name"])
    if found is None:
        raise Refused("ROUTE_NOT_FOUND", "the console has no such file")
    named = request.query(StaticQuery).v
    etag = f'"{found.digest}"'.encode()
    headers = [
        (b"etag", etag),
        (b"cache-control", KEEP if named == found.digest else b"no-cache"),
        (b"x-content-type-options", b"nosniff"),
        (b"vary", b"Accept-Encoding"),
    ]
    if (request.header(b"if-none-match") or "").encode("latin-1") == etag:
        return Reply(304, b"", headers)
    body = found.body
    if "gzip" in (request.header(b"accept-encoding") or ""):
        body = found.packed
        headers.append((b"content-encoding", b"gzip"))
    headers.append((b"content-type", found.media_type.encode()))
    headers.append((b"content-length", b"%d" % len(body)))
    return Reply(200, body, headers)


ROUTES = (
    Route(
        method="GET",
        path=PATH + "{name}",
        operation="console_file",
        tag="console",
        handler=static_file,
        summary="A script or style of the console",
        auth="none",
        admission="exempt",
        query=StaticQuery,
        page=True,
    ),
)
