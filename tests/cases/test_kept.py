"""What the keeper takes away is never what live work still needs."""

from typing import Any

from msgspec import Raw

from feltd.config import Config
from feltd.keeper import rules
from tests.mesh.world import Mesh

MONTH_MS = 30 * 86_400_000
LIMITS: dict[str, Any] = {
    "concurrency": {"key": "disk", "limit": 1},
    "rate": {"key": "api", "limit": 9, "period_ms": 1_000},
}


def round_of_everything(mesh: Mesh) -> None:
    """Each rule of the keeper until it finds nothing more."""
    for entry in rules(Config()):
        for _ in range(20):
            found = mesh.run(lambda tx, limit, now, op=entry.op: op(tx, limit, now), entry.limit)
            if not (found[0] if isinstance(found, tuple) else found):
                break


def test_nothing_that_live_work_refers_to_is_taken_away(mesh: Mesh) -> None:
    """BC-054: a thousand checkpoints, old attempts, a parent long done, keys that are held."""
    worker = mesh.worker()
    parent = mesh.workload(definition_id="parent")
    mesh.say("complete", mesh.claims(parent, by=worker, start=True), output={"read": "me"})
    long = mesh.workload(definition_id="long", retry_policy={"max_attempts": 99}, **LIMITS)
    child = mesh.workload(definition_id="child", dependencies=[parent, long])
    for attempt in range(10):
        held = mesh.claims(long, by=worker, start=True)
        for number in range(100):
            mesh.say("checkpoint", held, data=[attempt, number])
        mesh.say("release", held)
        mesh.later(2_000)
        round_of_everything(mesh)
    assert mesh.state(child) == "PENDING"

    mesh.later(MONTH_MS)
    for _ in range(3):
        round_of_everything(mesh)
        mesh.later(MONTH_MS)

    kept = mesh.row("SELECT output, state FROM workloads WHERE workload_id = :id", id=parent)
    assert (kept["state"], kept["output"]) == ("COMPLETED", '{"read":"me"}')
    counted = mesh.row("SELECT count(*) AS n FROM claims WHERE workload_id = :id", id=long)
    assert counted["n"] == 10
    again = mesh.worker("later")
    held = mesh.claims(long, by=again, start=True)
    assert held.checkpoint == Raw(b"[9,99]")
    assert mesh.row("SELECT active FROM concurrency_keys")["active"] == 1
    mesh.say("complete", held)
    assert mesh.state(child) == "READY"
