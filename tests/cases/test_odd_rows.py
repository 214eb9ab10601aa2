"""Rows that nobody expects: of workers that are gone, of kinds nobody knows, of another version."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from tests.daemon.load import crew
from tests.daemon.running import Daemon, Edge, create, people
from tests.mesh.world import Mesh


def test_what_a_removed_worker_did_is_still_listed(daemon: Daemon) -> None:
    """BC-099: no list, count or metric fails because a name is gone."""
    mesh = people(daemon)
    edge = crew(daemon, mesh, 1)[0]
    create(daemon, mesh, "done")
    create(daemon, mesh, "failed", retry_policy={"max_attempts": 1})
    create(daemon, mesh, "back")
    daemon.post(
        "/v1/pools", {"pool_id": "p", "tenant_id": "t", "name": "p", "worker_ids": [edge.id]}
    )
    given = create(daemon, mesh, "given", group="g")["workload_id"]
    claim = daemon.post(f"/v1/workloads/{given}/claim", {})
    assert edge.fenced("complete", claim, output=1, start=True).status == 200
    for claim in edge.pull(max=2, start=True):
        assert edge.fenced("complete", claim, output=1).status == 200
    (claim,) = edge.pull(start=True)
    assert edge.fenced("release", claim).status == 200
    daemon.post(f"/v1/workers/{edge.id}/drain", {"reason": "moved"})
    assert daemon.call("DELETE", f"/v1/workers/{edge.id}").status == 204
    assert daemon.call("GET", "/v1/workers/{edge.id}").status == 404

    claims = daemon.get(f"/v1/claims?worker_id={edge.id}")["items"]
    assert {one["worker_id"] for one in claims} == {edge.id}
    assert len(daemon.get("/v1/claims")["items"]) == len(claims) == 4
    listed = daemon.get("/v1/workloads")["items"]
    assert len(listed) == 4
    for job in (one["workload_id"] for one in listed):
        shown = daemon.get(f"/v1/workloads/{job}")
        assert [attempt["worker_id"] for attempt in shown["attempts"]] == [edge.id]
        for part in ("events", "logs", "late-results"):
            assert "items" in daemon.get(f"/v1/workloads/{job}/{part}")
        assert daemon.get(f"/v1/workloads/{job}/why")["reasons"]
    (decision,) = daemon.get("/v1/placements")["items"]
    looked_at = daemon.get(f"/v1/placements/{decision['decision_id']}")
    assert (looked_at["selected_worker"], looked_at["agrees"]) == (edge.id, True)
    assert daemon.get("/v1/pools/p?tenant_id=t")["members"] == 0
    assert daemon.get("/v1/groups/g?tenant_id=t")["counts"] == {"COMPLETED": 1}
    assert daemon.get("/v1/backlog")["items"][0]["eligible_workers"] == 0
    assert daemon.get("/v1/workers")["items"] == []
    assert 'feltd_workloads{state="COMPLETED"} 3.0' in daemon.get("/metrics")
    assert daemon.call("GET", "/v1/workers?label=x%3Dy").status == 200
    later = Edge(daemon, "later", mesh.registrar_key)
    assert later.beat().status == 200
    assert len(later.pull()) == 1


def test_work_of_a_kind_nobody_knows_is_kept(daemons: Callable[..., Daemon]) -> None:
    """BC-032: leases end, restarts come and the keeper goes round; it waits for who knows it."""
    daemon = daemons().start()
    mesh = people(daemon)
    edge = crew(daemon, mesh, 1)[0]
    policy = {"initial_backoff_ms": 0, "jitter": 0, "max_attempts": 3}
    kind = {"definition_id": "of-next-year", "definition_revision": "99", "retry_policy": policy}
    job = create(daemon, mesh, "future", **kind)["workload_id"]
    (claim,) = edge.pull(lease_ms=1_000)
    assert claim["workload_id"] == job
    while daemon.get(f"/v1/workloads/{job}")["state"] != "READY":
        time.sleep(0.02)
    daemon.kill()
    daemon.start()
    narrow = Edge(daemon, "narrow", mesh.registrar_key, workload_kinds=["extract"])
    assert narrow.beat().status == 200

    told = narrow.call("claims", {}).body

    assert [reason["code"] for reason in told["reasons"]] == ["NO_MATCH"]
    assert daemon.get(f"/v1/workloads/{job}")["state"] == "READY"
    (again,) = edge.pull(start=True)
    assert (again["workload_id"], again["attempt_number"]) == (job, 2)


def spoiled(daemon: Daemon, *statements: str) -> None:
    """What a hand can do that switches every check off first."""
    with closing(sqlite3.connect(daemon.data, timeout=5)) as shell:
        shell.execute("PRAGMA ignore_check_constraints = ON")
        shell.executescript("".join(f"{statement};\n" for statement in statements))


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("workloads", "state"),
        ("workloads", "on_worker_lost"),
        ("workers", "runtime"),
        ("workers", "health"),
        ("workers", "lifecycle"),
        ("claims", "how"),
    ],
)
def test_a_word_of_another_version_cannot_be_stored(mesh: Mesh, table: str, column: str) -> None:
    """BC-032: the schema refuses it from anybody's shell."""
    mesh.claims(mesh.workload(), by=mesh.worker())

    with pytest.raises(sqlite3.IntegrityError):
        mesh.hand(f"UPDATE {table} SET {column} = 'FUTURE'")  # noqa: S608


#: Whatever shows more than one row.
READ = (
    "/v1/workloads", "/v1/workers", "/v1/claims", "/v1/backlog", "/v1/dead-letters", "/v1/events",
    "/v1/placements", "/v1/pools", "/v1/holds", "/v1/groups/g?tenant_id=t", "/health", "/metrics",
)  # fmt: skip
WORDS = [
    ("workloads", "state = 'FUTURE', due = 0"),
    ("workloads", "on_worker_lost = 'FUTURE'"),
    ("workers", "runtime = 'FUTURE'"),
    ("workers", "health = 'FUTURE'"),
    ("workers", "lifecycle = 'FUTURE'"),
]


@pytest.mark.parametrize(("table", "change"), WORDS)
def test_one_row_that_cannot_be_read_takes_nothing_else_down(
    daemon: Daemon, table: str, change: str
) -> None:
    """BC-032: lists answer, the keeper goes round, other work is done."""
    crowd = people(daemon)
    pace = {"heartbeat_interval_ms": 1_000, "heartbeat_timeout_ms": 60_000}
    bad, good = crew(daemon, crowd, 2, **pace)
    odd = create(daemon, crowd, "odd", group="g")["workload_id"]
    where = f"workload_id = '{odd}'" if table == "workloads" else f"worker_id = '{bad.id}'"
    with closing(sqlite3.connect(daemon.data, timeout=5)) as shell:
        # Every check has to be switched off first.
        shell.execute("PRAGMA ignore_check_constraints = ON")
        shell.execute("DROP TRIGGER workloads_keep_to_edges")
        shell.execute("DROP TRIGGER workers_keep_to_edges")
        shell.execute(f"UPDATE {table} SET {change} WHERE {where}")  # noqa: S608
        shell.commit()
    side = {"labels": {"side": "fine"}, "group": "g"}
    create(daemon, crowd, "fine", priority=9, retry_policy={"max_attempts": 1}, **side)

    for path in READ:
        assert daemon.call("GET", path).status == 200, path
    other = daemon.get("/v1/workloads?label=side%3Dfine")["items"][0]["workload_id"]
    for path in (f"/v1/workloads/{other}/why", f"/v1/workers/{good.id}/why"):
        assert daemon.call("GET", path).status == 200, path
    tried = daemon.call("POST", f"/v1/workloads/{other}/placement", {})
    assert (tried.status, tried.body["selected_worker"]) == (200, good.id)
    counted = {"action": "cancel", "filter": {"tenant_id": "t"}, "dry_run": True}
    assert daemon.call("POST", "/v1/workloads/bulk", counted).status == 200
    (claim,) = good.pull(lease_ms=1_000)
    fine = claim["workload_id"]
    assert fine != odd
    while daemon.get(f"/v1/workloads/{fine}")["state"] != "DEAD_LETTERED":
        time.sleep(0.02)
    assert daemon.get("/health")["keeper"] == "healthy"
