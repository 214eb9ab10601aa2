"""The mesh on one screen: what it shows of real work, at any width, and how it ends."""

import json
import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Callable, Iterator

import pytest

from feltd.cli.top.sample import Bar, Look, Waits, Watch
from feltd.cli.top.screen import lines
from feltd.worker.client import Client
from tests.cli.conftest import Typed
from tests.daemon.running import FELTD, PATIENCE_S, Daemon, Edge, create, people

HOSTILE = "edge\x1b[2J\r\n‮"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon that nobody else works with."""
    made = Daemon(tmp_path_factory.mktemp("top") / "feltd.db", "--tick-ms", "100").init().start()
    yield made
    made.close()


def look(**more: object) -> Look:
    told: dict[str, object] = {
        "url": "http://127.0.0.1:7610", "status": "degraded", "version": "1", "uptime_ms": 90_000,
        "reasons": ["DISK_LOW: 9 bytes"],
        "workloads": {"READY": 3, "RUNNING": 1, "DEAD_LETTERED": 2},
        "rates": {"claims": 1.5, "completed": 1, "ended otherwise": 0, "calls": 9},
        "oldest": Waits(
            kind="t/a extract", ready=3, waited_ms=180_000, code="NO_MATCH",
            detail="no worker offers it", remedy="start one",
        ),
        "workers": [
            Bar(
                name=f"edge-{number}", tenant_id="t", lifecycle="READY", active=number,
                concurrency=40, quarantined=False, draining=False, seen_ms_ago=1_000,
            )
            for number in range(40)
        ],
    }  # fmt: skip
    return Look(**(told | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(("width", "height"), [(200, 60), (80, 24), (40, 12), (10, 3), (1, 1)])
def test_nothing_is_wider_or_longer_than_the_terminal(width: int, height: int) -> None:
    drawn = lines(look(), width, height, "q ends")
    assert len(drawn) <= height
    assert all(line.cell_len <= width for line in drawn)


def test_what_does_not_fit_is_told() -> None:
    drawn = [line.plain for line in lines(look(), 120, 24, "q ends")]
    assert drawn[0].startswith("feltd 1 at http://127.0.0.1:7610  degraded")
    assert "NO_MATCH, no worker offers it -> start one" in " ".join(drawn)
    assert drawn[-1].endswith("workers more; q ends")
    shown = sum(line.startswith("edge-") for line in drawn)
    assert drawn[-1].startswith(f"{40 - shown} workers more")


def test_a_name_cannot_move_the_cursor() -> None:
    hostile = Bar(
        name=HOSTILE, tenant_id=HOSTILE, lifecycle="READY", active=1, concurrency=1,
        quarantined=True, draining=False, seen_ms_ago=None,
    )  # fmt: skip
    text = "\n".join(line.plain for line in lines(look(workers=[hostile]), 120, 40))
    assert "\x1b" not in text
    assert "\r" not in text
    assert "QUARANTINED" in text


def test_one_look_at_real_work(daemon: Daemon, local: Typed, away: Callable[[str], Typed]) -> None:
    mesh = people(daemon)
    edge = Edge(daemon, "top-1", mesh.registrar_key, capabilities=["documents.extract"])
    edge.beat()
    create(daemon, mesh, "top-running")
    assert len(edge.pull(start=True)) == 1
    create(
        daemon,
        mesh,
        "top-waiting",
        definition_id="nobody.does",
        placement={"required_labels": {"gpu": "yes"}},
    )

    told = local.ok("top", "--once")
    assert " at " in told.splitlines()[0]
    assert "running 1" in told
    [line] = [line for line in told.splitlines() if line.startswith("top-1")]
    assert "1/8" in line
    assert "nobody.does waits" in told

    found = local.json("top")
    assert found["oldest"]["kind"].endswith("nobody.does")
    assert found["workloads"]["READY"] == 1

    # Without a terminal it is one look as well, and a key with less sees less.
    key = daemon.post("/v1/keys", {"name": "w", "scopes": ["workers:read"], "tenants": ["t"]})
    told = away(key["secret"]).ok("top")
    assert "top-1" in told
    assert "no metrics: FORBIDDEN" in told


def test_rates_are_those_of_the_last_half_minute(daemon: Daemon) -> None:
    at_s = 0.0
    with Client(daemon.url, daemon.key) as client:
        watch = Watch(client, daemon.url, lambda: at_s)
        assert watch.look().rates == {}
        at_s = 10.0
        for _ in range(20):
            client.health()
        rates = watch.look().rates
    assert 2.0 <= rates["calls"] < 4.0
    assert rates["sheds"] == 0.0


def test_it_runs_until_q_and_leaves_the_terminal_as_it_was(daemon: Daemon) -> None:
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    env = {name: text for name, text in os.environ.items() if not name.startswith("FELTD_")}
    running = subprocess.Popen(
        (*FELTD, "top", "--every", "200ms", "--data", str(daemon.data)),
        stdin=slave, stdout=slave, stderr=slave, env=env | {"TERM": "xterm", "COLUMNS": "60"},
    )  # fmt: skip
    try:
        seen = read_until(master, b"workers (")
        assert b"\x1b[?1049h" in seen
        os.write(master, b"q")
        assert running.wait(PATIENCE_S) == 0
    finally:
        running.kill()
        running.wait()
        after = termios.tcgetattr(slave)
        os.close(slave)
        os.close(master)
    assert after == before


def read_until(master: int, wanted: bytes) -> bytes:
    seen, ends_s = b"", time.monotonic() + PATIENCE_S
    while wanted not in seen:
        ready, _, _ = select.select([master], [], [], max(0.0, ends_s - time.monotonic()))
        assert ready, seen
        seen += os.read(master, 65_536)
    return seen


def test_a_pace_that_would_be_a_load_is_refused(local: Typed) -> None:
    ran = local("top", "--every", "1ms")
    assert ran.returncode == 2
    assert json.dumps("--every")[1:-1] in ran.stderr
