"""Whoever acts in somebody else's name: by a key, by signing up, by a file that was put back."""

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import daemons as daemons
from tests.daemon.running import Answer, Daemon, feltd

PASSWORD = "correct horse battery"

_names = count(1)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    made = Daemon(tmp_path_factory.mktemp("namesakes") / "feltd.db", "--open-signup")
    try:
        yield made.init().start()
    finally:
        made.close()


def user(daemon: Daemon, **roles: str) -> str:
    name = f"user-{next(_names)}"
    given = {"*" if tenant == "every" else tenant: role for tenant, role in roles.items()}
    daemon.post("/v1/users", {"username": name, "password": PASSWORD, "roles": given})
    return name


def session(daemon: Daemon, name: str, password: str = PASSWORD) -> str:
    body = {"username": name, "password": password}
    return str(daemon.post("/v1/auth/login", body, key="")["session"])


def human(name: str, **members: Any) -> dict[str, Any]:
    return {"name": "personal", "subject_type": "human", "identity_id": name,
            "scopes": ["workloads:read"], "tenants": ["acme"]} | members  # fmt: skip


def sign_up(daemon: Daemon, name: str) -> Answer:
    body = {"username": name, "password": PASSWORD}
    return daemon.call("POST", "/v1/auth/signup", body, key="")


def test_an_admin_of_one_tenant_makes_no_key_that_acts_as_a_stronger_user(daemon: Daemon) -> None:
    """What it did would stand in the audit as the other's deeds."""
    boss, peer = user(daemon, every="admin"), user(daemon, acme="operator", globex="viewer")
    below, mallory = user(daemon, acme="operator"), user(daemon, acme="admin")
    key = session(daemon, mallory)

    for other in (boss, peer):
        for subject_type in ("human", "user"):
            body = human(other, subject_type=subject_type)
            told = daemon.call("POST", "/v1/keys", body, key=key)
            assert (told.status, told.body["code"]) == (403, "FORBIDDEN"), told
            assert told.body["errors"][0]["pointer"] == "/identity_id"
    for own in (mallory, below, "somebody-who-is-no-user"):
        assert daemon.call("POST", "/v1/keys", human(own), key=key).status == 201
    # Who only makes keys makes nobody.
    maker = daemon.post("/v1/keys", {"name": "maker", "scopes": ["keys:admin", "workloads:read"],
                                     "tenants": ["acme"]})["secret"]  # fmt: skip
    assert daemon.call("POST", "/v1/keys", human(below), key=maker).status == 403
    # A key of another's that stands is not rotated into one's hands either.
    theirs = daemon.post("/v1/keys", human(boss))["key_id"]
    rotated = daemon.call("POST", f"/v1/keys/{theirs}/rotate", {"overlap_ms": 0}, key=key)
    assert rotated.status == 403


def test_nobody_signs_up_as_whom_a_key_acts_or_acted(daemon: Daemon) -> None:
    carol, dave = f"carol-{next(_names)}", f"dave-{next(_names)}"
    daemon.post("/v1/keys", human(carol))
    gone = daemon.post("/v1/keys", human(dave))["key_id"]
    assert daemon.call("DELETE", f"/v1/keys/{gone}").status == 204

    for name in (carol, dave):
        told = sign_up(daemon, name)
        assert (told.status, told.body["code"]) == (409, "USER_EXISTS")
    # An admin of another tenant makes no user of that name; one of the key's own may.
    other, own = (session(daemon, user(daemon, **{t: "admin"})) for t in ("globex", "acme"))
    body = {"username": carol, "password": PASSWORD}
    assert daemon.call("POST", "/v1/users", body, key=other).body["code"] == "USER_EXISTS"
    assert daemon.call("POST", "/v1/users", body, key=own).status == 201


def test_a_disabled_user_acts_by_no_key_of_his_either(daemon: Daemon) -> None:
    name = user(daemon, acme="operator")
    his = daemon.post("/v1/keys", human(name))["secret"]
    elsewhere = daemon.post("/v1/keys", human(name, tenants=["globex"]))["secret"]
    robot = daemon.post("/v1/keys", human(name, subject_type="service"))["secret"]
    admin = session(daemon, user(daemon, acme="admin"))
    assert daemon.call("GET", "/v1/workloads", key=his).status == 200

    told = daemon.call("POST", f"/v1/users/{name}/disable", {}, key=admin)

    assert told.status == 200
    ended = daemon.call("GET", "/v1/workloads", key=his)
    assert (ended.status, ended.body["reasons"][0]["code"]) == (401, "revoked")
    assert daemon.call("GET", "/v1/workloads", key=robot).status == 200, "is somebody else"
    assert daemon.call("GET", "/v1/workloads", key=elsewhere).status == 200, "not acme's to end"
    again = daemon.call("POST", "/v1/keys", human(name))
    assert (again.status, again.body["errors"][0]["pointer"]) == (403, "/identity_id")


def copied(daemon: Daemon, folder: Path) -> None:
    folder.mkdir()
    for file in daemon.data.parent.glob(daemon.data.name + "*"):
        if file.suffix in (".db", ".db-wal") or file.name.endswith("-wal"):
            shutil.copy(file, folder / file.name)


def test_who_was_logged_out_is_not_let_in_again_by_a_file_put_back(
    daemons: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = daemons().start()
    name = user(daemon, every="admin")
    out, gone = session(daemon, name), session(daemon, name)
    daemon.stop()
    copied(daemon, tmp_path / "copy")
    daemon.start()
    assert daemon.call("POST", "/v1/auth/logout", {}, key=out).status == 204
    body = {"old": PASSWORD, "new": "another battery staple"}
    assert daemon.call("POST", "/v1/auth/password", body, key=gone).status == 204
    new = session(daemon, name, body["new"])
    daemon.stop()

    for end in ("", "-wal", "-shm"):
        daemon.data.with_name(daemon.data.name + end).unlink(missing_ok=True)
    for file in (tmp_path / "copy").iterdir():
        shutil.copy(file, daemon.data.parent / file.name)
    daemon.start()

    for bearer in (out, gone, new):
        assert daemon.call("GET", "/v1/auth/me", key=bearer).status == 401
    assert daemon.call("GET", "/v1/auth/me", key=session(daemon, name)).status == 200


def test_a_backup_put_back_lets_nobody_in_who_has_not_logged_in_since(
    daemons: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = daemons().start()
    before = session(daemon, user(daemon, every="admin"))
    path = daemon.post("/v1/backups")["path"]
    daemon.stop()
    target = tmp_path / "elsewhere" / "feltd.db"
    target.parent.mkdir()
    ran = feltd("backup", "restore", path, "--data", str(target))

    assert ran.returncode == 0, ran.stderr
    assert "revoked" in ran.stdout
    restored = Daemon(target)
    try:
        restored.start()
        assert restored.call("GET", "/v1/auth/me", key=before).status == 401
        assert restored.call("GET", "/v1/auth/me", key=daemon.key).status == 200
    finally:
        restored.close()
