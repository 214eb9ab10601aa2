"""Sockets, the operator's path, and the limit of open files."""

import hashlib
import os
import resource
import socket
import stat
from pathlib import Path

import pytest

from feltd.api.listen import (
    ListenProblem,
    adopt,
    find_local_socket,
    listen_local,
    listen_tcp,
    local_socket_path,
    raise_file_limit,
)


def test_port_zero_is_told_as_the_port_it_became() -> None:
    first, second = listen_tcp("127.0.0.1", 0), listen_tcp("127.0.0.1", 0)
    assert first.url.startswith("http://127.0.0.1:")
    assert not first.url.endswith(":0")
    assert first.url != second.url
    os.close(first.fd)
    os.close(second.fd)


@pytest.mark.parametrize(("host", "port"), [("256.0.0.1", 0), ("no.such.host.invalid", 1)])
def test_an_address_that_is_none_is_a_plain_sentence(host: str, port: int) -> None:
    with pytest.raises(ListenProblem, match=f"cannot listen on {host}"):
        listen_tcp(host, port)


def test_only_a_listening_socket_is_taken_over(tmp_path: Path) -> None:
    file, silent = (tmp_path / "file").open("wb"), socket.socket()
    with file, pytest.raises(ListenProblem, match="not a socket"):
        adopt(file.fileno())
    with silent:
        with pytest.raises(ListenProblem, match="not a listening stream socket"):
            adopt(silent.fileno())
        assert silent.getsockname()  # still open: it was not ours to close


def test_the_operators_socket_lies_beside_the_database(tmp_path: Path) -> None:
    database = str(tmp_path / "feltd.db")
    assert local_socket_path(database) == f"{database}.sock"
    Path(database).touch()
    assert find_local_socket(database) == f"{database}.sock"


def test_a_long_path_becomes_a_short_one_in_a_private_folder(tmp_path: Path) -> None:
    database = tmp_path / ("d" * 60) / ("e" * 60) / "feltd.db"
    path = local_socket_path(str(database), uid=12345)
    digest = hashlib.sha256(f"{database}.sock".encode()).hexdigest()[:16]

    assert path == f"/tmp/feltd-12345/{digest}.sock"
    assert len(path.encode()) <= 100


def test_the_private_folder_is_made_private_and_a_strangers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A user id of nobody here, so that the folder is this test's own.
    uid = 2_000_000_000 + os.getpid()
    folder = Path(f"/tmp/feltd-{uid}")
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    try:
        with pytest.raises(ListenProblem, match="not a private folder"):
            listen_local(f"{folder}/a.sock")  # made, but it belongs to whoever runs this test
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert list(folder.iterdir()) == []
    finally:
        folder.rmdir()


def test_a_socket_left_by_a_dead_daemon_is_replaced_and_a_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "feltd.db.sock"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    os.close(listen_local(str(path)).fd)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    path.unlink()
    path.write_text("somebody's")
    with pytest.raises(ListenProblem, match="in the way"):
        listen_local(str(path))
    assert path.read_text() == "somebody's"


def test_the_limit_of_open_files_is_raised_and_must_hold_every_connection() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = 1_048_576
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, soft), hard))
        raise_file_limit(100)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
        with pytest.raises(ListenProblem, match="--max-connections"):
            raise_file_limit(hard - 255)
        raise_file_limit(hard - 256)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
