"""A quarantined worker gets nothing new, what it holds goes on, and only a person frees it."""

from msgspec import convert

from feltd.mesh import moves, quarantine, register, roster, workers
from feltd.model.worker import Registration
from tests.mesh.pools.stories import confine, free, person, refusal
from tests.mesh.world import Mesh


def why(mesh: Mesh, worker_id: str) -> list[str]:
    """The reasons of an empty pull."""
    return [reason.code for reason in mesh.pull(worker_id).reasons]


def test_a_quarantined_worker_gets_nothing_and_keeps_what_it_holds(mesh: Mesh) -> None:
    edge = mesh.worker(capacity={"concurrency": 2})
    held = mesh.claims(mesh.workload(), by=edge, start=True)
    job = mesh.workload()
    shown = confine(mesh, edge, by=person("acme"))

    assert shown.quarantine is not None
    assert (shown.quarantine.by, shown.quarantine.reason) == ("human:ann", "its disk fails")
    assert ("worker", edge) in mesh.signals
    assert why(mesh, edge) == ["WORKER_QUARANTINED"]
    refused = refusal(lambda: mesh.claims(job, by=edge))
    assert (refused.code, refused.facts["rules"]) == ("MESH_PLACEMENT_DENIED", ["quarantined"])
    mesh.say("renew", held)
    assert mesh.say("complete", held).state == "COMPLETED"

    assert free(mesh, edge).quarantine is None
    assert ("worker", edge) in mesh.signals
    assert [one.workload_id for one in mesh.pull(edge).claims] == [job]


def test_it_ends_at_its_instant_not_a_tick_later(mesh: Mesh) -> None:
    edge = mesh.worker()
    mesh.workload()
    past = refusal(lambda: confine(mesh, edge, until_at_ms=mesh.now.wall_ms))
    assert (past.code, past.facts["errors"][0]["pointer"]) == ("WORKER_INVALID", "/until_at_ms")
    confine(mesh, edge, until_at_ms=mesh.now.wall_ms + 1_000)

    mesh.later(999)
    assert mesh.run(quarantine.end_due, 50) == 0
    assert why(mesh, edge) == ["WORKER_QUARANTINED"]
    mesh.later(1)
    assert len(mesh.pull(edge).claims) == 1
    assert mesh.run(quarantine.end_due, 50) == 1
    assert mesh.run(lambda tx, _, now: workers.quarantine_of(workers.present(tx, edge))) is None
    assert mesh.run(quarantine.end_due, 50) == 0


def test_another_process_of_the_name_is_quarantined_too(mesh: Mesh) -> None:
    """An operator's intent is about the worker, not about the process behind it."""
    edge = mesh.worker()
    confine(mesh, edge)
    mesh.later(60_000)

    assert mesh.worker("edge", process_id="p-2") == edge
    assert why(mesh, edge) == ["WORKER_QUARANTINED"]
    told = convert(
        {
            "tenant_id": "acme",
            "application_id": "docs",
            "name": "edge",
            "runtime": "process",
            "version": "1",
            "capacity": {"concurrency": 1},
            "capabilities": ["docs.extract"],
            "process_id": "p-2",
        },
        Registration,
    )
    again = mesh.ask(register.register, register.Registering(registration=told))
    assert again.answer.worker.quarantine is not None


def test_a_removed_worker_takes_its_quarantine_along(mesh: Mesh) -> None:
    edge = mesh.worker()
    confine(mesh, edge)
    mesh.ask(moves.remove, None, edge)

    mesh.worker("edge")
    assert why(mesh, edge) == ["NO_WORK"]


def test_repeating_keeps_when_it_began_and_takes_the_newer_reason(mesh: Mesh) -> None:
    edge = mesh.worker()
    first = confine(mesh, edge).quarantine
    assert first is not None
    mesh.later(10)

    assert confine(mesh, edge).quarantine == first
    second = confine(mesh, edge, reason="it smells", until_at_ms=mesh.now.wall_ms + 5).quarantine
    assert second is not None
    assert (second.reason, second.at_ms) == ("it smells", first.at_ms)
    kinds = [row[0] for row in mesh.conn.execute("SELECT kind FROM events WHERE worker_id <> ''")]
    assert kinds.count("quarantine") == 2
    free(mesh, edge)
    free(mesh, edge)
    kinds = [row[0] for row in mesh.conn.execute("SELECT kind FROM events WHERE worker_id <> ''")]
    assert kinds.count("unquarantine") == 1


def test_a_worker_of_another_tenant_is_no_worker(mesh: Mesh) -> None:
    """BC-093: the refusal is that of a made-up id, and the row stays as it is."""
    edge = mesh.worker()
    before = tuple(mesh.row("SELECT * FROM workers"))

    for worker_id in (edge, "worker_made_up"):
        for act in (confine, free):
            refused = refusal(act, mesh, worker_id, by=person("other"))
            assert (refused.code, refused.detail) == ("WORKER_NOT_FOUND", "worker not found")
    assert tuple(mesh.row("SELECT * FROM workers")) == before


def test_operators_see_it_in_the_lists_and_in_the_file(mesh: Mesh) -> None:
    edge = mesh.worker()
    confine(mesh, edge)

    page = mesh.ask(roster.page, roster.PageAsk(filter=roster.Filter()))
    assert page.items[0].quarantine is not None
    view = mesh.row("SELECT * FROM v_workers WHERE worker_id = :id", id=edge)
    assert (view["quarantined_by"], view["quarantine_reason"]) == (
        "service:local",
        "its disk fails",
    )
