"""A backup put back elsewhere: what was promised is there, and nobody old can harm what goes on."""

import json
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from feltd.daemon.restoring import look, restore
from feltd.store.connect import StoreProblem
from tests.daemon.load import Load, crew
from tests.daemon.running import Daemon, Edge, Mesh, create, feltd, people

WORKERS = 4


class Scene:
    """A daemon at work, a backup of it made meanwhile, and what everybody was told by then."""

    def __init__(self, daemon: Daemon, workers: int, seconds: float) -> None:
        self.daemon = daemon
        self.mesh: Mesh = people(daemon)
        *self.edges, holder, self.drained = crew(daemon, self.mesh, workers + 2)
        self.token = self._grant_token()
        self.load = Load(daemon, self.mesh, self.edges, holder)
        create(daemon, self.mesh, "held")
        self.load.begin()
        while len(self.load.completed) < 3 * workers or not self.load.renewals:
            time.sleep(0.02)
        daemon.post(f"/v1/workers/{self.drained.id}/drain", {"reason": "upgrade"})
        #: Acknowledged before the backup was asked for: all of it must be in there.
        self.created = dict(self.load.created)
        self.completed = dict(self.load.completed)
        self.backup: dict[str, Any] = daemon.post("/v1/backups")
        time.sleep(seconds)
        self.load.end()
        assert not self.load.wrong
        #: What the restoring command said.
        self.said = ""
        self.greatest = max(token for given in self.load.tokens for token in given)

    def _grant_token(self) -> str:
        """A grant whose token is handed out, beside those that keys are bound to."""
        body = {
            "subject": {"kind": "service", "id": "visitor"},
            "tenant_id": "t",
            "application_id": "a",
            "capabilities": ["worker:register"],
            "resources": [{"kind": "RESOURCE_PREFIX", "uri": "flow://a/workers/*"}],
            "expires_at_ms": int(time.time() * 1000) + 86_400_000,
        }
        return str(self.daemon.post("/v1/grants", body)["token"])

    def visit(self, daemon: Daemon) -> int:
        """A worker registers with the token; the status."""
        body = {
            "name": "visitor",
            "tenants": ["t"],
            "scopes": ["workers:register"],
            "identity_id": "visitor",
        }
        key = daemon.post("/v1/keys", body)["secret"]
        asked = {
            "name": "guest",
            "runtime": "process",
            "version": "1",
            "capacity": {"concurrency": 1},
            "authorization_grant": self.token,
        }
        return daemon.call("POST", "/v1/workers", asked, key=key).status


def put_back(scene: Scene, to: Path, *options: str) -> Daemon:
    """The backup at a new place, and a daemon on it, not yet started."""
    file = scene.backup["path"]
    verified = feltd("backup", "verify", file)
    assert (verified.returncode, verified.stdout.splitlines()[-1]) == (0, "whole"), verified
    data = to / "feltd.db"
    ran = feltd("backup", "restore", file, "--data", str(data), *options)
    assert ran.returncode == 0, ran.stderr
    restored = Daemon(data, *scene.daemon.flags)
    restored.key = scene.daemon.key
    restored.log = to / "log"
    scene.said = ran.stdout
    return restored


def resumed(edge: Edge, daemon: Daemon) -> list[dict[str, Any]]:
    """A worker of then finds the new daemon, reconciles and takes work; the claims it got."""
    edge.daemon = daemon
    refused = edge.beat()
    assert (refused.status, refused.body["code"]) == (409, "WORKER_RECOVERY_REQUIRED"), refused
    told = edge.call(
        "reconcile",
        {
            "worker_id": edge.id,
            "worker_version": "1",
            "capability_version": edge.capability_version,
        },
    )
    assert told.status == 200, told
    assert edge.beat().status == 200
    return edge.pull(max=4, start=True)


def all_is_there(scene: Scene, daemon: Daemon) -> None:
    """Everything acknowledged before the backup was asked for, and its outcome."""
    items: dict[str, str] = {}
    cursor = ""
    while True:
        page = daemon.get(f"/v1/workloads?limit=500{cursor}", key=scene.mesh.submitter_key)
        items |= {one["workload_id"]: one["state"] for one in page["items"]}
        if not page["next_cursor"]:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert set(scene.created) <= set(items)
    assert {items[one] for one in scene.completed} <= {"COMPLETED"}


def goes_on(scene: Scene, daemon: Daemon) -> None:
    """Claims of then are over, tokens grow beyond all that were issued, work is done."""
    told = daemon.get("/health")
    assert (told["storage"], told["storage_detail"]) == (
        "recovered-incomplete-write",
        {"missing_commits": None},
    )
    all_is_there(scene, daemon)
    create(daemon, scene.mesh, "after", priority=1_000)
    with closing(sqlite3.connect(f"file:{daemon.data}?mode=ro", uri=True)) as shell:
        (ended,) = shell.execute(
            "SELECT count(*) FROM claims WHERE end_kind = 'restored'"
        ).fetchone()
    assert ended, "the holder's claim lived when the backup was made"
    claims = resumed(scene.edges[0], daemon)
    assert claims
    assert all(one["fencing_token"] > scene.greatest for one in claims)
    for one in claims:
        assert scene.edges[0].fenced("complete", one, output=1).status == 200
    found = {one["name"]: one for one in daemon.get("/v1/workers?limit=500")["items"]}
    drained = found[scene.drained.body["name"]]
    assert (drained["lifecycle"], drained["offline_reason"]) == ("OFFLINE", "drained")
    checked = daemon.check()
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("keyring", ["with", "without"])
def test_a_backup_under_load_goes_on_elsewhere(
    daemon: Daemon, elsewhere: Path, keyring: str
) -> None:
    scene = Scene(daemon, WORKERS, 0.1)
    ring = daemon.data.parent / "signing.keyring"
    options = ("--keyring", str(ring)) if keyring == "with" else ()
    restored = put_back(scene, elsewhere, *options)
    try:
        restored.start()
        goes_on(scene, restored)
        # Keys go on in both cases, those bound to a grant too: resumed() and create() used them.
        if keyring == "with":
            assert scene.visit(restored) == 201
            assert (elsewhere / "signing.keyring").read_bytes() == ring.read_bytes()
        else:
            assert scene.visit(restored) == 403
            assert "new ones were made" in scene.said
        # The one it was made of is none the wiser.
        assert daemon.get("/health")["storage"] == "clean"
        assert scene.visit(daemon) == 201
    finally:
        restored.close()


@pytest.mark.soak
def test_backups_of_a_daemon_at_which_64_work_all_go_on_elsewhere(
    daemon: Daemon, tmp_path: Path
) -> None:
    scene = Scene(daemon, 60, 3.0)
    for turn in range(3):
        folder = tmp_path / f"elsewhere-{turn}"
        folder.mkdir()
        restored = put_back(scene, folder)
        try:
            restored.start()
            goes_on(scene, restored)
        finally:
            restored.close()
        scene.edges = scene.edges[1:]


def test_the_mark_of_the_lost_database_keeps_tokens_growing_whatever_the_clock_says(
    daemon: Daemon,
) -> None:
    """The file is lost, its mark is not: the ceiling in it is what counts."""
    scene = Scene(daemon, 2, 0.0)
    daemon.stop()
    mark = daemon.data.with_name(daemon.data.name + ".mark")
    known = json.loads(mark.read_text())
    # As if the clock had been far ahead when those tokens were issued.
    known["ceiling"] += 10**12
    mark.write_text(json.dumps(known))
    daemon.data.unlink()
    for end in ("-wal", "-shm"):
        daemon.data.with_name(daemon.data.name + end).unlink(missing_ok=True)
    ran = feltd("backup", "restore", scene.backup["path"], "--data", str(daemon.data))
    assert ran.returncode == 0, ran.stderr
    assert "which was there" in ran.stdout, "the folder's keyring goes on"
    daemon.start()
    create(daemon, scene.mesh, "after")
    (claim, *_) = resumed(scene.edges[0], daemon)
    assert claim["fencing_token"] > known["ceiling"]
    assert daemon.check().returncode == 0


def refused(*arguments: str | Path) -> tuple[int, str]:
    ran = feltd("backup", *(str(one) for one in arguments))
    assert "Traceback" not in ran.stderr
    return ran.returncode, ran.stderr


def test_nothing_is_put_over_anything(daemon: Daemon, elsewhere: Path) -> None:
    file = daemon.post("/v1/backups")["path"]
    before = daemon.data.stat()
    code, told = refused("restore", file, "--data", daemon.data)
    assert (code, f"process {daemon.pid}" in told) == (75, True), "a daemon has it"
    daemon.stop()
    code, told = refused("restore", file, "--data", daemon.data)
    assert (code, "exists already" in told) == (1, True)
    assert daemon.data.stat().st_ino == before.st_ino
    target, own = elsewhere / "new.db", elsewhere / "signing.keyring"

    def put(at: Path, keyring: Path | None, why: str) -> None:
        with pytest.raises(StoreProblem, match=why):
            restore(Path(file), at, keyring, own)

    target.symlink_to(elsewhere / "nowhere")
    put(target, None, "exists already")
    target.unlink()
    target.with_name("new.db-wal").write_bytes(b"of another file")
    put(target, None, "new.db-wal is there")
    target.with_name("new.db-wal").unlink()
    put(elsewhere / "none" / "new.db", None, "lock cannot be made")
    own.write_bytes(b"{}")
    own.chmod(0o600)
    put(target, daemon.data.parent / "signing.keyring", "is another keyring")
    put(target, elsewhere / "none", "does not exist")
    assert not target.exists()
    assert not target.with_name("new.db.mark").exists()
    assert not target.with_name("new.db.restoring").exists()


def test_a_copy_that_is_not_whole_is_named_and_not_put_back(
    daemon: Daemon, elsewhere: Path
) -> None:
    made = Path(daemon.post("/v1/backups")["path"])
    target = elsewhere / "new.db"
    manifest = made.with_suffix(".json")

    def harmed(name: str, content: bytes, *, noted: bool = True) -> Path:
        file = elsewhere / name
        file.write_bytes(content)
        if noted:
            shutil.copy(manifest, file.with_suffix(".json"))
        return file

    whole = made.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    torn = bytearray(whole)
    torn[8_192:12_288] = bytes(4_096)
    for file, why in (
        (harmed("flipped.db", bytes(flipped)), "SHA-256 differs"),
        (harmed("cut.db", whole[:-4_096]), "it is not whole"),
        (harmed("longer.db", whole + b"x"), "it is not whole"),
        (harmed("torn.db", bytes(torn), noted=False), "is damaged"),
        (harmed("halved.db", whole[: len(whole) // 2], noted=False), "is damaged"),
        (harmed("empty.db", b"", noted=False), "is empty"),
        (harmed("text.db", b"hello " * 1_000, noted=False), "is not an SQLite database"),
        (elsewhere / "missing.db", "does not exist"),
        (elsewhere, "is not a file"),
        (daemon.data, "lies beside it"),
    ):
        with pytest.raises(StoreProblem, match=why):
            look(file)
        with pytest.raises(StoreProblem, match=why):
            restore(file, target, None, elsewhere / "ring")
        assert not target.exists()
    code, told = refused("verify", elsewhere / "flipped.db")
    assert (code, "flipped.db is not what was backed up" in told) == (1, True)
    assert not (elsewhere / "ring").exists()
    assert feltd("backup", "verify", str(made)).returncode == 0


def test_a_copy_without_its_manifest_is_still_read_and_says_what_could_not_be(
    daemon: Daemon, elsewhere: Path
) -> None:
    made = Path(daemon.post("/v1/backups")["path"])
    copy = Path(shutil.copy(made, elsewhere / "copy.db"))
    ran = feltd("backup", "verify", str(copy))
    assert (ran.returncode, "no manifest" in ran.stderr) == (0, True)
    # As some other program would leave it.
    with closing(sqlite3.connect(copy)) as shell:
        shell.execute("PRAGMA journal_mode = WAL")
    for _ in range(2):
        ran = feltd("backup", "verify", str(copy), "--json")
        assert ran.returncode == 0, ran.stderr
        assert sorted(file.name for file in elsewhere.iterdir()) == ["copy.db"]
    told = json.loads(ran.stdout)
    assert (told["manifest"], told["broken"], told["promises_asked"]) == (False, [], True)


def test_without_a_daemon_the_command_makes_one_itself_and_changes_nothing(
    daemons: Callable[..., Daemon], elsewhere: Path
) -> None:
    daemon = daemons()
    before = daemon.data.read_bytes()
    options = ("--data", str(daemon.data), "--backup-dir", str(elsewhere / "b"))
    for _ in range(3):
        ran = feltd("backup", "create", *options, "--backup-keep", "2", "--json")
        assert ran.returncode == 0, ran.stderr
        made = json.loads(ran.stdout)
    assert daemon.data.read_bytes() == before
    listed = json.loads(feltd("backup", "list", *options, "--json").stdout)
    assert listed["items"][0]["path"] == made["path"]
    assert len(listed["items"]) == 2
    assert "signing keys are not in it" in feltd("backup", "create", *options).stderr
    assert refused("create", "--data", elsewhere / "none.db")[0] == 1
