"""secret_policy, and what of a secret never leaves the worker under any policy."""

import subprocess
import sys
from typing import Any

import pytest

from feltd.worker.command import STDERR_BYTES_MAX, outcome
from feltd.worker.failures import MESSAGE_CHARACTERS_MAX, Permanent, failed
from feltd.worker.runtimes.process import STDERR_BYTES_KEPT
from tests.worker.programs import failure, run, with_key

CONTRACT = {
    "FELTD_WORKLOAD_ID", "FELTD_ATTEMPT", "FELTD_FENCING_TOKEN", "FELTD_EXPIRES_AT_MS",
    "FELTD_CHECKPOINT",
}  # fmt: skip
#: What a shell sets for itself.
OWN = {"PWD", "OLDPWD", "SHLVL", "_"}
AROUND = pytest.mark.parametrize(
    "around",
    [
        {},
        pytest.param({"network_policy": "none"}, marks=pytest.mark.needs("bwrap")),
        pytest.param({"filesystem_policy": "scratch"}, marks=pytest.mark.needs("bwrap")),
    ],
    ids=["plain", "alone", "closed"],
)


def environment(**members: Any) -> dict[str, str]:
    """What a program finds in its environment."""
    lines = str(run("env", **members)).splitlines()
    return dict(line.split("=", 1) for line in lines)


@AROUND
def test_none_is_the_contract_and_what_a_program_needs_to_run(
    around: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_key(monkeypatch)
    seen = environment(secret_policy="none", **around)

    assert set(seen) - OWN - {"TMPDIR"} == CONTRACT | {"PATH", "LANG", "HOME"}
    assert seen["PATH"] == "/usr/local/bin:/usr/bin:/bin"
    assert "hunter2" not in str(seen)


@AROUND
def test_inherit_is_everything_but_the_key(
    around: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_key(monkeypatch)
    seen = environment(**around)

    assert seen["DATABASE_URL"] == "postgres://me:hunter2@db"
    assert set(seen) > CONTRACT
    assert "FELTD_KEY" not in seen
    assert "felt_s_the_key" not in str(seen)


@pytest.mark.needs("bwrap")
def test_the_worker_is_not_there_to_be_read_from_a_sandbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_key(monkeypatch)
    seen = run("cat /proc/*/environ | tr '\\0' '\\n'", secret_policy="none", network_policy="none")

    assert "hunter2" not in seen


def test_the_environment_of_a_worker_is_not_for_others_of_its_user() -> None:
    """Outside a sandbox /proc would show it to the program, key and all."""
    asked = (
        "import ctypes; from feltd.worker.runtimes.process import ProcessRuntime; "
        "ProcessRuntime('true'); print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    )
    ran = subprocess.run([sys.executable, "-c", asked], capture_output=True, check=True)

    assert ran.stdout.strip() == b"0"


#: As it would be cut by someone who cuts first: half of it before the edge.
@pytest.mark.parametrize("overhang", [1, 7, 20])
@pytest.mark.parametrize(
    "secret", ["password=hunter2hunter2hunter2", "Authorization: Bearer hunter2hunter2hunter2"]
)
def test_a_secret_on_the_edge_of_what_is_shown_is_covered(secret: str, overhang: int) -> None:
    rest = "\n" + "x" * (STDERR_BYTES_MAX - len(secret) - 1 + overhang)
    with pytest.raises(Permanent) as failing:
        outcome(1, b"", f"noise\n{secret}{rest}".encode())

    assert "hunter2" not in str(failing.value)
    assert "unter2h" not in str(failing.value)


def test_what_was_thrown_away_while_it_ran_leaves_no_half_a_word() -> None:
    """A word that has lost its beginning is not shown: nobody can say what it was."""
    command = f"perl -e 'print STDERR q(token=) . q(hunter2) x {STDERR_BYTES_KEPT}; exit 1'"
    _, message = failure(command)

    assert message == "exit code 1"


@pytest.mark.parametrize("past", [2, 9, 15])
def test_a_message_is_covered_before_it_is_cut(past: int) -> None:
    noise = "x" * (MESSAGE_CHARACTERS_MAX - len("password=hunter2hunter2") - 1 + past)
    message = failed("execution_error", f"{noise} password=hunter2hunter2").body["message"]

    assert "hunter" not in message
    assert len(message) <= MESSAGE_CHARACTERS_MAX
