"""How handlers fail, and that no failure is lost on its way."""

import pytest

from tests.worker.crew import Crew

ONCE = {"max_attempts": 1}
SOON = {"initial_backoff_ms": 50, "jitter": 0}


def test_transient_failures_and_lost_connections_are_tried_again(crew: Crew) -> None:
    crew.start()
    job = crew.work("flaky", retry_policy=SOON)

    assert crew.final(job)["result"]["output"] == "third time"
    assert crew.ends(job) == ["transient", "transient", "completed"]


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("permanent", "no_such_page", "never"),
        ("other", "execution_error", "KeyError: 'page'"),
        ("unserialisable", "execution_error", "not JSON"),
        ("deep", "execution_error", "the result was refused"),
        ("bad_kind", "execution_error", "refused"),
    ],
)
def test_each_way_to_fail_is_told_in_its_own_words(
    crew: Crew, how: str, kind: str, said: str
) -> None:
    crew.start()
    done = crew.final(crew.work("broken", {"how": how}))

    assert done["state"] == "DEAD_LETTERED"
    assert done["failure"]["kind"] == kind
    assert said in done["failure"]["message"]


def test_a_failure_that_names_a_secret_is_told_without_it(crew: Crew) -> None:
    """WORKLOAD_SECRET_IN_TEXT is answered by sending the failure again, to be redacted."""
    crew.start()
    done = crew.final(crew.work("broken", {"how": "secret"}))

    assert done["failure"]["kind"] == "execution_error"
    assert "redacted" in done["failure"]["message"]
    assert "hunter2" not in done["failure"]["message"]
    crew.until(lambda: "failed broken" in crew.log(), "the failure is logged")
    assert f"execution_error: (its text, redacted: feltd workload show {done['workload_id']})" in (
        crew.log()
    )
    assert "hunter2" not in crew.log()


def test_an_unforeseen_error_names_transient_in_the_log(crew: Crew) -> None:
    crew.start()
    crew.final(crew.work("broken", {"how": "other"}))

    crew.until(lambda: "Transient" in crew.log(), "the hint is logged")
    assert "execution_error: KeyError: 'page'" in crew.log()


def test_what_nobody_handles_is_not_taken(crew: Crew) -> None:
    crew.start()
    other = crew.work("somebody_elses")
    crew.final(crew.work("echo"))

    assert crew.state(other) == "READY"


def test_a_program_is_a_handler(crew: Crew) -> None:
    """--exec: input on stdin, output from stdout, the fence in the environment, no key."""
    crew.start(
        "w", "--exec",
        'python3 -c \'import json,os,sys; print(json.dumps({"given": json.load(sys.stdin), '
        '"env": {k: v for k, v in os.environ.items() if k.startswith("FELTD_")}}))\'',
    )  # fmt: skip
    done = crew.final(crew.work("anything", {"page": 3}))
    output = done["result"]["output"]

    assert output["given"] == {"page": 3}
    assert output["env"]["FELTD_WORKLOAD_ID"] == done["workload_id"]
    assert output["env"]["FELTD_FENCING_TOKEN"] == str(done["fencing_token"])
    assert output["env"]["FELTD_ATTEMPT"] == "1"
    assert int(output["env"]["FELTD_EXPIRES_AT_MS"]) > 0
    assert output["env"]["FELTD_CHECKPOINT"]
    assert "FELTD_KEY" not in output["env"]


@pytest.mark.parametrize(
    ("command", "kind", "said"),
    [
        ("echo trouble >&2; exit 75", "transient", "trouble"),
        ("echo the page is torn >&2; exit 3", "execution_error", "exit code 3: the page is torn"),
        ("echo api_key=abcdefgh12345 >&2; exit 1", "execution_error", "redacted"),
        ("kill -9 $$", "execution_error", "killed by signal 9"),
        ("head -c 900000 /dev/zero | tr '\\0' x", "execution_error", "stdout is over"),
    ],
)
def test_a_programs_exit_code_decides(crew: Crew, command: str, kind: str, said: str) -> None:
    crew.start("w", "--exec", command)
    done = crew.final(crew.work("anything", retry_policy=ONCE))

    assert done["failure"]["kind"] == kind
    assert said in done["failure"]["message"]


def test_a_program_that_prints_no_json_completes_with_a_string(crew: Crew) -> None:
    crew.start("w", "--exec", "tr a-z A-Z")

    assert crew.final(crew.work("shout", "hello"))["result"]["output"] == "HELLO"


def test_a_program_goes_on_from_the_checkpoint_an_earlier_attempt_wrote(crew: Crew) -> None:
    crew.start(
        "w", "--exec",
        'if [ -e "$FELTD_CHECKPOINT" ]; then cat "$FELTD_CHECKPOINT"; '
        'else echo \'{"done": 1}\' > "$FELTD_CHECKPOINT"; exit 75; fi',
    )  # fmt: skip
    done = crew.final(crew.work("anything", retry_policy=SOON))

    assert done["result"]["output"] == {"done": 1}
    assert done["checkpoint"] == {"done": 1}


def test_a_program_and_its_children_are_ended_when_the_work_is_cancelled(crew: Crew) -> None:
    pids = crew.folder / "pid"
    crew.start("w", "--exec", f"sleep 300 & echo $! > {pids}; wait")
    job = crew.work("anything")
    crew.until(lambda: pids.exists() and pids.read_text().strip(), "it runs")
    crew.client.cancel(job)

    assert crew.final(job)["state"] == "CANCELLED"
    crew.until(lambda: not _alive(int(pids.read_text())), "the child is gone")


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split()[2] != "Z"
    except FileNotFoundError:
        return False
