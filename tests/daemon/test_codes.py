"""A failing storage is told under the code of the noun it failed for."""

import pytest

from feltd.api.problems import of_noun
from feltd.errors import Refused


@pytest.mark.parametrize(
    ("noun", "code"),
    [
        ("worker", "MESH_STORAGE_FAILURE"),
        ("workload", "WORKLOAD_STORAGE_FAILURE"),
        ("claim", "WORKLOAD_STORAGE_FAILURE"),
        ("trigger", "TRIGGER_STORAGE_FAILURE"),
        ("key", "STORAGE_UNAVAILABLE"),
        ("health", "STORAGE_UNAVAILABLE"),
    ],
)
def test_a_failing_storage_takes_the_noun(noun: str, code: str) -> None:
    failed = Refused("STORAGE_UNAVAILABLE", "the database could not be read", committed=False)
    told = of_noun(failed, noun)
    assert (told.code, told.status, told.next) == (code, 503, "repeat")
    assert told.facts["committed"] is False


@pytest.mark.parametrize("code", ["STORAGE_FULL", "STORAGE_BUSY", "WORKLOAD_STALE_FENCE"])
def test_every_other_refusal_keeps_its_code(code: str) -> None:
    refused = Refused(code, "no")
    assert of_noun(refused, "workload") is refused
