"""The daemon's own reference pages: what a code means, what can be called, and a worker to take."""

from functools import cache
from importlib.resources import files
from typing import Any, Literal

import msgspec

from feltd.api import openapi, problems, wire
from feltd.api.request import Reply, Request, reply, text_reply
from feltd.api.routes import Route
from feltd.worker import alone


class OpenapiQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`openapi` is the version of the format."""

    openapi: Literal["3.1", "3.0"] = "3.1"


class ErrorPage(msgspec.Struct, frozen=True):
    """What one code means, why it is met, and what to do next."""

    code: str
    status: int
    meaning: str
    cause: str
    next: str
    next_step: str
    example: dict[str, Any]


async def explain_error(request: Request) -> Reply:
    """GET /errors/{code}. Refuses ROUTE_NOT_FOUND for a code that is none."""
    return reply(200, problems.explanation(request.path_params["code"]))


async def describe_api(request: Request) -> Reply:
    """GET /v1/openapi.json, in 3.1 or 3.0; made once and kept."""
    version = request.query(OpenapiQuery).openapi
    table = request.scope["app"].table
    page = table.pages.get(version)
    if page is None:
        page = table.pages[version] = wire.encode(openapi.document(table.routes, version))
    return text_reply(200, page, "application/json")


async def worker_client(request: Request) -> Reply:
    """GET /client/worker.py: the file as it is installed here, byte for byte."""
    return text_reply(200, _alone(), "text/x-python; charset=utf-8")


@cache
def _alone() -> bytes:
    package, _, name = alone.__name__.rpartition(".")
    return files(package).joinpath(f"{name}.py").read_bytes()


ROUTES = (
    Route(
        method="GET",
        path="/errors/{code}",
        operation="explain_error",
        tag="reference",
        handler=explain_error,
        summary="What an error code means and what to do next",
        auth="none",
        admission="exempt",
        answer=ErrorPage,
    ),
    Route(
        method="GET",
        path="/v1/openapi.json",
        operation="describe_api",
        tag="reference",
        handler=describe_api,
        summary="This API as OpenAPI",
        auth="none",
        admission="exempt",
        query=OpenapiQuery,
        answer=dict[str, Any],
    ),
    Route(
        method="GET",
        path="/client/worker.py",
        operation="worker_client",
        tag="reference",
        handler=worker_client,
        summary="A worker in one file of Python, to be taken and run",
        auth="none",
        admission="exempt",
    ),
)
