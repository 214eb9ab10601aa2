"""The OpenAPI page is held to: what it describes is sent, what comes back is what it says.

Bodies and queries are made from the page alone, right ones and wrong ones; nothing knows a noun.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from feltd.api import openapi
from feltd.api.app import routes
from feltd.api.routes import Route
from feltd.config import Config
from tests.api.identity.conftest import Wire
from tests.api.identity.test_matrix_wire import OTHER_NAMES
from tests.attack.hostile.test_bodies import Hostile, name
from tests.attack.hostile.test_bodies import wire as wire

TABLE = routes(Config())
#: Each route with what fits; and with what does not, where anything is asked for.
DESCRIBED = [(route, GenerationMode.POSITIVE) for route in TABLE]
DESCRIBED += [
    (route, GenerationMode.NEGATIVE)
    for route in TABLE
    if route.auth != "none" or route.body is not None or route.query is not None
]
EXAMPLES = 6


@pytest.fixture(scope="module")
def hostile(wire: Wire) -> Iterator[Hostile]:
    with closing(Hostile(wire)) as scene:
        yield scene


@pytest.fixture(scope="module")
def page(hostile: Hostile) -> Any:
    return schemathesis.openapi.from_dict(openapi.document(TABLE, "3.1"))


@pytest.mark.parametrize(
    ("route", "mode"), DESCRIBED, ids=[f"{name(route)} {mode.value}" for route, mode in DESCRIBED]
)
def test_a_route_answers_as_it_is_described(
    hostile: Hostile, page: Any, route: Route, mode: GenerationMode
) -> None:
    operation = page[route.path][route.method]
    key = hostile.doer["worker_key"] if route.auth == "worker" else hostile.boss

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def answered(case: Any) -> None:
        # Nothing here waits: what is asked to is asked at once.
        claim = case.body.get("claim") if isinstance(case.body, dict) else None
        for asked in (case.query, case.body, claim):
            if isinstance(asked, dict):
                asked.pop("wait_ms", None)
        if "{id}" in route.path:
            case.path_parameters["id"] = hostile.id_for(route)
        if "{collection}" in route.path:
            case.path_parameters["collection"] = OTHER_NAMES["{collection}"]
        headers = {"Authorization": f"Bearer {key}"}
        if route.auth != "worker":
            headers["X-Feltd-Tenant"] = "acme"
        answer = case.call(base_url=hostile.wire.daemon.url, headers=headers)
        case.validate_response(
            answer,
            checks=[not_a_server_error, response_schema_conformance, status_code_conformance],
        )

    answered()
