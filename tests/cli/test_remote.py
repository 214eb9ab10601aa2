"""Operators and submitters at work: the same commands by address and by the local socket."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Typed
from tests.daemon.running import FELTD, Daemon


def test_an_enrolled_worker_does_work_and_is_drained_by_the_operator(
    local: Typed, daemon: Daemon, tmp_path: Path
) -> None:
    """The three shells of the README."""
    (tmp_path / "hello.py").write_text(
        "from feltd.worker import Context, Worker\n"
        "worker = Worker()\n"
        "@worker.handles('greet')\n"
        "def greet(ctx: Context) -> dict:\n"
        "    ctx.checkpoint({'seen': ctx.input['name']})\n"
        "    ctx.log('hello')\n"
        "    return {'text': f\"hello {ctx.input['name']}\", 'fence': ctx.fence}\n"
    )
    of = ("--tenant", "acme", "--application", "docs")
    enrolled = local("enroll", *of, "--capability", "greet", "--key-file", "worker.key")
    assert enrolled.returncode == 0, enrolled.stderr
    key_file = tmp_path / "worker.key"
    assert key_file.stat().st_mode & 0o777 == 0o600
    assert key_file.read_text().strip() not in enrolled.stdout + enrolled.stderr

    process = subprocess.Popen(
        (*FELTD, "worker", "run", "hello:worker", "--name", "edge-1"), cwd=tmp_path,
        env=local.env | {"FELTD_URL": daemon.url, "FELTD_KEY": key_file.read_text()},
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        made = local.json(
            "workload", "create", "greet", *of, "--key", "first",
            "--capability", "greet", "--input", '{"name": "felt"}', "--wait",
        )  # fmt: skip
        again = local.ok(
            "workload", "create", "greet", *of, "--key", "first",
            "--capability", "greet", "--input", '{"name": "felt"}',
        )  # fmt: skip
        assert made["state"] == "COMPLETED"
        assert made["result"]["output"]["text"] == "hello felt"
        assert again.strip() == made["workload_id"]
        _look(local, made["workload_id"])
        assert "nothing is left" in local.ok("worker", "drain", "edge-1", "--wait")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()
    assert "OFFLINE" in local.ok("worker", "show", "edge-1")
    assert "RECOVERING" in local.ok("worker", "resume", "edge-1")
    assert "was removed" in local.ok("worker", "remove", "edge-1")


def _look(local: Typed, workload_id: str) -> None:
    """What was done can be seen in each list."""
    of = ("--tenant", "acme", "--application", "docs")
    assert workload_id in local.ok("workload", "list", "--state", "COMPLETED")
    assert "completed" in local.ok("workload", "show", workload_id)
    assert "hello" in local.ok("workload", "logs", workload_id)
    watched = local.ok("workload", "watch", workload_id)
    assert "complete" in watched.splitlines()[-1]
    claims = local.json("claim", "list", "--workload", workload_id)
    assert [one["end"] for one in claims] == ["completed"]
    heading, row = local.ok("worker", "list", *of).splitlines()
    assert dict(zip(heading.split("\t"), row.split("\t"), strict=True))["name"] == "edge-1"


def test_a_key_is_made_shown_once_rotated_and_revoked(
    local: Typed, away: Callable[[str], Typed]
) -> None:
    said = local.ok("keys", "create", "--name", "ci", "--tenant", "t1", "--for", "viewer")
    first, secret = said.splitlines()
    key_id = secret.split("_")[2]
    assert first == f"API key created (id: {key_id}). This secret will not be shown again:"
    assert away(secret)("workload", "list").returncode == 0
    assert secret not in local.ok("keys", "list", "--json")

    made = local.json("keys", "rotate", "--id", key_id, "--overlap", "0s")
    assert away(made["secret"])("workload", "list").returncode == 0
    assert away(secret)("workload", "list").returncode == 1
    assert local.ok("keys", "revoke", "--id", made["key_id"]) == (
        f"API key revoked: {made['key_id']}\n"
    )
    ended = away(made["secret"])("workload", "list")
    assert ended.returncode == 1
    assert ended.stderr.startswith("UNAUTHENTICATED: ")


def test_a_key_is_never_written_over_a_file_that_is_there(local: Typed, tmp_path: Path) -> None:
    (tmp_path / "there.key").write_text("mine\n")
    before = len(local.json("keys", "list"))
    ran = local("keys", "create", "--name", "x", "--tenant", "t", "--key-file", "there.key")

    assert ran.returncode == 2
    assert (tmp_path / "there.key").read_text() == "mine\n"
    assert len(local.json("keys", "list")) == before


def test_a_grant_is_issued_extended_narrowed_and_revoked(local: Typed) -> None:
    issued = local.json(
        "grants", "issue", "--subject", "service:ci", "--tenant", "t2", "--application", "a",
        "--capability", "workload:capability:x", "--capability", "workload:capability:y",
        "--resource", "flow://a/*", "--expires", "10d",
    )  # fmt: skip
    grant_id = issued["grant"]["id"]
    child = local.json(
        "grants", "attenuate", grant_id, "--subject", "agent:helper",
        "--capability", "workload:capability:x", "--expires", "1h",
    )  # fmt: skip
    assert child["grant"]["parent_grant"] == grant_id
    later = local.json("grants", "extend", grant_id, "--expires", "20d")
    assert later["grant"]["expires_at_ms"] > issued["grant"]["expires_at_ms"]
    assert later["grant"]["capabilities"] == issued["grant"]["capabilities"]
    assert issued["token"].split(".")[0] in local.ok("grants", "show", grant_id)
    assert grant_id in local.ok("grants", "list", "--tenant", "t2")
    assert local.ok("grants", "revoke", grant_id, "--reason", "done").startswith("grant revoked")
    assert local.json("grants", "show", child["grant"]["id"])["grant"]["chain_live"] is False


def test_work_is_cancelled_requeued_and_evicted_by_hand(local: Typed) -> None:
    of = ("--tenant", "t3", "--application", "a")
    job = local.ok("workload", "create", "x", *of, "--input", "-", given='{"n": 1}').strip()
    assert local.json("workload", "show", job)["input"] == {"n": 1}
    assert local.ok("workload", "cancel", job) == f"{job} is CANCELLED\n"
    refused = local("workload", "requeue", job)
    assert refused.returncode == 1
    assert refused.stderr.startswith("WORKLOAD_TRANSITION_DENIED")
    assert local("claim", "evict", "claim_1", "--reason", "x").returncode == 1
    waited = local("workload", "watch", job)
    assert waited.returncode == 1


def test_keys_and_grants_can_be_made_before_the_first_start(tmp_path: Path) -> None:
    typed = Typed(tmp_path)
    typed.ok("init", "--data", "new.db")
    of = ("--data", "new.db", "--tenant", "acme", "--application", "docs")
    typed.ok("enroll", *of, "--capability", "x", "--key-file", "w.key")
    assert len(json.loads(typed.ok("keys", "list", "--data", "new.db", "--json"))) == 2
    held = Daemon(tmp_path / "new.db").start()
    try:
        (tmp_path / "new.db.sock").unlink()
        ran = typed("keys", "list", "--data", "new.db")
        assert ran.returncode == 75
        assert f"in use by process {held.pid}" in ran.stderr
    finally:
        held.close()


def test_pipes_get_plain_lines_and_json_gets_nothing_else(local: Typed) -> None:
    plain = local.ok("keys", "list")
    assert plain.splitlines()[0].split("\t")[0] == "key_id"
    assert "\x1b" not in plain
    assert isinstance(local.json("keys", "list"), list)
    none = local("claim", "list", "--worker", "worker_000000000000000000000000")
    assert (none.returncode, none.stdout, none.stderr) == (0, "", "no claims\n")
