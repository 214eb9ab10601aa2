"""`feltd events` and `feltd workload timeline`, as a person and as a script use them."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import daemons
from tests.daemon.running import FELTD, PATIENCE_S, Daemon, Edge, Mesh, create, feltd, people

__all__ = ["daemons"]


@pytest.fixture
def daemon(daemons: Callable[..., Daemon]) -> Daemon:
    """One whose feed is the story's own."""
    return daemons().start()


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One for stories that do not look at the numbers; three events have happened."""
    running = Daemon(tmp_path_factory.mktemp("calm") / "feltd.db").init().start()
    crew = people(running)
    for number in range(3):
        create(running, crew, f"job-{number}")
    yield running
    running.close()


@pytest.fixture
def crew(daemon: Daemon) -> Mesh:
    return people(daemon)


@pytest.fixture
def follow(daemon: Daemon, tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts `feltd events --follow`; whatever still runs ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*flags: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            (*FELTD, "events", "--follow", *flags),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"FELTD_DATA": str(daemon.data)},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ran(daemon: Daemon, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return feltd(*arguments, "--data", str(daemon.data))


def kinds(text: str) -> list[str]:
    return [json.loads(line)["kind"] for line in text.splitlines()]


def until(done: Callable[[], Any], what: str) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < ends, f"never: {what}"
        time.sleep(0.05)


def lines(path: Path) -> list[dict[str, Any]]:
    """The events a program was given, as far as they are whole."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def test_events_are_lines_for_people_and_json_for_programs(daemon: Daemon, crew: Mesh) -> None:
    job = create(daemon, crew, "one")["workload_id"]
    create(daemon, crew, "two")

    told = ran(daemon, "events").stdout.splitlines()
    assert re.search(rf"Z  1  create  READY  {job}  by service:crew$", told[0])
    assert kinds(ran(daemon, "events", "--json").stdout) == ["create", "create"]
    assert kinds(ran(daemon, "events", "--json", "--after", "1").stdout) == ["create"]
    assert ran(daemon, "events", "--kind", "complete").stdout == ""
    assert ran(daemon, "events", "--after", "now").stdout == ""


@pytest.mark.parametrize("after", ["x", "-1", "1.5", "٣"])
def test_a_beginning_that_is_none_is_a_usage_error(calm: Daemon, after: str) -> None:
    found = ran(calm, "events", "--after", after)

    assert found.returncode == 2
    assert "--after takes the number of an event, or now" in found.stderr


def test_a_number_that_is_not_in_the_feed_ends_with_what_helps(calm: Daemon) -> None:
    found = ran(calm, "events", "--after", "4711")

    assert found.returncode == 1
    assert "EVENTS_COMPACTED" in found.stderr
    assert "--after now" in found.stderr


def test_a_follower_goes_on_through_a_restart(
    daemon: Daemon, crew: Mesh, follow: Callable[..., Any]
) -> None:
    follower = follow("--json")
    create(daemon, crew, "before")
    assert kinds(follower.stdout.readline()) == ["create"]
    daemon.kill()
    daemon.start()
    job = create(daemon, crew, "after")["workload_id"]

    assert json.loads(follower.stdout.readline())["workload_id"] == job


def test_a_program_gets_each_event_and_a_killed_follower_loses_none(
    daemon: Daemon, crew: Mesh, follow: Callable[..., Any], tmp_path: Path
) -> None:
    out, cursor = tmp_path / "out", tmp_path / "cursor"
    command = f"cat >> {out}"
    for part in range(4):
        follower = follow("--exec", command, "--cursor", str(cursor))
        for number in range(10):
            create(daemon, crew, f"job-{part}-{number}")
        enough = part * 10 + 5
        until(lambda enough=enough: len(lines(out)) >= enough, "some were given")  # type: ignore[misc]
        follower.send_signal(signal.SIGKILL)
        follower.wait()
    last = follow("--exec", command, "--cursor", str(cursor))
    # One more, so that it is surely the last follower that has come to the end.
    create(daemon, crew, "job-after")

    until(lambda: cursor.read_text() == "41\n", "all are acknowledged")
    last.send_signal(signal.SIGINT)
    assert last.wait(PATIENCE_S) == 130
    given = [event["seq"] for event in lines(out)]
    assert sorted(set(given)) == list(range(1, 42))
    # Each end may have one event given twice, in its place.
    assert given == sorted(given)
    assert len(given) <= 45


def test_a_program_that_fails_keeps_its_event(calm: Daemon, tmp_path: Path) -> None:
    out, cursor = tmp_path / "out", tmp_path / "cursor"
    picky = f"cat >> {out}; echo $FELTD_EVENT_KIND >&2; test $FELTD_EVENT_SEQ -ne 2"

    found = ran(calm, "events", "--exec", picky, "--cursor", str(cursor))
    assert found.returncode == 1
    assert "exit code 1 on event 2 (create)" in found.stderr
    assert cursor.read_text() == "1\n"

    assert ran(calm, "events", "--exec", f"cat >> {out}", "--cursor", str(cursor)).returncode == 0
    assert [event["seq"] for event in lines(out)] == [1, 2, 2, 3]
    assert cursor.read_text() == "3\n"


def test_a_program_may_ask_for_the_same_event_again(
    daemon: Daemon, crew: Mesh, tmp_path: Path
) -> None:
    out, once = tmp_path / "out", tmp_path / "once"
    create(daemon, crew, "job")
    command = f"cat >> {out}; test -e {once} || {{ touch {once}; exit 75; }}"

    assert ran(daemon, "events", "--exec", command).returncode == 0
    assert [event["seq"] for event in lines(out)] == [1, 1]


def test_a_program_of_one_kind_passes_the_others_by(
    daemon: Daemon, crew: Mesh, tmp_path: Path
) -> None:
    edge = Edge(daemon, "edge", crew.registrar_key)
    edge.beat()
    create(daemon, crew, "job")
    [claim] = edge.pull(start=True)
    edge.fenced("complete", claim)
    out = tmp_path / "out"

    found = ran(daemon, "events", "--kind", "complete", "--exec", f"cat >> {out}")

    assert found.returncode == 0
    assert [event["to"] for event in lines(out)] == ["COMPLETED"]


@pytest.mark.parametrize("text", ["", "x", "-1", "1 2"])
def test_a_cursor_file_that_holds_no_number_is_not_begun_anew(
    calm: Daemon, tmp_path: Path, text: str
) -> None:
    cursor = tmp_path / "cursor"
    cursor.write_text(text)

    found = ran(calm, "events", "--cursor", str(cursor))

    assert found.returncode == 1
    assert "holds no number of an event" in found.stderr
    assert cursor.read_text() == text


def test_a_cursor_that_cannot_be_written_is_said(calm: Daemon) -> None:
    found = ran(calm, "events", "--cursor", "/nowhere/cursor")

    assert found.returncode == 1
    assert "/nowhere/cursor cannot be written" in found.stderr


def test_a_timeline_tells_a_whole_life(daemon: Daemon, crew: Mesh) -> None:
    edge = Edge(daemon, "edge", crew.registrar_key)
    edge.beat()
    policy = {"max_attempts": 2, "initial_backoff_ms": 0}
    job = create(daemon, crew, "job", retry_policy=policy)["workload_id"]
    for verb, body in (("fail", {"kind": "transient", "message": "no"}), ("complete", {})):
        [claim] = edge.pull(start=True, wait_ms=20_000)
        edge.fenced(verb, claim, **body)

    found = ran(daemon, "workload", "timeline", job)

    rows = [line.split("\t") for line in found.stdout.splitlines()]
    heading = rows[0]
    told = [dict(zip(heading, row, strict=True)) for row in rows[1:]]
    assert [row["what"] for row in told] == [
        "create", "claim", "start", "fail", "claim", "start", "complete",
    ]  # fmt: skip
    assert [row["attempt"] for row in told] == ["", "1", "1", "1", "2", "2", "2"]
    assert told[3]["state"] == "RUNNING → READY"
    assert told[3]["end"] == "transient"
    assert all(re.fullmatch(r"\d+\.\d{3}s", row["after"]) for row in told)
    as_json = json.loads(ran(daemon, "workload", "timeline", job, "--json").stdout)
    assert [event["kind"] for event in as_json] == [row["what"] for row in told]


def test_a_timeline_of_nothing_is_refused(calm: Daemon) -> None:
    found = ran(calm, "workload", "timeline", "workload_none")

    assert found.returncode == 1
    assert "WORKLOAD_NOT_FOUND" in found.stderr
