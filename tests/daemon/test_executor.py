"""The daemon's own worker: a worker as any other, wherever a grant says so, and nowhere else."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from feltd.cli.enroll import enroll
from tests.daemon import capabilities
from tests.daemon.capabilities import ask, ended, executor, failure, output, pipeline, put, until
from tests.daemon.conftest import TICK
from tests.daemon.running import Daemon, Edge, Mesh, feltd, people

WORKER = ("--worker",)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Mesh]]:
    """A daemon that may execute for tenant t, application a; shared, so stories use own names."""
    data = Path(tmp_path_factory.mktemp("executor")) / "feltd.db"
    daemon = Daemon(data, *TICK, *WORKER).init().start()
    try:
        capabilities.grant(daemon)
        yield daemon, people(daemon)
    finally:
        daemon.close()


def test_without_a_grant_nothing_runs_and_with_one_it_does(
    daemons: Callable[..., Daemon],
) -> None:
    daemon = daemons("feltd.db", *WORKER).start()
    mesh = people(daemon)
    waiting = ask(daemon, mesh, "identity", {"a": 1})
    assert daemon.get("/health")["execution"] == "autonomous"
    assert executor(daemon) is None

    told = feltd("enroll", "--data", str(daemon.data), "--tenant", "t", "--application", "a",
                 "--executor")  # fmt: skip
    assert told.returncode == 0, told.stderr

    assert output(daemon, waiting) == {"a": 1}
    shown = executor(daemon)
    assert shown is not None
    assert (shown["runtime"], shown["tenant_id"], shown["application_id"]) == ("hosted", "t", "a")
    assert shown["workload_kinds"] == ["identity", "search"]
    grant_id = told.stdout.split()[1]
    assert feltd("grants", "revoke", "--data", str(daemon.data), grant_id).returncode == 0
    left = ask(daemon, mesh, "identity")
    assert daemon.get(f"/v1/workloads/{left}?wait_ms=300")["state"] == "READY"
    assert daemon.stop() == 0
    assert daemon.check().returncode == 0


def test_a_daemon_without_the_flag_runs_nothing(daemon: Daemon) -> None:
    capabilities.grant(daemon)
    mesh = people(daemon)
    left = ask(daemon, mesh, "identity")
    assert daemon.get(f"/v1/workloads/{left}?wait_ms=300")["state"] == "READY"
    assert daemon.get("/health")["execution"] == "external"


def test_a_program_reads_and_writes_in_the_name_of_its_workload(
    shop: tuple[Daemon, Mesh],
) -> None:
    daemon, mesh = shop
    put(daemon, "orders", "7", {"total": 3})
    pipeline(
        daemon,
        "bill",
        {"op": "get", "name": "order", "collection": "orders", "id": {"$": "input.order"}},
        {
            "op": "put",
            "name": "bill",
            "collection": "bills",
            "id": {"$": "steps.order.id"},
            "value": {"total": {"$": "steps.order.value.total"}},
            "if_version": None,
        },
        {"op": "emit", "value": {"$": "steps.bill.version"}},
    )
    done = ask(daemon, mesh, "bill", {"order": "7"})

    assert output(daemon, done) == [1]
    made = daemon.get("/v1/changes?collection=bills", **capabilities.TENANT)["items"]
    assert [(one["kind"], one["after"], one["actor"]) for one in made] == [
        ("created", {"total": 3}, "service:feltd-executor")
    ]
    assert made[0]["cause_workload_id"] == done
    assert failure(daemon, ask(daemon, mesh, "bill", {"order": "7"})) == (
        "capability bill failed with status 409"
    )
    missing = ask(daemon, mesh, "bill", {"order": "8"})
    assert failure(daemon, missing) == "capability bill failed with status 404"
    lines = daemon.get(f"/v1/workloads/{missing}/logs")["items"]
    assert "orders/8" in lines[-1]["text"]


def test_search_gives_the_values_newest_first_up_to_the_limit(shop: tuple[Daemon, Mesh]) -> None:
    daemon, mesh = shop
    for number in range(5):
        put(daemon, "found", str(number), {"note": f"Paid {number}"})
    wanted = {"collection": "found", "query": "paid"}
    newest = [{"note": f"Paid {number}"} for number in (4, 3, 2, 1, 0)]
    assert output(daemon, ask(daemon, mesh, "search", {**wanted, "limit": 3})) == newest[:3]
    assert output(daemon, ask(daemon, mesh, "search", wanted)) == newest
    for wrong in (None, {"collection": "found"}, {**wanted, "limit": 0}, {**wanted, "more": 1}):
        said = failure(daemon, ask(daemon, mesh, "search", wrong))
        assert said == "capability search failed with status 422"


def test_search_that_finds_more_than_an_output_holds_says_so(shop: tuple[Daemon, Mesh]) -> None:
    daemon, mesh = shop
    for number in range(5):
        put(daemon, "large", str(number), {"note": "paid" + "x" * 200_000})
    wanted = {"collection": "large", "query": "paid"}
    assert len(output(daemon, ask(daemon, mesh, "search", {**wanted, "limit": 3}))) == 3
    said = failure(daemon, ask(daemon, mesh, "search", wanted))
    assert said == "capability search failed with status 413"


def test_what_it_cannot_run_is_left_to_others_and_one_bad_item_stops_nothing(
    shop: tuple[Daemon, Mesh],
) -> None:
    daemon, mesh = shop
    put(daemon, "_flow_capabilities", "odd", {"runtime": "lisp", "code": "()"})
    pipeline(daemon, "half", {"op": "get", "collection": "c"})
    pipeline(daemon, "well", {"op": "emit", "value": {"$": "input"}})
    untouched = [ask(daemon, mesh, name) for name in ("odd", "half", "unheard-of")]
    bad = [ask(daemon, mesh, "search", {"no": number}) for number in range(4)]
    good = [ask(daemon, mesh, "well", number) for number in range(4)]

    assert [output(daemon, one) for one in good] == [[0], [1], [2], [3]]
    assert {failure(daemon, one) for one in bad} == {"capability search failed with status 422"}
    for one in untouched:
        shown = daemon.get(f"/v1/workloads/{one}")
        assert (shown["state"], shown["attempts"]) == ("READY", [])
    other = Edge(daemon, "other", mesh.registrar_key, workload_kinds=["odd", "half", "unheard-of"])
    other.beat()
    assert {claim["workload_id"] for claim in other.pull(max=8)} == set(untouched)


def test_work_beyond_its_capabilities_is_never_claimed(shop: tuple[Daemon, Mesh]) -> None:
    daemon, mesh = shop
    granted = ask(daemon, mesh, "identity", 1, capability_snapshot=["documents.extract"])
    assert output(daemon, granted) == 1
    shown = executor(daemon)
    assert shown is not None
    assert shown["granted_capabilities"] == ["documents.extract"]


def test_a_program_is_there_from_its_record_on_and_gone_with_it(
    shop: tuple[Daemon, Mesh],
) -> None:
    daemon, mesh = shop
    early = ask(daemon, mesh, "late", 5)
    pipeline(daemon, "late", {"op": "emit", "value": 1})
    assert output(daemon, early) == [1]
    pipeline(daemon, "late", {"op": "emit", "value": 2})
    assert output(daemon, ask(daemon, mesh, "late")) == [2]
    path = "/v1/collections/_flow_capabilities/records/late"
    assert daemon.call("DELETE", path, **capabilities.TENANT).status == 204
    until(lambda: "late" not in (executor(daemon) or {})["workload_kinds"])
    left = ask(daemon, mesh, "late")
    assert daemon.get(f"/v1/workloads/{left}?wait_ms=200")["state"] == "READY"


def test_a_program_writes_no_program(shop: tuple[Daemon, Mesh]) -> None:
    daemon, mesh = shop
    pipeline(
        daemon,
        "sly",
        {"op": "put", "collection": {"$": "input"}, "id": "mine", "value": {"runtime": "lisp"}},
    )
    sly = ask(daemon, mesh, "sly", "_flow_capabilities")
    assert failure(daemon, sly) == "capability sly failed with status 403"
    path = "/v1/collections/_flow_capabilities/records/mine"
    assert daemon.call("GET", path, **capabilities.TENANT).status == 404


def test_what_a_trigger_starts_runs_here_and_what_it_writes_is_one_firing_deeper(
    shop: tuple[Daemon, Mesh],
) -> None:
    daemon, mesh = shop
    pipeline(
        daemon,
        "note",
        {
            "op": "put",
            "collection": "notes",
            "id": {"$": "input.id"},
            "value": {"seen": {"$": "input.after.status"}},
        },
    )
    definer = daemon.post(
        "/v1/keys",
        {
            "name": "definer",
            "scopes": ["triggers:write", "state:read"],
            "tenants": ["t"],
            "identity_id": "crew",
            "grant_id": daemon.get("/v1/auth/me", key=mesh.submitter_key)["grant"]["id"],
        },
    )["secret"]
    trigger = {
        "trigger_id": "seen",
        "source_collection": "sales",
        "change_kind": "any",
        "target_capability": "note",
    }
    daemon.post("/v1/triggers", trigger, key=definer)
    put(daemon, "sales", "9", {"status": "paid"})
    found = until(
        lambda: daemon.get("/v1/changes?collection=notes", **capabilities.TENANT)["items"]
    )
    assert [(one["after"], one["depth"]) for one in found] == [({"seen": "paid"}, 1)]


def test_without_keys_it_is_the_grant_all_the_same(daemons: Callable[..., Daemon]) -> None:
    daemon = daemons("feltd.db", *WORKER, "--no-auth").start()
    daemon.key = ""
    body = {"definition_id": "identity", "input": 1, "idempotency_key": "one"}
    place = {"tenant_id": "t", "application_id": "a"}
    left = daemon.post("/v1/workloads", {**body, **place})["workload_id"]
    assert daemon.get(f"/v1/workloads/{left}?wait_ms=200")["state"] == "READY"
    capabilities.grant(daemon)
    assert output(daemon, left) == 1


def test_it_never_fights_for_its_name(daemons: Callable[..., Daemon]) -> None:
    daemon = daemons("feltd.db", *WORKER).start()
    capabilities.grant(daemon)
    mesh = people(daemon)
    assert output(daemon, ask(daemon, mesh, "identity", 1)) == 1
    other = Edge(daemon, "feltd", mesh.registrar_key, takeover=True)
    other.beat()
    until(lambda: "another process took the name" in daemon.told())
    left = ask(daemon, mesh, "identity", 2)
    assert [claim["workload_id"] for claim in other.pull(start=True)] == [left]
    assert (executor(daemon) or {})["runtime"] == "process"
    capabilities.grant(daemon)
    until(lambda: (executor(daemon) or {})["runtime"] == "hosted")


@pytest.mark.parametrize(
    "wrong", [("--executor", "--key-file", "x.key"), (), ("--executor", "--concurrency", "0")]
)
def test_an_executor_needs_no_key_and_any_other_worker_capabilities(wrong: tuple[str, ...]) -> None:
    asked = ["--tenant", "t", "--application", "a", "--data", "nowhere.db", *wrong]
    assert CliRunner().invoke(enroll, asked).exit_code == 2


def test_of_more_programs_than_it_may_name_those_that_are_wanted_run(
    shop: tuple[Daemon, Mesh],
) -> None:
    daemon, mesh = shop
    value = {"runtime": "pipeline", "steps": [{"op": "emit", "value": {"$": "input"}}]}
    for thousand in range(2):
        mutations = [
            {"op": "put", "collection": "_flow_capabilities", "id": f"z{thousand}-{number}",
             "value": value}
            for number in range(1_000)
        ]  # fmt: skip
        daemon.post("/v1/transactions", {"mutations": mutations}, **capabilities.TENANT)
    wanted = [ask(daemon, mesh, name, name) for name in ("z1-999", "z0-0", "z1-500", "identity")]
    assert [output(daemon, one) for one in wanted] == [["z1-999"], ["z0-0"], ["z1-500"], "identity"]
    assert len((executor(daemon) or {})["workload_kinds"]) == 256


def test_a_drained_executor_takes_nothing_until_it_is_resumed(
    daemons: Callable[..., Daemon],
) -> None:
    beats = ("--heartbeat-interval-ms", "1000", "--heartbeat-timeout-ms", "5000")
    daemon = daemons("feltd.db", *WORKER, *beats).start()
    capabilities.grant(daemon)
    mesh = people(daemon)
    worker_id = until(lambda: executor(daemon))["worker_id"]
    until(lambda: (executor(daemon) or {})["lifecycle"] == "READY")
    daemon.post(f"/v1/workers/{worker_id}/drain", {"reason": "repairs"})
    left = ask(daemon, mesh, "identity", 1)
    assert daemon.get(f"/v1/workloads/{left}?wait_ms=300")["state"] == "READY"
    daemon.post(f"/v1/workers/{worker_id}/resume")
    assert output(daemon, left) == 1


def test_a_grant_that_names_kinds_is_kept_to(daemons: Callable[..., Daemon]) -> None:
    daemon = daemons("feltd.db", *WORKER).start()
    grant_id = capabilities.grant(daemon, workload_kinds=["identity"], max_concurrency=1)
    mesh = people(daemon)
    assert output(daemon, ask(daemon, mesh, "identity", 1)) == 1
    shown: dict[str, Any] = executor(daemon) or {}
    assert (shown["workload_kinds"], shown["capacity"]["concurrency"]) == (["identity"], 1)
    left = ask(daemon, mesh, "search", {"collection": "c", "query": "x"})
    assert daemon.get(f"/v1/workloads/{left}?wait_ms=200")["state"] == "READY"

    grant = daemon.get(f"/v1/grants/{grant_id}")
    grant = grant.get("grant", grant)
    body = {name: grant[name] for name in ("capabilities", "resources")}
    ends = int(time.time() * 1000) + 86_400_000
    wider = {**body, "constraints": {"max_concurrency": 2}, "expires_at_ms": ends}
    assert daemon.call("PUT", f"/v1/grants/{grant_id}", wider).status == 200
    assert ended(daemon, left)["state"] == "COMPLETED"
