"""Random meshes with real rows: what is decided there is what the oracle says of its inputs."""

import random
from typing import Any

import pytest
from msgspec import convert
from msgspec.json import decode

from feltd.errors import Refused
from feltd.mesh import decisions, directed, holds, pools, quarantine
from feltd.model.claim import ClaimById
from feltd.model.hold import NewHold
from feltd.model.placement import DecisionQuery
from feltd.model.pool import NewPool
from feltd.model.worker import Quarantining
from tests.mesh.placement import scenes
from tests.mesh.world import Mesh

CLAIMS = 25
REFUSALS = ("MESH_NO_ELIGIBLE_WORKER", "MESH_PLACEMENT_DENIED", "WORKLOAD_CAPABILITY_DENIED")


def build(mesh: Mesh, rng: random.Random) -> list[str]:
    workers = []
    for number in range(rng.randint(1, 6)):
        workers.append(
            mesh.worker(
                f"w{number}",
                capacity={"concurrency": rng.choice((1, 2, 4))},
                capabilities=list(scenes.some(rng, scenes.CAPABILITIES, 0.8)),
                workload_kinds=list(scenes.some(rng, scenes.KINDS, 0.5))
                if rng.random() < 0.3
                else [],
                labels=plain(scenes.labels(rng, 0.8)),
                resource_profile={"cpu_millis": rng.choice((500, 2_000))},
            )
        )
    listed = tuple(one for one in workers if rng.random() < 0.6)
    body = NewPool(
        pool_id="east", name="E", worker_ids=listed, max_concurrency=rng.choice((2, None))
    )
    mesh.ask(pools.create, pools.OfTenant("acme", body))
    if rng.random() < 0.3:
        asked = convert({"reason": "odd results"}, Quarantining)
        mesh.ask(quarantine.quarantine, asked, rng.choice(workers))
    if rng.random() < 0.3:
        hold = NewHold(scope="definition", value="render", reason="a bug")
        mesh.ask(holds.place, holds.Placing("acme", hold))
    return workers


def plain(labels: dict[str, str]) -> dict[str, str]:
    return {key: text for key, text in labels.items() if not key.startswith("trusted/")}


def work(rng: random.Random) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "definition_id": rng.choice(("extract", "render")),
        "definition_revision": rng.choice(("1", "2")),
        "capability_snapshot": list(scenes.some(rng, scenes.CAPABILITIES, 0.15)),
        "placement": {
            "required_labels": plain(scenes.labels(rng, 0.1)),
            "anti_affinity": plain(scenes.labels(rng, 0.1)),
            "affinity": plain(scenes.labels(rng, 0.5)),
        },
    }
    if rng.random() < 0.3:
        asked["placement"]["pool_id"] = "east"
    if rng.random() < 0.2:
        asked["resources"] = {"cpu_millis": 1_000}
    if rng.random() < 0.2:
        asked["concurrency"] = {"key": "printer", "limit": 2}
    if rng.random() < 0.2:
        asked["rate"] = {"key": "mail", "limit": 2, "period_ms": 5_000}
    return asked


@pytest.mark.parametrize("seed", range(20))
def test_every_decision_about_real_rows_is_the_oracles_and_agrees_ever_after(
    mesh: Mesh, seed: int
) -> None:
    rng = random.Random(seed)
    workers = build(mesh, rng)
    for _ in range(CLAIMS):
        job = mesh.workload(**work(rng))
        named = rng.choice(workers) if rng.random() < 0.3 else None
        try:
            held, _ = mesh.ask(directed.claim, ClaimById(worker_id=named), job)
            if rng.random() < 0.4:
                mesh.say("release", held)
        except Refused as refused:
            if refused.code not in REFUSALS:
                raise
        mesh.later(ms=rng.choice((0, 0, 500, 3_000)))

    found = mesh.ask(decisions.page, DecisionQuery(limit=500)).items
    assert len(found) == CLAIMS
    for one in found:
        whole = mesh.ask(decisions.get, None, one.decision_id)
        assert whole.agrees is True
        assert whole.inputs is not None
        verdicts, best = scenes.oracle(decode(bytes(whole.inputs)))
        assert one.selected_worker == best
        assert {one.worker_id: list(one.rules) for one in one.refused} == {
            worker_id: rules for worker_id, rules in verdicts.items() if rules
        }
