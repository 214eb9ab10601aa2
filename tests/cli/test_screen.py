"""What a person sees on a terminal: rows that stay rows, times that are called times."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from typing import Any

import pytest

from feltd.cli import workload
from feltd.clock import wall_ms
from tests.cli.conftest import Typed
from tests.daemon.running import FELTD, Daemon

OF = ("--tenant", "screen", "--application", "docs")


def screen(typed: Typed, *words: str, columns: int = 80) -> str:
    """What a command prints on a terminal of that width, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        (*FELTD, *words), cwd=typed.folder, env=typed.env | {"TERM": "xterm"},
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    try:
        while read := os.read(ours, 65_536):
            seen += read
    except OSError:
        pass  # the terminal of a process that has ended
    os.close(ours)
    assert process.wait(60) == 0, seen
    return re.sub(r"\x1b\[[0-9;]*m", "", seen.decode()).replace("\r\n", "\n")


def registered(daemon: Daemon, local: Typed) -> dict[str, Any]:
    """A worker of a long name, with everything a row shows."""
    key = local.json("enroll", *OF, "--capability", "extract")["secret"]
    body = {
        "name": "a-worker-whose-name-fills-the-line-1",
        "runtime": "process",
        "version": "1",
        "capacity": {"concurrency": 4},
        "issue_key": True,
    }
    made: dict[str, Any] = daemon.post("/v1/workers", body, key=key)
    return made


def test_a_row_is_a_line_however_narrow_the_terminal(local: Typed, daemon: Daemon) -> None:
    made = registered(daemon, local)
    worker, key = made["worker"], made["worker_key"]
    beat = {name: worker[name] for name in ("worker_id", "version", "capability_version")}
    beat |= {"capacity": {"concurrency": 4}, "health": "HEALTHY"}
    daemon.post(f"/v1/workers/{worker['worker_id']}/heartbeat", beat, key=key)
    job = local.ok("workload", "create", "extract", *OF).strip()
    pull = {"max": 1, "request_id": "one"}
    [claim] = daemon.post(f"/v1/workers/{worker['worker_id']}/claims", pull, key=key)["claims"]

    [heading, row] = screen(local, "worker", "list", "--tenant", "screen").splitlines()
    assert heading.split()[:3] == ["worker_id", "name", "application"]
    assert row.split()[:5] == [worker["worker_id"], worker["name"], "docs", "READY", "HEALTHY"]
    [heading, row] = screen(local, "claim", "list", "--workload", job, columns=40).splitlines()
    assert heading.split()[-1] == "state"
    assert row.split()[:3] == [claim["claim_id"], job, worker["worker_id"]]
    assert row.split()[-1] == "CLAIMED"


def test_foreign_text_cannot_move_the_cursor(local: Typed, daemon: Daemon) -> None:
    worker_id = registered(daemon, local)["worker"]["worker_id"]
    local.ok("worker", "drain", worker_id, "--reason", "up\x1b[2Aand away")

    assert "\x1b" not in screen(local, "worker", "list", "--tenant", "screen")
    assert "up [2Aand away" in screen(local, "worker", "list", "--tenant", "screen")


def test_a_time_is_not_called_milliseconds(local: Typed) -> None:
    job = local.ok("workload", "create", "nobodys", *OF).strip()
    for shown in (screen(local, "workload", "show", job), local.ok("workload", "show", job)):
        assert re.search(r"^created at\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z$", shown, re.M)
        assert "_at_ms" not in shown
    assert "created_at_ms" in local.json("workload", "show", job)


def test_waiting_work_says_what_it_waits_for(local: Typed) -> None:
    job = local.ok("workload", "create", "nobodys", *OF).strip()
    assert "a worker: none has taken it yet, see feltd why" in local.ok("workload", "show", job)
    later = local.ok("workload", "create", "nobodys", *OF, "--after", "1h").strip()
    assert "waits for\tits not_before: " in local.ok("workload", "show", later)
    local.ok("workload", "cancel", job)
    assert "waits for" not in local.ok("workload", "show", job)


@pytest.mark.parametrize(
    ("row", "waits_for"),
    [
        ({"state": "READY", "eligible_at_ms": 0}, "a worker: none has taken it yet"),
        ({"state": "READY", "attempts": [{}]}, "a worker: none has taken it again yet"),
        ({"state": "READY", "ahead_ms": 60_000, "attempts": [{}, {}]}, "backoff after attempt 2"),
        ({"state": "READY", "ahead_ms": 60_000, "not_before": True}, "its not_before"),
        ({"state": "READY", "ahead_ms": 60_000, "not_before": True, "attempts": [{}]}, "its not_b"),
        ({"state": "RUNNING", "eligible_at_ms": 0}, None),
    ],
)
def test_what_a_workload_waits_for_is_read_off_its_row(
    row: dict[str, Any], waits_for: str | None
) -> None:
    if ahead_ms := row.pop("ahead_ms", 0):
        row["eligible_at_ms"] = wall_ms() + ahead_ms
        if row.pop("not_before", False):
            row["not_before_at_ms"] = row["eligible_at_ms"]
    said = workload._waits_for(row)

    assert said is None if waits_for is None else waits_for in (said or "")
