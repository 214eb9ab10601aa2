"""Dependencies, groups and all that says how work waits and runs, over HTTP."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.api.workloads.test_workloads import asked, claimed, post
from tests.daemon.running import Daemon, Edge, Mesh, create

WHOLE: dict[str, Any] = {
    "timeouts": {"queue_ms": 600_000, "total_ms": 1_200_000},
    "runtime_policy": {"max_duration_ms": 60_000, "network_policy": "none"},
    "dependency_policy": "all_finished",
    "group": "whole",
    "placement": {"required_labels": {}, "affinity": {"zone": "a"}, "affinity_wait_ms": 0},
    "concurrency": {"key": "printer", "limit": 3},
    "rate": {"key": "mail", "limit": 100, "period_ms": 1_000},
}


def group(daemon: Daemon, crew: Mesh, name: str, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = daemon.get(f"/v1/groups/{name}{query}", key=crew.submitter_key)
    return found


def finish(daemon: Daemon, edge: Edge, workload_id: str) -> None:
    edge.beat()
    assert edge.fenced("complete", claimed(daemon, edge, workload_id), start=True).status == 200


def test_all_of_it_is_shown_and_travels_in_the_claim(
    daemon: Daemon, crew: Mesh, edge: Edge
) -> None:
    job = create(daemon, crew, "whole", **WHOLE)
    for member in ("timeouts", "dependency_policy", "group", "concurrency", "rate"):
        assert job[member] == WHOLE[member]
    assert job["dependencies"] == []
    assert job["placement"] == {
        "required_labels": {},
        "anti_affinity": {},
        "affinity": {"zone": "a"},
        "pool_id": None,
        "affinity_wait_ms": 0,
    }
    policy = {
        "max_cpu_millis": None,
        "max_memory_bytes": None,
        "max_duration_ms": 60_000,
        "network_policy": "none",
        "filesystem_policy": "inherit",
        "secret_policy": "inherit",
        "artifact_policy": "references",
    }
    assert job["runtime_policy"] == policy
    assert create(daemon, crew, "whole", **WHOLE)["workload_id"] == job["workload_id"]
    edge.beat()
    held = claimed(daemon, edge, job["workload_id"])
    assert held["timeouts"] == WHOLE["timeouts"]
    assert held["runtime_policy"] == policy
    edge.fenced("complete", held, start=True)


def test_a_plain_workload_shows_the_defaults(daemon: Daemon, crew: Mesh) -> None:
    job = create(daemon, crew, "plain", not_before_at_ms=2**52)
    assert job["timeouts"] == {}
    assert job["runtime_policy"]["max_duration_ms"] == 3_600_000
    assert job["dependency_policy"] == "all_completed"
    assert not {"group", "concurrency", "rate"} & job.keys()


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"timeouts": {"queue_ms": 0}}, "/timeouts/queue_ms"),
        ({"timeouts": {"none_ms": 5}}, "/timeouts/none_ms"),
        ({"runtime_policy": {"network_policy": "all"}}, "/runtime_policy/network_policy"),
        ({"runtime_policy": {"max_duration_ms": 0}}, "/runtime_policy/max_duration_ms"),
        ({"dependencies": ["x"] * 65}, "/dependencies"),
        ({"dependencies": ["a b"]}, "/dependencies/0"),
        ({"dependency_policy": "some"}, "/dependency_policy"),
        ({"group": ".."}, "/group"),
        ({"placement": {"pool_id": "a b"}}, "/placement/pool_id"),
        ({"placement": {"affinity_wait_ms": -1}}, "/placement/affinity_wait_ms"),
        ({"concurrency": {"key": "k"}}, "/concurrency/limit"),
        ({"concurrency": {"key": "", "limit": 1}}, "/concurrency/key"),
        ({"concurrency": {"key": "k", "limit": 0}}, "/concurrency/limit"),
        ({"rate": {"key": "k", "limit": 1}}, "/rate/period_ms"),
        ({"rate": {"key": "k", "limit": 1, "period_ms": 2**53}}, "/rate/period_ms"),
    ],
)
def test_what_does_not_fit_is_refused_by_place(
    daemon: Daemon, crew: Mesh, body: dict[str, Any], pointer: str
) -> None:
    answer = post(daemon, crew, asked("unfit", **body))
    assert (answer.status, answer.body["code"]) == (422, "WORKLOAD_INVALID")
    assert answer.body["errors"][0]["pointer"] == pointer


def test_a_diamond_runs_from_top_to_bottom(daemon: Daemon, crew: Mesh, edge: Edge) -> None:
    top = create(daemon, crew, "top")["workload_id"]
    sides = [create(daemon, crew, f"side {n}", dependencies=[top]) for n in range(2)]
    names = [side["workload_id"] for side in sides]
    bottom = create(daemon, crew, "bottom", dependencies=names)
    assert bottom["state"] == "PENDING"
    assert bottom["dependencies"] == sorted(names)
    finish(daemon, edge, top)
    for name in names:
        finish(daemon, edge, name)
    finish(daemon, edge, bottom["workload_id"])
    path = f"/v1/workloads/{bottom['workload_id']}/events"
    told = daemon.get(path, key=crew.submitter_key)["items"]
    assert [(one["kind"], one.get("to")) for one in told[:2]] == [
        ("create", "PENDING"),
        ("settle", "READY"),
    ]


def test_a_pull_that_waits_gets_what_becomes_ready(daemon: Daemon, crew: Mesh, edge: Edge) -> None:
    """The end of the parent wakes a parked pull: nobody has to ask again."""
    top = create(daemon, crew, "parked top")["workload_id"]
    edge.beat()
    held = claimed(daemon, edge, top)
    kind = {"definition_id": "parked", "dependencies": [top]}
    child = create(daemon, crew, "parked child", **kind)["workload_id"]
    other = Edge(daemon, "other", crew.registrar_key)
    other.beat()
    got: list[Any] = []
    waiter = threading.Thread(
        target=lambda: got.extend(other.pull(wait_ms=25_000, workload_kinds=["parked"]))
    )
    waiter.start()
    assert edge.fenced("complete", held, start=True).status == 200
    waiter.join(20)
    assert [claim["workload_id"] for claim in got] == [child]
    other.fenced("complete", got[0], start=True)


def test_a_failed_parent_answers_its_children(daemon: Daemon, crew: Mesh, edge: Edge) -> None:
    """BC-052: before and after."""
    top = create(daemon, crew, "failing top")["workload_id"]
    before = create(daemon, crew, "before", dependencies=[top])["workload_id"]
    edge.beat()
    held = claimed(daemon, edge, top)
    edge.fenced("fail", held, kind="execution_error", message="no", start=True)
    shown = daemon.get(f"/v1/workloads/{before}?wait_ms=5000", key=crew.submitter_key)
    assert shown["state"] == "DEAD_LETTERED"
    assert shown["failure"]["kind"] == "dependency_failed"
    after = create(daemon, crew, "after", dependencies=[top])
    assert (after["state"], after["failure"]["kind"]) == ("DEAD_LETTERED", "dependency_failed")
    listed = daemon.get(
        "/v1/workloads?failure_kind=dependency_failed&state=DEAD_LETTERED", key=crew.submitter_key
    )
    assert {before, after["workload_id"]} <= {one["workload_id"] for one in listed["items"]}


def test_failing_a_parent_and_naming_it_at_once_leaves_nobody_waiting(
    daemon: Daemon, crew: Mesh, edge: Edge
) -> None:
    """BC-052, second part: whichever of the two comes first."""
    seen: set[str] = set()
    with ThreadPoolExecutor(2) as pool:
        for n in range(60):
            top = create(daemon, crew, f"raced {n}")["workload_id"]
            if n % 20 == 0:
                edge.beat()
            held = claimed(daemon, edge, top)
            failing = pool.submit(
                edge.fenced, "fail", held, kind="execution_error", message="no", start=True
            )
            made = create(daemon, crew, f"racer {n}", dependencies=[top])
            assert failing.result().status == 200
            seen.add(made["state"])
            shown = daemon.get(f"/v1/workloads/{made['workload_id']}", key=crew.submitter_key)
            assert shown["state"] == "DEAD_LETTERED"
    assert seen <= {"PENDING", "DEAD_LETTERED"}


def test_more_children_than_a_commit_tells_are_told_in_the_next_round(
    daemon: Daemon, crew: Mesh, edge: Edge
) -> None:
    top = create(daemon, crew, "many")["workload_id"]
    children = [
        asked(f"many {n}", dependencies=[top], definition_id="many", not_before_at_ms=2**52)
        for n in range(450)
    ]
    made = post(daemon, crew, {"workloads": children, "atomic": True}, "/v1/workloads/batch")
    assert {one["state"] for one in made.body["items"]} == {"PENDING"}
    last = made.body["items"][-1]["workload_id"]
    finish(daemon, edge, top)
    until_s = time.monotonic() + 30
    path = f"/v1/workloads/{last}"
    while daemon.get(path, key=crew.submitter_key)["state"] == "PENDING":
        assert time.monotonic() < until_s
        time.sleep(0.02)
    listing = "/v1/workloads?state=PENDING&definition_id=many"
    assert daemon.get(listing, key=crew.submitter_key)["items"] == []


def test_a_dependency_that_is_not_there_is_refused_by_place(daemon: Daemon, crew: Mesh) -> None:
    """BC-010, BC-055."""
    there = create(daemon, crew, "there", not_before_at_ms=2**52)["workload_id"]
    body = asked("dangling", dependencies=[there, "workload_" + "0" * 32])
    answer = post(daemon, crew, body)
    assert (answer.status, answer.body["code"]) == (422, "WORKLOAD_DEPENDENCY_INVALID")
    assert answer.body["errors"][0]["pointer"] == "/dependencies/1"
    assert answer.body["next"] == "fix_request"
    batch = {"workloads": [asked("batch one"), body], "atomic": True}
    refused = post(daemon, crew, batch, "/v1/workloads/batch")
    assert (refused.status, refused.body["code"]) == (422, "WORKLOAD_DEPENDENCY_INVALID")
    assert refused.body["errors"][0]["pointer"] == "/workloads/1/dependencies/1"
    assert post(daemon, crew, asked("batch one")).status == 201


def test_a_group_is_awaited_until_it_is_sealed_and_has_ended(
    daemon: Daemon, crew: Mesh, edge: Edge
) -> None:
    jobs = [create(daemon, crew, f"night {n}", group="night")["workload_id"] for n in range(3)]
    assert group(daemon, crew, "night")["counts"] == {"READY": 3}
    assert group(daemon, crew, "night", "?wait_ms=50")["ended"] is False
    sealed = daemon.call("POST", "/v1/groups/night/seal", {}, key=crew.submitter_key)
    assert (sealed.status, sealed.body["sealed"]) == (200, True)
    late = post(daemon, crew, asked("late", group="night"))
    assert (late.status, late.body["code"]) == (422, "WORKLOAD_INVALID")
    assert late.body["errors"][0]["pointer"] == "/group"
    report = create(daemon, crew, "report", dependencies=["group:night"])
    assert report["state"] == "PENDING"

    answers: list[Any] = []
    waiter = threading.Thread(
        target=lambda: answers.append(group(daemon, crew, "night", "?wait_ms=25000"))
    )
    waiter.start()
    for job in jobs:
        finish(daemon, edge, job)
    waiter.join(20)
    assert answers[0]["ended"] is True
    assert answers[0]["counts"] == {"COMPLETED": 3}
    finish(daemon, edge, report["workload_id"])
    listed = daemon.get("/v1/workloads?group=night", key=crew.submitter_key)["items"]
    assert {one["workload_id"] for one in listed} == set(jobs)


def test_a_group_is_called_off_and_a_repeat_changes_nothing(daemon: Daemon, crew: Mesh) -> None:
    for n in range(3):
        create(daemon, crew, f"off {n}", group="off", not_before_at_ms=2**52)
    path, key = "/v1/groups/off/cancel", crew.submitter_key
    done = daemon.call("POST", path, {"reason": "no"}, key=key)
    assert (done.status, done.body) == (200, {"changed": 3, "remaining": 0})
    assert daemon.call("POST", path, {}, key=key).body == {"changed": 0, "remaining": 0}
    assert group(daemon, crew, "off")["counts"] == {"CANCELLED": 3}


def test_who_may_what_with_a_group(daemon: Daemon, crew: Mesh, edge: Edge) -> None:
    create(daemon, crew, "scoped", group="scoped", not_before_at_ms=2**52)
    reader = daemon.post(
        "/v1/keys", {"name": "groups", "scopes": ["workloads:read"], "tenants": ["t"]}
    )["secret"]
    stranger = daemon.post(
        "/v1/keys",
        {"name": "foreign", "scopes": ["workloads:read", "workloads:create"], "tenants": ["u"]},
    )["secret"]
    path = "/v1/groups/scoped"
    assert daemon.call("GET", path, key=reader).status == 200
    assert daemon.call("GET", path, key=edge.key).body["code"] == "FORBIDDEN"
    assert daemon.call("POST", f"{path}/seal", {}, key=reader).body["code"] == "FORBIDDEN"
    assert daemon.call("POST", f"{path}/cancel", {}, key=reader).body["code"] == "FORBIDDEN"
    foreign = daemon.call("GET", path, key=stranger)
    made_up = daemon.call("GET", "/v1/groups/none", key=stranger)
    assert foreign.status == made_up.status == 404
    assert {k: v for k, v in foreign.body.items() if k != "request_id"} == {
        k: v for k, v in made_up.body.items() if k != "request_id"
    }
    for verb in ("seal", "cancel"):
        refused = daemon.call("POST", f"{path}/{verb}", {}, key=stranger)
        assert (refused.status, refused.body["code"]) == (404, "GROUP_NOT_FOUND")


def test_a_child_cancelled_while_it_waits_is_final(daemon: Daemon, crew: Mesh, edge: Edge) -> None:
    top = create(daemon, crew, "cancel top")["workload_id"]
    child = create(daemon, crew, "cancel child", dependencies=[top])["workload_id"]
    path = f"/v1/workloads/{child}/cancel"
    assert daemon.call("POST", path, {}, key=crew.submitter_key).body["state"] == "CANCELLED"
    finish(daemon, edge, top)
    assert daemon.get(f"/v1/workloads/{child}", key=crew.submitter_key)["state"] == "CANCELLED"


def test_the_file_holds_its_promises_afterwards(daemon: Daemon) -> None:
    checked = daemon.check()
    assert checked.returncode == 0, checked.stdout
