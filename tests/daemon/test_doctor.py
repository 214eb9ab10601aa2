"""Set-ups that are really broken, and the doctor, who names the cause and the way out."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from feltd.api.listen import find_local_socket
from feltd.cli.main import run
from feltd.clock import wall_ms
from feltd.store import sidecar
from feltd.worker.client import Client
from tests.daemon.running import Daemon, Edge, Mesh, create, people
from tests.daemon.test_storage import SmallDisk

DAY_MS = 86_400_000


class Screen(NamedTuple):
    """What the doctor said: the lines by what they are of, and the exit code."""

    lines: dict[str, list[dict[str, str]]]
    code: int

    def line(self, check: str, level: str) -> str:
        """What was seen, and what helps, on the one line of this level."""
        found = [one for one in self.lines.get(check, ()) if one["level"] == level]
        assert len(found) == 1, self.lines
        return f"{found[0]['seen']} -> {found[0]['helps']}"

    def wrong(self) -> set[str]:
        """Everything that is not OK, but for the backups a test has not made."""
        return {
            check
            for check, lines in self.lines.items()
            for one in lines
            if one["level"] != "OK" and check != "backup"
        }


class Doctor:
    """Asks the doctor in this process, in an environment of the test's."""

    def __init__(self, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.patch = patch
        self.capsys = capsys
        for name in list(os.environ):
            if name.startswith("FELTD_"):
                patch.delenv(name)

    def of(self, data: Path) -> Screen:
        """Of a database on this machine."""
        return self._asked("--data", str(data))

    def afar(self, url: str, key: str) -> Screen:
        """Of a daemon somewhere."""
        self.patch.setenv("FELTD_URL", url)
        self.patch.setenv("FELTD_KEY", key)
        return self._asked()

    def _asked(self, *words: str) -> Screen:
        self.capsys.readouterr()
        code = run(["doctor", *words, "--json"])
        told = json.loads(self.capsys.readouterr().out)
        lines: dict[str, list[dict[str, str]]] = {}
        for one in told["findings"]:
            lines.setdefault(one["check"], []).append(one)
        assert (code == 1) == (told["worst"] == "FAIL"), told
        return Screen(lines, code)


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(monkeypatch, capsys)


@pytest.fixture(scope="module")
def well(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon that each test breaks in a way that it mends again."""
    made = Daemon(tmp_path_factory.mktemp("doctor") / "feltd.db", "--tick-ms", "100")
    made.init().start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def rested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a daemon that ran and was stopped in order."""
    made = Daemon(tmp_path_factory.mktemp("rested") / "files" / "feltd.db", "--tick-ms", "100")
    made.data.parent.mkdir()
    try:
        made.init().start()
        made.stop()
    finally:
        made.close()
    return made.data.parent


@pytest.fixture
def at_rest(rested: Path, tmp_path: Path) -> Path:
    """A database of a test's own that nobody serves."""
    shutil.copytree(rested, tmp_path / "files")
    return tmp_path / "files" / "feltd.db"


# Nothing broken


def test_where_nothing_is_wrong_nothing_is_said(well: Daemon, doctor: Doctor) -> None:
    screen = doctor.of(well.data)
    assert screen.code == 0
    assert screen.wrong() == set()
    assert {"daemon", "ready", "storage", "clock", "tasks", "disk", "wal", "sqlite"} <= set(
        screen.lines
    )
    afar = doctor.afar(well.url, well.key)
    assert afar.wrong() == set()
    assert {"daemon", "key", "disk", "wal", "backup", "work"} <= set(afar.lines)


# A daemon that is not there, or is silent


def test_a_daemon_that_was_stopped(at_rest: Path, doctor: Doctor) -> None:
    screen = doctor.of(at_rest)
    assert "no daemon serves" in screen.line("daemon", "FAIL")
    assert "feltd serve" in screen.line("daemon", "FAIL")
    # The rows are told all the same.
    assert {"work", "holds", "grants"} <= set(screen.lines)
    assert screen.wrong() == {"daemon"}


def test_a_process_that_was_suspended(well: Daemon, doctor: Doctor) -> None:
    os.kill(well.pid, signal.SIGSTOP)
    try:
        screen = doctor.of(well.data)
    finally:
        os.kill(well.pid, signal.SIGCONT)
    assert screen.line("daemon", "FAIL").endswith(f"kill -CONT {well.pid}")


def test_a_wrong_path(well: Daemon, tmp_path: Path, doctor: Doctor) -> None:
    screen = doctor.of(well.data.with_name("felt.db"))
    assert str(well.data) in screen.line("database", "FAIL")
    assert "feltd init" in doctor.of(tmp_path / "felt.db").line("database", "FAIL")


def test_the_file_of_another_program(tmp_path: Path, doctor: Doctor) -> None:
    data = tmp_path / "feltd.db"
    with sqlite3.connect(data) as conn:
        conn.execute("CREATE TABLE theirs (a)")
    conn.close()
    assert "another program" in doctor.of(data).line("database", "FAIL")


def test_a_wrong_key_and_a_wrong_address(well: Daemon, doctor: Doctor) -> None:
    wrong = well.key[:-8] + "AAAAAAAA"
    screen = doctor.afar(well.url, wrong)
    assert "UNAUTHENTICATED" in screen.line("key", "FAIL")
    assert "feltd keys create" in screen.line("key", "FAIL")
    assert wrong not in str(screen)
    assert "FELTD_URL" in doctor.afar("http://127.0.0.1:9", well.key).line("daemon", "FAIL")


def test_a_key_that_may_not_look_inside(well: Daemon, doctor: Doctor) -> None:
    made = well.post("/v1/keys", {"name": "ci", "scopes": ["workers:read"], "tenants": ["t"]})
    screen = doctor.afar(well.url, made["secret"])
    assert "daemon:operate" in screen.line("inside", "WARN")
    assert screen.code == 0


# Files


def test_a_keyring_that_others_may_read(at_rest: Path, doctor: Doctor) -> None:
    ring = at_rest.with_name("signing.keyring")
    ring.chmod(0o644)
    screen = doctor.of(at_rest)
    assert f"chmod 600 {ring}" in screen.line("keyring", "FAIL")


def test_a_keyring_that_is_lost(at_rest: Path, doctor: Doctor) -> None:
    at_rest.with_name("signing.keyring").unlink()
    screen = doctor.of(at_rest)
    assert "does not exist" in screen.line("keyring", "FAIL")


def test_a_database_that_others_may_read(well: Daemon, doctor: Doctor) -> None:
    well.data.chmod(0o644)
    try:
        screen = doctor.of(well.data)
    finally:
        well.data.chmod(0o600)
    assert f"chmod go= {well.data}" in screen.line("file modes", "FAIL")


@pytest.mark.needs("unshare")
def test_a_disk_that_is_full(tmp_path: Path, doctor: Doctor) -> None:
    """BC-078."""
    full = SmallDisk(tmp_path / "disk")
    try:
        full.fill()
        answer, number = full.call("GET", "/health"), 0
        while answer.status != 503:
            number += 1
            path = f"/v1/collections/c/records/{number}?tenant_id=t"
            answer = full.call("PUT", path, "x" * 99_999)
            assert answer.status in (201, 503), answer
        screen = doctor.afar(full.url, full.key)
        while not {"disk", "storage"} <= screen.wrong():
            screen = doctor.afar(full.url, full.key)
        assert "STORAGE_FAILING" in screen.line("storage", "FAIL")
        assert "DISK_LOW" in screen.line("disk", "FAIL")
    finally:
        full.close()


READ_AND_STAY = """
import sqlite3, sys
conn = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, isolation_level=None)
conn.execute("BEGIN")
conn.execute("SELECT count(*) FROM events").fetchone()
print("reads", flush=True)
sys.stdin.read()
"""


def test_somebody_who_keeps_a_read_open(
    well: Daemon, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BC-074."""
    from feltd.cli.doctor import files

    reader = subprocess.Popen(
        [sys.executable, "-c", READ_AND_STAY, str(well.data)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reads\n"
        for number in range(90):
            path = f"/v1/collections/big/records/{number}?tenant_id=t"
            assert well.call("PUT", path, "x" * 200_000).status == 201
        screen = doctor.of(well.data)
    finally:
        reader.communicate(b"")
    assert well.data.with_name("feltd.db-wal").stat().st_size > files.WAL_BYTES_LOOK
    assert f"process {reader.pid} (" in screen.line("wal", "WARN")


def test_a_database_that_is_damaged(at_rest: Path, doctor: Doctor) -> None:
    """BC-096."""
    with at_rest.open("r+b") as file:
        for page in range(2, 90):
            file.seek(page * 4096)
            file.write(b"\xff" * 4096)
    screen = doctor.of(at_rest)
    assert "malformed" in screen.line("rows", "FAIL")


# Clocks


def test_a_clock_that_is_behind_the_last_run(at_rest: Path, doctor: Doctor) -> None:
    mark = sidecar.read(at_rest)
    assert mark is not None
    for ahead_ms, level in ((3_600_000, "WARN"), (2 * DAY_MS, "FAIL")):
        members = as_members(mark) | {"lease_ms": wall_ms() + ahead_ms}
        sidecar.write(at_rest, sidecar.Mark(**members))
        assert "behind the last run" in doctor.of(at_rest).line("clock", level)
    assert "--accept-clock" in doctor.of(at_rest).line("clock", "FAIL")


def test_a_mark_that_is_lost(at_rest: Path, doctor: Doctor) -> None:
    sidecar.mark_path(at_rest).unlink()
    assert "no mark" in doctor.of(at_rest).line("clock", "WARN")
    made = Daemon(at_rest)
    try:
        made.start()
        screen = doctor.of(made.data)
    finally:
        made.close()
    assert "STORAGE_RECOVERED" in screen.line("storage", "FAIL")
    assert "feltd health acknowledge" in screen.line("storage", "FAIL")


def as_members(mark: sidecar.Mark) -> dict[str, Any]:
    return {name: getattr(mark, name) for name in mark.__struct_fields__}


# Work that nobody takes


class Crowd(NamedTuple):
    """A daemon with one worker that may take work, and work that waits for it."""

    daemon: Daemon
    mesh: Mesh
    edge: Edge

    @property
    def data(self) -> Path:
        """The database."""
        return self.daemon.data


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    made = Daemon(tmp_path_factory.mktemp("crowd") / "feltd.db", "--tick-ms", "100")
    try:
        mesh = people(made.init().start())
        edge = Edge(made, "edge-1", mesh.registrar_key, capabilities=["documents.extract"])
        yield Crowd(made, mesh, edge)
    finally:
        made.close()


@pytest.fixture
def crowd(gathered: Crowd, request: pytest.FixtureRequest) -> Crowd:
    """The crowd, all of it at work again, with a workload of the test's."""
    daemon, mesh, edge = gathered
    for verb in ("resume", "unquarantine"):
        daemon.call("POST", f"/v1/workers/{edge.id}/{verb}", {})
    if edge.beat().status != 200:  # a drained worker has gone, and comes back
        named = {"worker_id": edge.id, "worker_version": "1"}
        answer = edge.call("reconcile", named | {"capability_version": edge.capability_version})
        assert answer.status == 200, answer
    create(daemon, mesh, request.node.name)
    return gathered


def test_a_hold_that_was_left_on(crowd: Crowd, doctor: Doctor) -> None:
    hold = crowd.daemon.post("/v1/holds", {"scope": "all", "reason": "the release of tonight"})
    try:
        screen = doctor.of(crowd.data)
    finally:
        crowd.daemon.call("DELETE", f"/v1/holds/{hold['hold_id']}")
    assert "the release of tonight" in screen.line("holds", "WARN")
    assert screen.line("holds", "WARN").endswith(f"feltd hold delete {hold['hold_id']}")
    assert "HELD" in screen.line("work", "WARN")


@pytest.mark.parametrize(
    ("verb", "way"), [("drain", "feltd worker resume"), ("quarantine", "feltd worker unquarantine")]
)
def test_workers_that_were_all_taken_out(crowd: Crowd, doctor: Doctor, verb: str, way: str) -> None:
    daemon, edge = crowd.daemon, crowd.edge
    daemon.post(f"/v1/workers/{edge.id}/{verb}", {"reason": "bad disk"})
    line = doctor.of(crowd.data).line("workers", "FAIL")
    assert "nobody takes them" in line
    assert "bad disk" in line
    assert line.endswith(f"{way} {edge.id}")
    if verb == "drain":
        # Also told of the file alone, once the daemon is down.
        daemon.stop()
        told = doctor.of(crowd.data)
        daemon.start()
        assert "bad disk" in told.line("workers", "FAIL")


def test_dead_letters_of_the_hour(crowd: Crowd, doctor: Doctor) -> None:
    [claim] = crowd.edge.pull(start=True)
    crowd.edge.fenced("fail", claim, kind="parser_lost_pages", message="page 3")
    assert "1 of parser_lost_pages" in doctor.of(crowd.data).line("dead letters", "WARN")


def test_a_trigger_that_is_disabled(well: Daemon, doctor: Doctor) -> None:
    body = {
        "kind": "state", "trigger_id": "ship", "source_collection": "orders",
        "change_kind": "any", "target_capability": "ship", "tenant_id": "t", "application_id": "a",
    }  # fmt: skip
    # The operator of the machine needs no grant for it.
    with Client(socket=find_local_socket(str(well.data))) as operator:
        operator.call("POST", "/v1/triggers", body)
    well.post("/v1/triggers/ship/disable?tenant_id=t", {"reason": "no stock"})
    try:
        line = doctor.of(well.data).line("triggers", "WARN")
    finally:
        well.call("DELETE", "/v1/triggers/ship?tenant_id=t")
    assert "no stock" in line
    assert line.endswith("feltd trigger enable ship")


def test_a_grant_that_ends_soon_and_who_stops_with_it(crowd: Crowd, doctor: Doctor) -> None:
    """The grant of the crew ends within a day, and edge-1 works under it."""
    line = doctor.of(crowd.data).line("grants", "FAIL")
    assert "1 worker stops then: edge-1" in line
    assert "feltd grants extend grant_" in line


def test_a_key_that_ends_soon(well: Daemon, doctor: Doctor) -> None:
    made = well.post(
        "/v1/keys",
        {
            "name": "ci", "scopes": ["workers:read"], "tenants": ["t"],
            "expires_at_ms": int(time.time() * 1000) + 3 * DAY_MS,
        },
    )  # fmt: skip
    try:
        line = doctor.of(well.data).line("keys", "WARN")
    finally:
        well.call("DELETE", f"/v1/keys/{made['key_id']}")
    assert "2 days" in line
    assert line.endswith(f"feltd keys rotate --id {made['key_id']}")


# Backups


def test_no_backup_an_old_one_and_a_fresh_one(well: Daemon, doctor: Doctor) -> None:
    assert "feltd backup create" in doctor.of(well.data).line("backup", "WARN")

    copy = Path(well.post("/v1/backups")["path"])
    assert "verified" in doctor.of(well.data).line("backup", "OK")

    manifest = copy.with_suffix(".json")
    told = json.loads(manifest.read_text())
    for age_ms, level in ((2 * DAY_MS, "WARN"), (8 * DAY_MS, "FAIL")):
        manifest.write_text(json.dumps(told | {"created_at_ms": wall_ms() - age_ms}))
        assert "days old" in doctor.of(well.data).line("backup", level)
    copy.chmod(0o644)
    assert f"chmod go= {copy}" in doctor.of(well.data).line("file modes", "FAIL")
    shutil.rmtree(copy.parent)


# The screen


def test_the_screen_is_for_people(
    well: Daemon, doctor: Doctor, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["doctor", "--data", str(well.data)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("OK    daemon")
    assert any("-> feltd backup create" in line for line in told)
    assert told[-1].endswith("0 failed, 1 to look at"), told
    assert len(told) < 30
