"""What this machine or this kind of handler cannot enforce is refused before anything starts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from feltd.cli.worker_run import run as worker_run
from feltd.model.grant import RuntimeCaps
from feltd.model.policy import RuntimePolicy
from feltd.worker.failures import raised
from feltd.worker.runtimes.process import ProcessRuntime
from feltd.worker.runtimes.runtime import Unenforceable, policy_of, require_inline
from tests.worker.programs import CLAIM, attempt, failure, run

TIGHT = [
    {"network_policy": "none"},
    {"network_policy": "loopback"},
    {"filesystem_policy": "none"},
    {"filesystem_policy": "scratch"},
]


@pytest.mark.parametrize("policy", TIGHT)
def test_without_bubblewrap_nothing_starts(
    hidden: Path, tmp_path: Path, policy: dict[str, Any]
) -> None:
    [(member, value)] = policy.items()
    kind, message = failure(f"touch {tmp_path}/began", **policy)

    assert kind == "policy_unenforceable"
    assert message == (
        f"{member} {value} cannot be enforced here: "
        "bubblewrap is not installed (Debian: apt install bubblewrap)"
    )
    assert not (tmp_path / "began").exists()


def test_a_bubblewrap_that_may_not_is_found_out_before(hidden: Path, tmp_path: Path) -> None:
    """User namespaces may be forbidden although it is installed."""
    fake = hidden / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    kind, message = failure(f"touch {tmp_path}/began", network_policy="none")

    assert kind == "policy_unenforceable"
    assert "No permissions to create new namespace" in message
    assert not (tmp_path / "began").exists()


def test_it_is_found_out_once(hidden: Path, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    fake = hidden / "bwrap"
    fake.write_text(f"#!/bin/sh\necho 1 >> {asked}\nexit 1\n")
    fake.chmod(0o755)
    for _ in range(3):
        failure("true", network_policy="none")

    assert asked.read_text().split() == ["1"]


@pytest.mark.usefixtures("hidden")
def test_the_other_members_need_no_bubblewrap() -> None:
    assert run("echo 1", max_cpu_millis=60_000, max_memory_bytes=2**30, secret_policy="none") == 1


@pytest.mark.usefixtures("hidden")
def test_it_is_the_attempt_that_ends_so() -> None:
    with pytest.raises(Unenforceable) as refused:
        asyncio.run(attempt(ProcessRuntime("true"), network_policy="none"))

    ending = raised(refused.value)
    assert (ending.verb, ending.body["kind"]) == ("fail", "policy_unenforceable")


@pytest.mark.parametrize(
    "policy",
    [*TIGHT, {"max_cpu_millis": 1}, {"max_memory_bytes": 1}, {"secret_policy": "none"}],
)
def test_a_handler_inside_the_worker_keeps_to_none_of_these(policy: dict[str, Any]) -> None:
    with pytest.raises(Unenforceable) as refused:
        require_inline(RuntimePolicy(**policy))

    assert refused.value.member in policy
    assert "--exec" in str(refused.value)


def test_a_handler_inside_the_worker_keeps_to_these() -> None:
    require_inline(RuntimePolicy(max_duration_ms=5, artifact_policy="none"))


@pytest.mark.parametrize("told", [{"gpu_policy": "none"}, {"network_policy": "vpn"}, "tight"])
def test_a_policy_that_this_worker_does_not_know_is_not_run_looser(told: Any) -> None:
    with pytest.raises(Unenforceable):
        policy_of({**CLAIM, "runtime_policy": told}, None)


def test_the_workers_own_caps_and_the_claims_policy_meet() -> None:
    told = {"max_memory_bytes": 900, "network_policy": "none"}
    caps = RuntimeCaps(max_memory_bytes=500, network_policy="loopback", secret_policy="none")

    assert policy_of({**CLAIM, "runtime_policy": told}, caps) == RuntimePolicy(
        max_memory_bytes=500, network_policy="none", secret_policy="none"
    )
    assert policy_of(CLAIM, None) == RuntimePolicy()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--exec", "true", "--network", "none"], "apt install bubblewrap"),
        (["--exec", "true", "--filesystem", "scratch"], "apt install bubblewrap"),
        (["--exec", "true", "--max-memory", "much"], "write 64MiB, 2GiB or 500MB"),
        (["--exec", "true", "--max-memory", "0"], "write 64MiB, 2GiB or 500MB"),
        (["--exec", "true", "--max-cpu", "0s"], "--max-cpu-millis must be over 0"),
        (["--exec", "true", "--readable", "/"], "--filesystem inherit"),
        (["tests.worker.handlers:worker", "--max-memory", "1GiB"], "run it as a program (--exec)"),
    ],
)
@pytest.mark.usefixtures("hidden")
def test_caps_that_could_be_kept_for_no_claim_are_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], said: str
) -> None:
    """A worker that can run nothing would take all the work and end it."""
    monkeypatch.setenv("FELTD_URL", "http://127.0.0.1:1")
    ran = CliRunner().invoke(worker_run, flags)

    assert ran.exit_code == 2
    assert said in ran.output
