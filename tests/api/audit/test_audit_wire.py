"""The audit chain over HTTP: whole, in order, computed again by whoever reads it."""

import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.running import Daemon, create, people


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(tmp_path_factory.mktemp("audit") / "feltd.db", "--tick-ms", "200")
    running.init().start()
    yield running
    running.close()


def hashed(row: dict[str, Any]) -> str:
    told = [text for name, text in row.items() if name != "hash"]
    text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def whole(daemon: Daemon, **query: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    after = 0
    words = "".join(f"&{name}={text}" for name, text in query.items())
    while True:
        page = daemon.get(f"/v1/audit?after={after}&limit=7{words}")
        rows += page["items"]
        if page["next_after"] >= page["head"]:
            return rows
        after = page["next_after"]


def test_whoever_reads_it_can_compute_every_hash_again(daemon: Daemon) -> None:
    mesh = people(daemon)
    create(daemon, mesh, "one")
    rows = whole(daemon)
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    assert rows[0]["prev_hash"] == ""
    assert [row["prev_hash"] for row in rows[1:]] == [row["hash"] for row in rows[:-1]]
    assert all(hashed(row) == row["hash"] for row in rows)
    assert {row["kind"] for row in rows} == {"act", "commit"}


def test_it_is_narrowed_to_who_did_what_to_whom(daemon: Daemon) -> None:
    made = daemon.post("/v1/keys", {"name": "short", "tenants": ["t"]})
    daemon.call("DELETE", f"/v1/keys/{made['key_id']}")
    acts = whole(daemon, subject=made["key_id"])
    assert [row["action"] for row in acts] == ["create_key", "revoke_key"]
    actor = acts[0]["actor"]
    assert acts == whole(daemon, kind="act", actor=actor, subject=made["key_id"])
    assert whole(daemon, kind="commit", subject=made["key_id"]) == []
    assert whole(daemon, action="revoke_key")[-1] == acts[-1]


def test_who_waits_at_its_end_is_told_of_the_next_row(daemon: Daemon) -> None:
    head = daemon.get("/v1/audit?limit=1")["head"]
    heard: list[dict[str, Any]] = []

    def listen() -> None:
        heard.append(daemon.get(f"/v1/audit?after={head}&wait_ms=30000"))

    waiting = threading.Thread(target=listen)
    waiting.start()
    key_id = daemon.post("/v1/keys", {"name": "late", "tenants": ["t"]})["key_id"]
    waiting.join()
    [page] = heard
    assert page["items"][0]["seq"] == head + 1
    assert (
        page["items"][0]["prev_hash"]
        == daemon.get(f"/v1/audit?after={head - 1}&limit=1")["items"][0]["hash"]
    )
    told = daemon.get(f"/v1/audit?after={head}")["items"]
    assert any(row["subject"] == key_id for row in told)


def test_a_row_that_is_not_asked_for_ends_no_reader_in_error(daemon: Daemon) -> None:
    head = daemon.get("/v1/audit?limit=1")["head"]
    page = daemon.get(f"/v1/audit?after={head}&wait_ms=1&action=nothing")
    assert (page["items"], page["next_after"] >= head) == ([], True)


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "after=-1", "kind=all", "actor=", "x=1"])
def test_what_does_not_fit_is_refused(daemon: Daemon, query: str) -> None:
    answer = daemon.call("GET", f"/v1/audit?{query}")
    assert (answer.status, answer.body["code"]) == (422, "REQUEST_INVALID")


def test_it_belongs_to_the_whole_daemon(daemon: Daemon) -> None:
    """A tenant's key may not even hold the scope's use: who did what tells of everybody."""
    one = daemon.post("/v1/keys", {"name": "reader", "tenants": ["t"], "scopes": ["audit:read"]})
    answer = daemon.call("GET", "/v1/audit", key=one["secret"])
    assert (answer.status, answer.body["code"]) == (403, "FORBIDDEN")
    many = daemon.post("/v1/keys", {"name": "auditor", "tenants": ["*"], "scopes": ["audit:read"]})
    assert daemon.call("GET", "/v1/audit", key=many["secret"]).status == 200
    other = daemon.post("/v1/keys", {"name": "other", "tenants": ["*"], "scopes": ["events:read"]})
    assert daemon.call("GET", "/v1/audit", key=other["secret"]).status == 403


def test_a_mirror_line_is_a_row_of_the_page(daemon: Daemon, tmp_path: Path) -> None:
    """The file beside the database and the wire speak of a row in the same members."""
    daemon.stop()
    file = tmp_path / "audit.jsonl"
    daemon.start("--audit", str(file))
    rows = whole(daemon)
    lines: list[Any] = []
    while len(lines) < len(rows):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[: len(rows)] == rows
