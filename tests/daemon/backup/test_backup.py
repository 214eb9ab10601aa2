"""Backups of a working daemon: one at a time, told about, audited, and never half there."""

import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from feltd.store.backup import listing
from tests.daemon.backup.conftest import (
    Asking,
    drafts,
    enlarge,
    eventually,
    folder_of,
    stopped_halfway,
)
from tests.daemon.running import Daemon, feltd, people


def reasons(daemon: Daemon) -> set[str]:
    return {one["code"] for one in daemon.get("/health")["reasons"]}


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1]
    except OSError:
        return False


def end(pids: list[int]) -> None:
    """SIGKILL, and wait for the end."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not any(alive(pid) for pid in pids))


def age(daemon: Daemon) -> float:
    lines = str(daemon.get("/metrics")).splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("feltd_backup_age"))


def test_a_backup_is_made_listed_measured_and_audited(daemon: Daemon) -> None:
    assert age(daemon) == -1
    assert daemon.get("/v1/backups")["items"] == []
    answer = daemon.call("POST", "/v1/backups")
    assert answer.status == 201, answer
    made = answer.body
    file = Path(made["path"])
    assert file.is_absolute()
    assert file.parent == folder_of(daemon)
    assert file.stat().st_size == made["bytes"]
    assert (made["verified_at_ms"] is not None, made["broken"]) == (True, [])
    assert [one.sha256 for one in listing(file.parent)] == [made["sha256"]]
    told = daemon.get("/v1/backups")
    assert (told["items"], told["running"]) == ([made], None)
    assert oct(file.parent.stat().st_mode)[-4:] == "0700"
    assert age(daemon) >= 0
    audited = [row for row in daemon.get("/v1/audit")["items"] if row["action"] == "backup"]
    assert [row["subject"] for row in audited] == [made["path"]]
    assert made["sha256"] in audited[0]["reason"]
    assert not reasons(daemon), "reading a database is no foreign write"
    daemon.stop()
    daemon.start()
    assert age(daemon) >= 0, "a start looks into the folder"


def test_those_who_ask_while_one_is_made_get_that_one(busy: Daemon) -> None:
    asking = [Asking(busy) for _ in range(4)]
    told = [one.told() for one in asking]
    assert {answer.status for answer in told} == {201}
    assert len({answer.body["path"] for answer in told}) == 1
    assert busy.call("POST", "/v1/backups").body["path"] != told[0].body["path"]


def test_a_call_that_may_not_wait_so_long_is_told_how_far_it_is(
    daemons: Callable[..., Daemon],
) -> None:
    """202 and a repeat with the same key: one backup, and its answer is kept over a restart."""
    daemon = daemons("feltd.db", "--request-deadline-ms", "100").start()
    enlarge(daemon, people(daemon))
    key = {"Idempotency_Key": "nightly"}
    seen: list[Any] = []
    answer = daemon.call("POST", "/v1/backups", **key)
    while answer.status == 202:
        seen.append(answer.body)
        assert answer.headers["retry-after"] == "1"
        answer = daemon.call("POST", "/v1/backups", **key)
    assert answer.status == 201, answer
    assert seen
    assert {one["state"] for one in seen} == {"running"}
    assert {one["phase"] for one in seen} <= {"copy", "verify", "digest"}
    assert daemon.call("POST", "/v1/backups", **key).body == answer.body
    daemon.stop()
    daemon.start()
    assert daemon.call("POST", "/v1/backups", **key).body == answer.body
    assert len(daemon.get("/v1/backups")["items"]) == 1


def test_only_who_may_read_everything_makes_or_sees_backups(busy: Daemon) -> None:
    for scopes, tenants in ((["daemon:operate"], ["*"]), (["backup:admin"], ["t"])):
        body = {"name": "one", "scopes": scopes, "tenants": tenants}
        key = busy.post("/v1/keys", body)["secret"]
        for method in ("POST", "GET"):
            answer = busy.call(method, "/v1/backups", key=key)
            assert (answer.status, answer.body["code"]) == (403, "FORBIDDEN")
    body = {"name": "two", "scopes": ["backup:admin"], "tenants": ["*"]}
    key = busy.post("/v1/keys", body)["secret"]
    assert busy.call("POST", "/v1/backups", {"path": "/etc/x"}, key=key).status == 422
    assert busy.call("POST", "/v1/backups", key=key).status == 201


def test_the_oldest_go_and_a_folder_of_its_own_is_made(
    daemons: Callable[..., Daemon], tmp_path: Path
) -> None:
    folder = tmp_path / "other" / "place"
    daemon = daemons("feltd.db", "--backup-dir", str(folder), "--backup-keep", "2").start()
    made = [daemon.post("/v1/backups")["path"] for _ in range(4)]
    assert [one["path"] for one in daemon.get("/v1/backups")["items"]] == made[:1:-1]
    first = daemon.get("/v1/backups?limit=1")
    second = daemon.get(f"/v1/backups?limit=1&cursor={first['next_cursor']}")
    assert [one["path"] for one in first["items"] + second["items"]] == made[:1:-1]
    assert second["next_cursor"] is None
    assert daemon.call("GET", "/v1/backups?cursor=made-up").status == 400
    assert sorted(str(file) for file in folder.glob("*.db")) == sorted(made[2:])


def test_a_folder_that_cannot_be_used_is_told_and_held_against_the_health(
    daemons: Callable[..., Daemon],
) -> None:
    """BC-096."""
    daemon = daemons()
    folder = folder_of(daemon)
    folder.write_text("a file")
    daemon.start()
    refused = daemon.call("POST", "/v1/backups")
    assert (refused.status, refused.body["code"]) == (503, "STORAGE_UNAVAILABLE")
    assert refused.body["committed"] is False
    assert "BACKUP_FAILED" in reasons(daemon)
    folder.unlink()
    assert daemon.call("POST", "/v1/backups").status == 201
    assert "BACKUP_FAILED" not in reasons(daemon)


def test_a_job_that_is_killed_leaves_nothing_and_the_next_one_works(busy: Daemon) -> None:
    """BC-076: no file with a final name."""
    asking, pids = stopped_halfway(busy)
    end(pids)
    refused = asking.told()
    assert (refused.status, refused.body["code"]) == (503, "STORAGE_UNAVAILABLE")
    assert "BACKUP_FAILED" in reasons(busy)
    assert (drafts(busy), listing(folder_of(busy))) == ([], ())
    assert busy.call("POST", "/v1/backups").status == 201
    assert "BACKUP_FAILED" not in reasons(busy)


def test_a_daemon_that_is_killed_takes_its_unfinished_backup_with_it(busy: Daemon) -> None:
    _asking, pids = stopped_halfway(busy)
    busy.kill()
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: not drafts(busy))
    assert not list(folder_of(busy).glob("*.db"))


def test_what_a_power_cut_leaves_is_cleared_by_the_next_start(busy: Daemon) -> None:
    _asking, pids = stopped_halfway(busy)
    busy.kill()
    end(pids)
    assert drafts(busy)
    busy.start()
    assert drafts(busy) == []
    assert busy.get("/v1/backups")["items"] == []
    assert busy.call("POST", "/v1/backups").status == 201


def test_a_stop_gives_an_unfinished_backup_up_in_time(busy: Daemon) -> None:
    """Even one whose process hangs."""
    asking, pids = stopped_halfway(busy)
    assert busy.stop() == 0
    assert drafts(busy) == []
    eventually(lambda: not any(alive(pid) for pid in pids))
    refused = asking.answer
    assert refused is None or refused.status == 503
    assert busy.check().returncode == 0


def test_a_copy_on_which_a_promise_is_broken_is_kept_and_says_so(
    daemons: Callable[..., Daemon],
) -> None:
    """It may be the best there is; it is never counted as verified."""
    daemon = daemons()
    sql = "UPDATE ledger SET audit_hash = 'made up'"  # an edit by hand

    with closing(sqlite3.connect(daemon.data)) as shell:
        shell.execute(sql)
        shell.commit()
    ran = feltd("backup", "create", "--data", str(daemon.data))
    assert ran.returncode == 1
    assert "BROKEN I20" in ran.stderr
    found = listing(folder_of(daemon))
    assert [one.verified_at_ms for one in found] == [None]
    verified = feltd("backup", "verify", found[0].path)
    assert (verified.returncode, "BROKEN I20" in verified.stderr) == (1, True)
