"""The route table: what a route says of itself, and finding it in constant time.

One row feeds dispatch, the OpenAPI page and the metrics. A path is looked up in a dictionary by
its fixed segments; the cost does not grow with the number of routes. Fixed segments beat named.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Literal

from feltd.api.request import Reply, Request
from feltd.errors import TABLE, Refused

#: A handler may also answer with a starlette Response (a stream, a page).
Handler = Callable[[Request], Awaitable[Reply | Any]]
#: `exempt`: outside admission · `keep_alive`: may use every permit · `ordinary`: 3/4 of them ·
#: `handler`: the handler calls request.admit() when it has seen what the body asks.
AdmissionClass = Literal["exempt", "keep_alive", "ordinary", "handler"]
#: `none`: no key needed, the door is not asked · `any`: any valid key · `scope`: the route's scope
#: · `worker`: a worker key, for its own worker.
Auth = Literal["none", "any", "scope", "worker"]

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation of the wire. `operation` is the verb, `tag` the noun.

    `path` holds `{name}` for a named segment; `also` are further paths of the same operation.
    `invalid_code` is what a body that does not fit is refused with. `example` is a body that
    works, `responses` describes statuses beside the common ones.
    """

    method: str
    path: str
    operation: str
    tag: str
    handler: Handler
    summary: str
    scope: str | None = None
    auth: Auth = "scope"
    admission: AdmissionClass = "ordinary"
    body: Any = None
    query: Any = None
    answer: Any = None
    status: int = 200
    invalid_code: str = "REQUEST_INVALID"
    example: Any = None
    responses: Mapping[int, str] = field(default_factory=dict)
    #: Bodies of refusals that are no problem documents.
    plain: Mapping[int, Any] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    #: Further media types the success may have, by Accept.
    media: tuple[str, ...] = ()
    #: The largest body, bytes; None is the daemon's own limit.
    body_bytes_max: int | None = None
    #: A page of the console: forms in, HTML out, refusals included; no part of the API's own page.
    page: bool = False
    #: What serves it as a WebSocket; `handler` then answers who comes without an upgrade.
    socket: Any = None

    @property
    def keep_alive(self) -> bool:
        """Whether it keeps leases alive."""
        return self.admission == "keep_alive"


class _Shape:
    """The paths of one length whose named segments stand at the same places."""

    __slots__ = ("fixed", "paths")

    def __init__(self, places: tuple[int, ...]) -> None:
        self.fixed: Callable[[list[str]], Any] = itemgetter(*places)
        #: fixed segments -> method -> (route, ((name, place), …))
        self.paths: dict[Any, dict[str, tuple[Route, tuple[tuple[str, int], ...]]]] = {}


class Routes:
    """The table of a daemon. Two routes that answer the same call cannot be put into it."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        #: Pages made from the table, by name, each made when first asked for.
        self.pages: dict[str, bytes] = {}
        self._static: dict[str, dict[str, Route]] = {}
        self._shapes: dict[int, dict[tuple[int, ...], _Shape]] = {}
        for route in self.routes:
            _check(route)
            for path in (route.path, *route.also):
                self._add(route, path)
        for length, shapes in self._shapes.items():
            # Most fixed segments first: /v1/workloads/batch wins over /v1/workloads/{id}.
            order = sorted(shapes, key=lambda places: (-len(places), places))
            self._shapes[length] = {places: shapes[places] for places in order}

    def find(
        self, method: str, path: str, segments: list[str] | None = None
    ) -> tuple[Route, dict[str, str]]:
        """The route of a call and its named segments. HEAD finds the GET route.

        `segments` are those of the path, where one of them may hold a slash of its own (sent as
        %2F). Refuses ROUTE_NOT_FOUND, or METHOD_NOT_ALLOWED with the methods of the path in Allow.
        """
        wanted = "GET" if method == "HEAD" else method
        methods = self._static.get(path) if _parts_at_each_slash(segments) else None
        if methods is not None and (route := methods.get(wanted)) is not None:
            return route, {}
        segments = segments or path.split("/")
        for shape in self._shapes.get(len(segments), {}).values():
            found = shape.paths.get(shape.fixed(segments), {}).get(wanted)
            if found is not None:
                named = {name: segments[place] for name, place in found[1]}
                if all(named.values()):
                    return found[0], named
        if allowed := self.methods(path, segments):
            raise Refused(
                "METHOD_NOT_ALLOWED",
                f"this path takes {', '.join(allowed)}",
                allow=", ".join(allowed),
            )
        raise Refused("ROUTE_NOT_FOUND", "there is no such path")

    def methods(self, path: str, segments: list[str] | None = None) -> tuple[str, ...]:
        """The methods a path takes, in a fixed order; none for a path that is not."""
        whole = _parts_at_each_slash(segments)
        found: set[str] = set(self._static.get(path, ()) if whole else ())
        segments = segments or path.split("/")
        for shape in self._shapes.get(len(segments), {}).values():
            if all(segments[1:]):
                found |= set(shape.paths.get(shape.fixed(segments), ()))
        if not found:
            return ()
        if "GET" in found:
            found.add("HEAD")
        return (*(m for m in ("GET", "HEAD", *METHODS[1:]) if m in found), "OPTIONS")

    def _add(self, route: Route, path: str) -> None:
        segments = path.split("/")
        places = tuple(i for i, part in enumerate(segments) if not part.startswith("{"))
        if len(places) == len(segments):
            taken = self._static.setdefault(path, {}).setdefault(route.method, route)
        else:
            names = tuple((part[1:-1], i) for i, part in enumerate(segments) if i not in places)
            shapes = self._shapes.setdefault(len(segments), {})
            shape = shapes.setdefault(places, _Shape(places))
            methods = shape.paths.setdefault(shape.fixed(segments), {})
            taken, _ = methods.setdefault(route.method, (route, names))
        if taken is not route:
            raise ValueError(f"two routes for {route.method} {path}")


def _parts_at_each_slash(segments: list[str] | None) -> bool:
    return segments is None or not any("/" in segment for segment in segments)


def _check(route: Route) -> None:
    if route.method not in METHODS:
        raise ValueError(f"{route.operation}: {route.method} is no method of a route")
    if route.invalid_code not in TABLE:
        raise ValueError(f"{route.operation}: {route.invalid_code} is not in the table of codes")
    # With auth `any` a scope is what the rule asks of everybody but the worker concerned.
    if route.auth == "scope" and route.scope is None:
        raise ValueError(f"{route.operation}: auth 'scope' needs a scope")
    if route.auth in ("none", "worker") and route.scope is not None:
        raise ValueError(f"{route.operation}: auth {route.auth!r} asks for no scope")
    if not all(path.startswith("/") for path in (route.path, *route.also)):
        raise ValueError(f"{route.operation}: a path begins with /")
