"""The storage is full, or somebody has locked it: people still see it, and nobody is told a lie."""

import json
import sqlite3
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from tests.daemon.running import Answer, Daemon
from tests.daemon.test_storage import SmallDisk

PASSWORD = "a horse, a battery, a staple"
LOGIN = {"username": "ada", "password": PASSWORD}
PAGES = ("", "/workloads", "/workers", "/audit", "/backlog", "/events")


def form(daemon: Daemon, path: str, **fields: str) -> Answer:
    """What a form of the console answers."""
    address = urlsplit(daemon.url)
    line = HTTPConnection(address.hostname or "", address.port, timeout=30)
    sent = {
        "Authorization": f"Bearer {daemon.key}",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    try:
        line.request("POST", path, urlencode(fields), sent)
        got = line.getresponse()
        return Answer(got.status, got.read().decode(), dict(got.headers))
    finally:
        line.close()


def held(daemon: Daemon, value: str) -> Answer:
    """A hold that is placed by the console."""
    return form(
        daemon, "/console/holds", scope="definition", value=value, reason="look", tenant_id="t"
    )


def reasons(daemon: Daemon) -> set[str]:
    """Why it is not healthy."""
    return {reason["code"] for reason in daemon.get("/health")["reasons"]}


@pytest.mark.needs("unshare")
def test_a_full_disk_is_seen_by_people_and_the_mirror_goes_on_after_it(tmp_path: Path) -> None:
    """BC-078, BC-096: pages say why, logins and forms are refused, no backup takes the rest."""
    folder = tmp_path / "disk"
    daemon = SmallDisk(folder, f"--audit {folder}/audit.jsonl")
    try:
        daemon.post("/v1/users", LOGIN | {"roles": {"*": "viewer"}})
        daemon.fill()
        number = 0
        while "STORAGE_FAILING" not in reasons(daemon):
            number += 1
            path = f"/v1/collections/c/records/{number}?tenant_id=t"
            assert daemon.call("PUT", path, "x" * 99_999).status in (201, 503)
        for page in PAGES:
            answer = daemon.call("GET", f"/console{page}", Accept="text/html")
            assert answer.status == 200, (page, answer)
            assert page or "STORAGE_FAILING" in answer.body
        refused = held(daemon, "x")
        assert (refused.status, "STORAGE_FULL" in refused.body) == (503, True)
        for path, body in (("/v1/auth/login", LOGIN), ("/v1/backups", None)):
            full = daemon.call("POST", path, body)
            assert (full.status, full.body["code"]) == (503, "STORAGE_FULL"), full
        daemon.free()
        while "STORAGE_FAILING" in reasons(daemon):
            time.sleep(0.05)
        daemon.post("/v1/keys", {"name": "after", "tenants": ["t"]})
        assert daemon.call("POST", "/v1/auth/login", LOGIN, key="").status == 200
        rows = daemon.get("/v1/audit?limit=500")["items"]
        mirror = daemon.inside / "audit.jsonl"
        while mirror.read_text().count("\n") < len(rows):
            time.sleep(0.05)
        lines = [json.loads(line) for line in mirror.read_text().splitlines()]
        assert [one["hash"] for one in lines][: len(rows)] == [one["hash"] for one in rows]
        assert daemon.get("/v1/holds")["items"] == []
    finally:
        daemon.close()


def test_a_file_that_a_shell_has_locked_is_still_seen(daemons: Callable[..., Daemon]) -> None:
    """BC-066: pages answer meanwhile; what would write says that it could not, and then can."""
    daemon = daemons().start()
    daemon.post("/v1/users", LOGIN | {"roles": {"*": "viewer"}})
    shell = sqlite3.connect(daemon.data, isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")
    try:
        for page in PAGES:
            assert daemon.call("GET", f"/console{page}", Accept="text/html").status == 200, page
        refused = held(daemon, "x")
        assert (refused.status, "STORAGE_BUSY" in refused.body) == (503, True)
        login = daemon.call("POST", "/v1/auth/login", LOGIN, key="")
        assert (login.status, login.body["code"]) == (503, "STORAGE_BUSY")
        assert "set-cookie" not in login.headers
    finally:
        shell.execute("ROLLBACK")
        shell.close()
    assert daemon.get("/v1/holds")["items"] == []
    assert held(daemon, "x").status == 303
    assert daemon.call("POST", "/v1/auth/login", LOGIN, key="").status == 200
