"""Clients whose JSON writes every number as a float, and clients that name one bad key of many."""

import json
from typing import Any

import pytest

from feltd.api import wire
from feltd.errors import Refused
from feltd.model.claim import Fail, Log, Renew
from feltd.model.exchange import Exchange
from feltd.model.grant import IssueGrant
from feltd.model.worker import Heartbeat, Reconciliation, Registration
from feltd.model.workload import NewWorkload

FENCE = {"claim_id": "claim_5", "worker_id": "worker_1", "fencing_token": 5}
ITEM = {**FENCE, "workload_id": "workload_1"}
PROGRESS = {"done": 1, "total": 2}
BEAT = {
    "worker_id": "worker_1",
    "version": "1",
    "capability_version": 1,
    "capacity": {"concurrency": 4, "active": 0},
    "health": "HEALTHY",
    "timestamp_at_ms": 1_790_000_000_000,
    "lease_ms": 30_000,
    "progress": {"claim_5": PROGRESS, "claim_6": PROGRESS},
    "reported": {"rss_bytes": 1, "disk_free_bytes": 1},
}
WORKLOAD = {"definition_id": "extract", "idempotency_key": "k"}
BODIES = [
    (Renew, {**FENCE, "lease_ms": 30_000, "progress": PROGRESS}),
    (Fail, {**FENCE, "kind": "transient", "message": "", "retry_after_ms": 5}),
    (Log, {**FENCE, "lines": ["a", {"text": "b", "at_ms": 5}]}),
    (Heartbeat, BEAT),
    (
        Reconciliation,
        {"worker_id": "w", "worker_version": "1", "capability_version": 1, "timestamp_at_ms": 5},
    ),
    (
        Registration,
        {
            "name": "w",
            "runtime": "edge",
            "version": "1",
            "capacity": {"concurrency": 4},
            "resource_profile": {"cpu_millis": 1, "memory_bytes": 1, "gpu_count": 1},
            "heartbeat_interval_ms": 1_000,
            "heartbeat_timeout_ms": 2_000,
            "registered_at_ms": 5,
        },
    ),
    (NewWorkload, {**WORKLOAD, "not_before_at_ms": 5, "resources": {"cpu_millis": 1}}),
    (
        IssueGrant,
        {
            "subject": {"kind": "service", "id": "s"},
            "tenant_id": "t",
            "application_id": "a",
            "capabilities": [],
            "constraints": {"max_concurrency": 1, "runtime_policy": {"max_cpu_millis": 1}},
            "expires_at_ms": 5,
        },
    ),
    (
        Exchange,
        {
            "heartbeat": BEAT,
            "start": [ITEM],
            "renew": [{**ITEM, "lease_ms": 1_000, "progress": PROGRESS}],
            "checkpoint": [{**ITEM, "data": None, "lease_ms": 1_000, "progress": PROGRESS}],
            "complete": [{**ITEM, "resource_usage": {"cpu": 1}, "contract_version": 1}],
            "fail": [{**ITEM, "kind": "transient", "message": "", "retry_after_ms": 5}],
            "release": [ITEM],
            "log": [{**ITEM, "lines": [{"text": "b", "at_ms": 5}]}],
            "claim": {"max": 1, "lease_ms": 1_000, "wait_ms": 0},
        },
    ),
]


def floats(value: Any) -> Any:
    """The same JSON from a client that knows no integers."""
    if isinstance(value, dict):
        return {key: floats(member) for key, member in value.items()}
    if isinstance(value, list):
        return [floats(member) for member in value]
    return float(value) if type(value) is int else value


@pytest.mark.parametrize(("shape", "body"), BODIES, ids=lambda one: getattr(one, "__name__", ""))
def test_a_client_that_knows_only_floats_is_understood(shape: type, body: Any) -> None:
    told = wire.decode(json.dumps(floats(body)).encode(), shape)

    assert told == wire.decode(json.dumps(body).encode(), shape)


def test_an_optional_integer_that_is_no_whole_number_does_not_fit() -> None:
    assert pointer(Renew, {**FENCE, "lease_ms": 1_000.5}) == "/lease_ms"


@pytest.mark.parametrize(
    ("shape", "body", "place"),
    [
        (NewWorkload, {**WORKLOAD, "labels": {"a": "b", "no space": "x"}}, "/labels/no space"),
        (NewWorkload, {**WORKLOAD, "labels": {"a": "b", "c/d": 5, "e": "f"}}, "/labels/c~1d"),
        (Heartbeat, {**BEAT, "progress": {"c1": PROGRESS, "c2": {}}}, "/progress/c2/done"),
        (
            Heartbeat,
            {**BEAT, "progress": {"c1": PROGRESS, "c2": {**PROGRESS, "eta": 1}}},
            "/progress/c2/eta",
        ),
        (
            Exchange,
            {"complete": [ITEM, {**ITEM, "resource_usage": {"cpu": 1, "gpu": -1}}]},
            "/complete/1/resource_usage/gpu",
        ),
    ],
)
def test_the_one_bad_key_of_a_dictionary_is_named(shape: type, body: Any, place: str) -> None:
    assert pointer(shape, body) == place


def pointer(shape: type, body: Any) -> str:
    with pytest.raises(Refused) as refused:
        wire.decode(json.dumps(body).encode(), shape)
    return str(refused.value.facts["errors"][0]["pointer"])
