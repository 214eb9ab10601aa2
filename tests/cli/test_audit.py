"""`feltd audit`: who did what, for people; and the whole chain as lines that can be checked."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from feltd.cli import audit
from tests.daemon.running import FELTD, Daemon, feltd, people


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(tmp_path_factory.mktemp("audit") / "feltd.db", "--tick-ms", "200")
    running.init().start()
    people(running)
    yield running
    running.close()


def said(daemon: Daemon, *arguments: str) -> list[str]:
    ran = feltd("audit", "--data", str(daemon.data), *arguments)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_the_last_deeds_are_shown_oldest_first(daemon: Daemon) -> None:
    key_id = daemon.post("/v1/keys", {"name": "mine", "tenants": ["t"]})["key_id"]
    lines = said(daemon)
    assert lines[-1].endswith(f"create_key  {key_id}")
    numbers = [int(line.split("  ")[1]) for line in lines]
    assert numbers == sorted(numbers)
    assert said(daemon, "--subject", key_id) == [lines[-1]]
    assert said(daemon, "--action", "nothing") == []
    assert said(daemon, "--after", str(numbers[-1])) == []


def test_the_whole_chain_as_lines_is_a_mirror(daemon: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_text("\n".join(said(daemon, "--after", "0", "--all", "--json")) + "\n")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    ran = feltd("check", "--data", str(daemon.data), "--audit", str(file))
    assert ran.returncode == 0, ran.stdout
    assert "MIRROR       held   the database tells what its audit file tells" in ran.stdout


def test_it_follows_what_comes(daemon: Daemon) -> None:
    with subprocess.Popen(
        (*FELTD, "audit", "--data", str(daemon.data), "--follow", "--action", "revoke_key"),
        stdout=subprocess.PIPE,
        text=True,
    ) as following:
        assert following.stdout is not None
        key_id = daemon.post("/v1/keys", {"name": "short", "tenants": ["t"]})["key_id"]
        daemon.call("DELETE", f"/v1/keys/{key_id}")
        line = following.stdout.readline()
        following.terminate()
    assert line.rstrip().endswith(f"revoke_key  {key_id}")


def test_a_row_is_a_line_for_a_person() -> None:
    row = {
        "seq": 7,
        "kind": "act",
        "wall_at_ms": 1_790_000_000_000,
        "actor": "human:ann",
        "action": "drain",
        "subject": "worker_1",
        "reason": "the disk\nis full",
    }
    assert audit.line(row) == (
        "2026-09-21 14:13:20.000Z  7  human:ann  drain  worker_1  “the disk is full”"
    )
    commit = {"kind": "commit", "first_event_seq": 3, "last_event_seq": 5}
    assert audit.line(row | commit).endswith("commit  events 3 to 5")
