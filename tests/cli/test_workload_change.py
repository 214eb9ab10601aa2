"""Work that stands already, changed on the command line: one of it, or all of a filter."""

import pytest

from tests.cli.conftest import Typed


def made(local: Typed, tenant: str, *words: str) -> str:
    return local.ok(
        "workload", "create", "x", "--tenant", tenant, "--application", "a", *words
    ).strip()


def test_one_is_edited_place_by_place(local: Typed) -> None:
    job = made(local, "c1", "--label", "tier=1")
    shown = local.json(
        "workload", "edit", job, "--priority", "10", "--set", "timeouts.execution_ms=600000",
        "--set", "retry_policy.max_attempts=5", "--set", "placement.required_labels.zone=b",
        "--set", 'concurrency={"key": "printer", "limit": 2}',
        "--label", "team=web", "--unlabel", "tier",
    )  # fmt: skip
    assert (shown["priority"], shown["timeouts"]) == (10, {"execution_ms": 600_000})
    assert shown["retry_policy"]["max_attempts"] == 5
    assert shown["placement"]["required_labels"] == {"zone": "b"}
    assert shown["concurrency"] == {"key": "printer", "limit": 2}
    assert shown["labels"] == {"team": "web"}
    assert local.ok("workload", "edit", job, "--set", "concurrency=null") == (
        f"{job} is READY, priority 10\n"
    )
    assert "concurrency" not in local.json("workload", "show", job)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--set", "input=5"),
        ("--set", "priority"),
        ("--set", "timeouts.=5"),
        ("--label", "nothing"),
        ("--priority", "5000"),
    ],
)
def test_an_edit_that_says_nothing_right_is_a_usage_error(
    local: Typed, words: tuple[str, ...]
) -> None:
    ran = local("workload", "edit", "workload_1", *words)
    assert ran.returncode == 2, ran


def test_work_for_later_runs_now(local: Typed) -> None:
    job = made(local, "c2", "--after", "1h")
    before = local.json("workload", "show", job)
    assert local.ok("workload", "run-now", job) == f"{job} is READY, priority 0\n"
    after = local.json("workload", "show", job)
    assert after["eligible_at_ms"] < before["eligible_at_ms"]
    assert after.get("not_before_at_ms") is None
    local.ok("workload", "cancel", job)
    ran = local("workload", "run-now", job)
    assert ran.returncode == 1
    assert ran.stderr.startswith("WORKLOAD_TRANSITION_DENIED")


def test_much_is_counted_then_changed(local: Typed) -> None:
    jobs = [made(local, "c3", "--label", f"n={number}") for number in range(3)]
    of = ("--tenant", "c3")
    assert local.ok("workload", "bulk", "cancel", *of, "--dry-run") == "3 workloads to cancel\n"
    unsure = local("workload", "bulk", "cancel", *of)
    assert unsure.returncode == 2, "nobody is there to be asked"
    assert "3 workloads to cancel" in unsure.stderr
    raised = local.json(
        "workload", "bulk", "reprioritise", *of, "--label", "n=1", "--priority", "9", "--yes"
    )
    assert raised == {"changed": 1, "remaining": 0}
    assert local.json("workload", "show", jobs[1])["priority"] == 9
    done = local.ok("workload", "bulk", "cancel", *of, "--state", "READY", "--yes")
    assert done == "3 workloads: cancel done\n"
    assert local.ok("workload", "bulk", "cancel", *of, "--yes") == "0 workloads: cancel done\n"
    assert local("workload", "bulk", "cancel").returncode == 2, "no filter and no --all"


def test_dead_letters_are_counted_by_kind_and_brought_back(local: Typed) -> None:
    job = made(local, "c4", "--label", "k=v")
    local.ok("workload", "edit", job, "--set", "timeouts.total_ms=1")
    assert local("workload", "watch", job).returncode == 1
    found = local.json("workload", "list", "--by-kind", "--application", "a")
    assert "total_timeout" in {one["failure_kind"] for one in found["items"]}
    assert "total_timeout\t" in local.ok(
        "workload", "list", "--state", "DEAD_LETTERED", "--by-kind"
    )
    assert local("workload", "list", "--state", "READY", "--by-kind").returncode == 2
    local.ok("workload", "edit", job, "--set", "timeouts=null")
    back = ("workload", "bulk", "requeue", "--tenant", "c4", "--failure", "total_timeout")
    assert local.json(*back, "--priority", "4", "--yes") == {"changed": 1, "remaining": 0}
    shown = local.json("workload", "show", job)
    assert (shown["state"], shown["priority"]) == ("READY", 4)
