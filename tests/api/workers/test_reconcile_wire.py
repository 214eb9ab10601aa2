"""A reconciliation over HTTP: bounded, and exact all the same."""

import json
from typing import Any

from tests.daemon.running import Daemon, Edge, Mesh, create

MIB_4 = 4 * 1024 * 1024
KIB_256 = 256 * 1024


def test_claims_beyond_four_mebibytes_are_told_without_what_is_large(
    daemon: Daemon, crew: Mesh
) -> None:
    edge = Edge(daemon, "laden", crew.registrar_key, capacity={"concurrency": 24})
    edge.beat()
    given = "x" * (KIB_256 - 2)
    jobs = [create(daemon, crew, f"laden-{n}", input=given) for n in range(24)]
    held: list[dict[str, Any]] = []
    while len(held) < len(jobs):
        held += edge.pull(max=24, lease_ms=600_000)
    told = {
        "worker_id": edge.id,
        "worker_version": "1",
        "capability_version": edge.capability_version,
        "known_claims": [claim["claim_id"] for claim in held[:-1]],
    }

    answer = edge.call("reconcile", told)

    claims = answer.body["authoritative_claims"]
    assert [one["claim_id"] for one in claims] == [claim["claim_id"] for claim in held]
    assert len(json.dumps(answer.body)) <= MIB_4
    # The one it did not know is whole, whatever its place.
    assert claims[-1]["input"] == given
    short = next(one for one in claims if one.get("truncated"))
    assert "input" not in short
    shown = daemon.call("GET", f"/v1/workloads/{short['workload_id']}", key=edge.key)
    assert (shown.status, shown.body["input"]) == (200, given)
    assert edge.fenced("release", short).status == 200


def test_the_description_tells_of_truncated_claims(daemon: Daemon) -> None:
    told = daemon.get("/v1/openapi.json")

    answer = told["paths"]["/v1/workers/{id}/reconcile"]["post"]["responses"]["200"]
    claim = told["components"]["schemas"]["StandingClaim"]
    assert "truncated" in answer["description"]
    assert "truncated" in claim["description"]
    assert "input" not in claim["required"]
    assert "fencing_token" in claim["required"]
