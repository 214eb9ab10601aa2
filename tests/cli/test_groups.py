"""Groups, and how work waits and runs, as they are typed."""

import json

from tests.cli.conftest import Typed

OF = ("--tenant", "grouped", "--application", "a")


def test_a_group_is_made_shown_sealed_and_called_off(local: Typed) -> None:
    for n in range(2):
        local.ok("workload", "create", "x", *OF, "--key", f"k{n}", "--group", "night")
    shown = local.json("group", "show", "night", "--tenant", "grouped")
    assert shown["counts"] == {"READY": 2}
    assert "READY" in local.ok("group", "show", "night", "--tenant", "grouped")
    assert "sealed" in local.ok("group", "seal", "night", "--tenant", "grouped")
    late = local("workload", "create", "x", *OF, "--group", "night")
    assert late.returncode == 1
    assert "WORKLOAD_INVALID" in late.stderr
    child = local.json("workload", "create", "y", *OF, "--depends-on", "group:night")
    assert child["state"] == "PENDING"
    assert "group:night" in local.ok("workload", "show", child["workload_id"])
    called = local.ok("group", "cancel", "night", "--tenant", "grouped", "--reason", "no")
    assert called == "night: 2 called off\n"
    waited = local("group", "wait", "night", "--tenant", "grouped")
    assert (waited.returncode, waited.stderr) == (1, "")
    assert "CANCELLED" in waited.stdout
    assert local.json("workload", "show", child["workload_id"])["state"] == "DEAD_LETTERED"
    whose = local("group", "show", "night")
    assert (whose.returncode, "next: say whose it is: --tenant" in whose.stderr) == (1, True)
    gone = local("group", "show", "none", "--tenant", "grouped")
    assert (gone.returncode, gone.stderr.split(":")[0]) == (1, "GROUP_NOT_FOUND")


def test_how_work_waits_and_runs_is_typed_or_comes_as_a_body(local: Typed) -> None:
    body = {"timeouts": {"queue_ms": 7, "start_ms": 9}, "labels": {"a": "b"}, "input": [1]}
    made = local.json(
        "workload", "create", "x", *OF, "--body", "-", "--queue-timeout", "10m",
        "--concurrency", "print:er:2", "--rate", "mail:10/1m", "--prefer", "zone=a",
        "--require", "os=linux", "--avoid", "rack=1", "--runtime-policy",
        '{"network_policy": "none"}', "--dependency-policy", "all_finished",
        given=json.dumps(body),
    )  # fmt: skip
    assert made["timeouts"] == {"queue_ms": 600_000, "start_ms": 9}
    assert made["concurrency"] == {"key": "print:er", "limit": 2}
    assert made["rate"] == {"key": "mail", "limit": 10, "period_ms": 60_000}
    assert made["placement"]["affinity"] == {"zone": "a"}
    assert made["placement"]["required_labels"] == {"os": "linux"}
    assert made["placement"]["anti_affinity"] == {"rack": "1"}
    assert made["runtime_policy"]["network_policy"] == "none"
    assert (made["labels"], made["input"]) == ({"a": "b"}, [1])


def test_what_cannot_be_meant_is_a_usage_error(local: Typed) -> None:
    for words in (
        ("--concurrency", "printer"),
        ("--rate", "mail:10"),
        ("--rate", "mail:10/soon"),
        ("--queue-timeout", "5"),
        ("--body", "[]"),
        ("--runtime-policy", "{"),
    ):
        ran = local("workload", "create", "x", *OF, *words)
        assert ran.returncode == 2, words
        assert "Traceback" not in ran.stderr
