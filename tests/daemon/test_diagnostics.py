"""What a daemon tells of itself for whoever helps: everything of use, nothing that is secret."""

import io
import json
import sqlite3
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from feltd.store import sizes
from tests.daemon.running import Daemon, Edge, create, feltd, people

INPUT, OUTPUT, NOTE = "canary-in-4711", "canary-out-4711", "canary-note-4711"


def worked(daemon: Daemon) -> list[str]:
    """Some work done; the secrets and the texts of the work that nobody else may see."""
    mesh = people(daemon)
    edge = Edge(daemon, "edge", mesh.registrar_key, capabilities=["documents.extract"])
    edge.beat()
    create(daemon, mesh, "one", input={"text": INPUT})
    [claim] = edge.pull(start=True)
    edge.fenced("log", claim, lines=[NOTE])
    edge.fenced("complete", claim, output=OUTPUT)
    edge.fenced("renew", claim)
    daemon.call("PUT", "/v1/collections/c/records/r?tenant_id=t", {"secret": INPUT})
    daemon.call("GET", "/v1/workloads", key="felt_s_" + "A" * 60)
    return [daemon.key, mesh.submitter_key, mesh.registrar_key, edge.key, INPUT, OUTPUT, NOTE]


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, list[str]]]:
    """A daemon that has worked, and what it must not show."""
    made = Daemon(tmp_path_factory.mktemp("diagnostics") / "feltd.db", "--tick-ms", "100")
    try:
        yield made, worked(made.init().start())
    finally:
        made.close()


@pytest.fixture
def daemon(busy: tuple[Daemon, list[str]]) -> Daemon:
    return busy[0]


@pytest.fixture
def hidden(busy: tuple[Daemon, list[str]]) -> list[str]:
    return busy[1]


def test_it_tells_what_a_person_needs(daemon: Daemon, hidden: list[str]) -> None:
    answer = daemon.call("GET", "/v1/diagnostics")
    found = answer.body

    assert found["health"]["status"] == "healthy"
    assert found["config"]["tick_ms"] == 100
    assert found["config_from"]["tick_ms"] == "flag"
    assert found["config_from"]["port"] == "flag"
    assert found["config_from"]["max_in_flight"] == "default"
    assert found["place"]["pid"] == daemon.pid
    assert found["keeper"]["recover_leases"]["last_ok_at_ms"] > 0
    assert found["refusals"]["WORKLOAD_STALE_FENCE"] == 1
    assert found["recent_refusals"][0]["operation"] == "renew"
    assert found["rows"]["workloads"] == 1
    assert found["pragmas"]["journal_mode"] == "wal"
    assert any(text.startswith("CREATE TABLE workloads") for text in found["schema"])
    assert "feltd_claims_total 1.0" in found["metrics"]
    assert any('"serving"' in line for line in found["log"])
    assert found["checkup"]["workloads"]["COMPLETED"] == 1
    assert found["missing"] == {}

    text = json.dumps(found)
    assert len(text) < 1_000_000
    for secret in hidden:
        assert secret not in text
    with sqlite3.connect(f"file:{daemon.data}?mode=ro", uri=True) as conn:
        digests = [row[0] for row in conn.execute("SELECT secret_digest FROM keys")]
    conn.close()
    assert digests
    for digest in digests:
        assert digest not in text


def test_who_may_not_operate_the_daemon_may_not_ask(daemon: Daemon) -> None:
    made = daemon.post("/v1/keys", {"name": "w", "scopes": ["workers:read"], "tenants": ["*"]})
    answer = daemon.call("GET", "/v1/diagnostics", key=made["secret"])
    assert answer.body["code"] == "FORBIDDEN"


def test_every_table_is_counted(daemon: Daemon) -> None:
    with sqlite3.connect(f"file:{daemon.data}?mode=ro", uri=True) as conn:
        tables = {
            row[0]
            for row in conn.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            )
        }
    conn.close()
    assert set(daemon.get("/v1/diagnostics")["rows"]) == tables
    assert sizes.TABLES.count("SELECT '") == len(tables)


def test_while_the_storage_hangs_the_rest_is_told(daemon: Daemon) -> None:
    blocker = sqlite3.connect(daemon.data, isolation_level=None)
    try:
        blocker.execute("BEGIN EXCLUSIVE")
        found = daemon.get("/v1/diagnostics")
    finally:
        blocker.close()
    assert found["version"]
    assert found["place"]["data"] == str(daemon.data)


def members(archive: Path) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as tar:
        found = {}
        for member in tar.getmembers():
            held = tar.extractfile(member)
            assert held is not None
            found[member.name.removeprefix("feltd-diagnostics/")] = held.read().decode()
        return found


def test_an_archive_with_and_without_a_daemon(
    daemon: Daemon, hidden: list[str], tmp_path: Path
) -> None:
    for name, told in (("served.tar.gz", "OK    daemon"), ("alone.tar.gz", "FAIL  daemon")):
        archive = tmp_path / name
        ran = feltd("diagnostics", "--data", str(daemon.data), "--out", str(archive))
        assert ran.returncode == 0, ran.stderr
        assert stat.S_IMODE(archive.stat().st_mode) == 0o600
        assert archive.stat().st_size < 1_000_000
        found = members(archive)
        assert found["doctor.txt"].startswith(told)
        assert "CREATE TABLE workloads" in found["schema.sql"]
        assert json.loads(found["diagnostics.json"])["rows"]["workloads"] == 1
        for secret in hidden:
            assert secret not in str(found)
        if name == "served.tar.gz":
            assert "feltd_claims_total" in found["metrics.txt"]
            assert '"serving"' in found["log.jsonl"]
            daemon.stop()
    again = feltd("diagnostics", "--data", str(daemon.data), "--out", str(archive))
    assert again.returncode == 1
    assert "never replaced" in again.stderr
