"""Pools, holds and quarantine at the prompt."""

import json
from pathlib import Path

from tests.cli.conftest import Typed
from tests.daemon.running import Daemon, Edge, people

OF = ("--tenant", "t")


def test_a_pool_is_made_changed_and_deleted(local: Typed, daemon: Daemon) -> None:
    crew = people(daemon)
    edge = Edge(daemon, "pool-edge", crew.registrar_key, labels={"zone": "cli"})
    made = local.json(
        "pool", "create", "cli", *OF, "--label", "zone=cli", "--max-concurrency", "8",
        "--name", "the pool of the prompt",
    )  # fmt: skip
    assert (made["required_labels"], made["max_concurrency"], made["members"]) == (
        {"zone": "cli"},
        8,
        1,
    )
    assert "the pool of the prompt" in local.ok("pool", "list", *OF)
    members = local.json("worker", "list", *OF, "--pool", "cli")
    assert [one["worker_id"] for one in members] == [edge.id]

    changed = local.json("pool", "update", "cli", *OF, "--max-concurrency", "4")
    assert (changed["required_labels"], changed["max_concurrency"]) == ({"zone": "cli"}, 4)
    listed = local.json("pool", "update", "cli", *OF, "--worker", edge.id, "--no-ceiling")
    assert (listed["worker_ids"], listed["listed"], listed["max_concurrency"]) == (
        [edge.id],
        True,
        None,
    )
    assert local.json("pool", "update", "cli", *OF, "--any-worker")["listed"] is False
    crossed = local("pool", "update", "cli", *OF, "--any-worker", "--worker", edge.id)
    assert crossed.returncode == 2

    assert local.ok("pool", "delete", "cli", *OF) == "pool deleted: cli\n"
    gone = local("pool", "show", "cli", *OF)
    assert gone.returncode == 1
    assert gone.stderr.splitlines()[1].startswith("next: look for its id: feltd pool list")


def test_a_hold_is_placed_listed_and_lifted(local: Typed) -> None:
    placed = local.json(
        "hold", "create", "definition", "never-made#2", *OF, "--reason", "it loses pages",
        "--for", "2h",
    )  # fmt: skip
    assert (placed["scope"], placed["value"], placed["tenant_id"]) == (
        "definition",
        "never-made#2",
        "t",
    )
    assert placed["until_at_ms"] > 0
    assert "it loses pages" in local.ok("hold", "list")
    assert local.ok("hold", "delete", placed["hold_id"]) == f"hold lifted: {placed['hold_id']}\n"
    never = local("hold", "delete", "hold_never")
    assert (never.returncode, never.stderr.splitlines()[1]) == (
        1,
        "next: look for its id: feltd hold list (see /errors/HOLD_NOT_FOUND)",
    )
    unsaid = local("hold", "create", "application", *OF, "--reason", "x")
    assert unsaid.returncode == 1
    assert "/value" in unsaid.stderr


def test_a_worker_is_quarantined_by_its_name_and_freed(local: Typed, daemon: Daemon) -> None:
    crew = people(daemon)
    Edge(daemon, "sick", crew.registrar_key)

    told = local.ok("worker", "quarantine", "sick", "--reason", "its disk fails", "--for", "1h")
    assert "is quarantined; it holds 0 claims" in told
    assert "its disk fails" in local.ok("worker", "list")
    shown = local.ok("worker", "show", "sick")
    assert "its disk fails" in shown
    assert "quarantined until" in shown
    assert "may take work again" in local.ok("worker", "unquarantine", "sick")
    assert "quarantine" not in local.json("worker", "show", "sick")


def test_holds_are_placed_by_the_same_rules_where_no_daemon_runs(tmp_path: Path) -> None:
    idle = Typed(tmp_path)
    idle.ok("init", "--data", "idle.db")
    at = ("--data", "idle.db")

    placed = json.loads(idle.ok("hold", "create", "all", "--reason", "moved", "--json", *at))
    assert [one["hold_id"] for one in json.loads(idle.ok("hold", "list", "--json", *at))] == [
        placed["hold_id"]
    ]
    refused = idle("hold", "create", "pool", "gpu", *OF, "--reason", "x", *at)
    assert refused.returncode == 1
    assert refused.stderr.startswith("WORKER_POOL_NOT_FOUND: ")
    assert idle("pool", "list", *at).returncode == 1
    assert idle.ok("check", *at)
