"""TLS ended by the daemon itself: what it offers, what it refuses, how it is renewed."""

import http.client
import json
import os
import pty
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from feltd.api.tls import Tls, TlsProblem
from tests.daemon.running import FELTD, PATIENCE_S, Daemon, create, people
from tests.transport.certificates import RSA, Authority

pytestmark = pytest.mark.needs("openssl")
Daemons = Callable[..., Daemon]


def secured(daemons: Daemons, cert: Path, key: Path) -> Daemon:
    return daemons("feltd.db", "--tls-cert", str(cert), "--tls-key", str(key)).start()


def connection(daemon: Daemon, client: ssl.SSLContext) -> http.client.HTTPSConnection:
    port = urlsplit(daemon.url).port
    return http.client.HTTPSConnection("localhost", port, timeout=PATIENCE_S, context=client)


def get(talk: http.client.HTTPConnection, path: str) -> Any:
    talk.request("GET", path)
    with talk.getresponse() as answer:
        return json.loads(answer.read())


def shown(daemon: Daemon, client: ssl.SSLContext) -> str:
    """The name in the certificate that a new connection is shown."""
    with closing(connection(daemon, client)) as talk:
        talk.connect()
        assert isinstance(talk.sock, ssl.SSLSocket)
        subject: Any = (talk.sock.getpeercert() or {})["subject"]
        return str(subject[0][0][1])


def hang_up(daemon: Daemon, said: str) -> None:
    """SIGHUP, and wait until the log says it once more."""
    before = daemon.told().count(said)
    os.kill(daemon.pid, signal.SIGHUP)
    ends_s = time.monotonic() + PATIENCE_S
    while daemon.told().count(said) == before:
        assert time.monotonic() < ends_s, daemon.told()
        time.sleep(0.01)


def test_tls_1_2_and_1_3_with_http_1_1_and_nothing_older(
    daemons: Daemons, authority: Authority
) -> None:
    daemon = secured(daemons, *authority.issue("one"))
    assert daemon.url.startswith("https://127.0.0.1:")
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        client = authority.client()
        client.minimum_version = client.maximum_version = version
        client.set_alpn_protocols(["h2", "http/1.1"])
        with closing(connection(daemon, client)) as talk:
            talk.connect()
            assert isinstance(talk.sock, ssl.SSLSocket)
            assert talk.sock.version() == version.name.replace("_", ".")
            assert talk.sock.selected_alpn_protocol() == "http/1.1"
            assert get(talk, "/health")["transport"] == "https"
    old = authority.client()
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with closing(connection(daemon, old)) as talk, pytest.raises(ssl.SSLError):
        talk.connect()
    stranger = connection(daemon, ssl.create_default_context())
    with closing(stranger), pytest.raises(ssl.SSLCertVerificationError):
        stranger.connect()
    # Clear text on it is no way in, and costs nobody else anything.
    with socket.create_connection(("127.0.0.1", urlsplit(daemon.url).port or 0)) as clear:
        clear.settimeout(PATIENCE_S)
        clear.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP/1.1 200" not in clear.recv(4_096)
    assert shown(daemon, authority.client()) == "one"
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.told()


def test_files_that_cannot_be_used_are_named_in_a_sentence(
    authority: Authority, tmp_path: Path
) -> None:
    """BC-069."""
    cert, key = authority.issue("one")
    _, other = authority.issue("other")
    _, locked = authority.issue("locked", phrase="felt")
    none, torn = tmp_path / "none.pem", tmp_path / "torn.pem"
    torn.write_bytes(cert.read_bytes()[:200] + b"\n-----END CERTIFICATE-----\n")
    for pair, said in (
        ((none, key), f"--tls-cert {none} cannot be read: No such file"),
        ((cert, none), f"--tls-key {none} cannot be read: No such file"),
        ((cert, tmp_path), f"--tls-key {tmp_path} cannot be read: Is a directory"),
        ((key, key), f"--tls-cert {key} holds no certificate in PEM"),
        ((cert, cert), f"--tls-key {cert} holds no private key in PEM"),
        ((cert, other), "the key belongs to another certificate"),
        ((cert, locked), f"--tls-key {locked} has a passphrase"),
        ((torn, key), f"--tls-cert {torn} with its key cannot be used: "),
    ):
        with pytest.raises(TlsProblem) as problem:
            Tls(str(pair[0]), str(pair[1]))
        assert said in str(problem.value)
        assert "\n" not in str(problem.value)


def test_a_key_with_a_passphrase_ends_the_start_and_nobody_is_asked(
    daemons: Daemons, authority: Authority
) -> None:
    daemon = daemons()
    cert, key = authority.issue("locked", phrase="felt")
    mine, its = pty.openpty()
    flags = ("--tls-cert", str(cert), "--tls-key", str(key))
    ran = subprocess.run(
        (*FELTD, "serve", "--data", str(daemon.data), "--port", "0", *flags),
        stdin=its, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    os.close(its)
    os.close(mine)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert f"error: --tls-key {key} has a passphrase: give one without\n" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_renewed_certificate_is_served_after_sighup_and_a_bad_one_changes_nothing(
    daemons: Daemons, authority: Authority
) -> None:
    """From an elliptic curve to RSA, as authorities change their minds; nobody is cut."""
    cert, key = authority.issue("one")
    daemon = secured(daemons, cert, key)
    client = authority.client()
    with closing(connection(daemon, client)) as kept:
        assert get(kept, "/health")["status"] == "healthy"

        renewed = authority.issue("two", RSA)
        cert.write_bytes(renewed[0].read_bytes())
        key.write_bytes(renewed[1].read_bytes())
        assert shown(daemon, client) == "one"
        hang_up(daemon, "certificate read again")
        assert shown(daemon, client) == "two"

        cert.write_text("half a certi")
        hang_up(daemon, "the certificate was not renewed")
        assert shown(daemon, client) == "two"
        health = get(kept, "/health")
        assert health["status"] == "healthy", "everybody is served, and a person has time"
        (reason,) = (one for one in health["reasons"] if "CERTIFICATE_UNREADABLE" in str(one))
        assert "the one before is served" in str(reason)

        cert.write_bytes(renewed[0].read_bytes())
        hang_up(daemon, "certificate read again")
        assert get(kept, "/health")["reasons"] == []
    assert daemon.stop() == 0


def test_sighup_without_tls_changes_nothing(daemons: Daemons) -> None:
    daemon = daemons().start()
    hang_up(daemon, "nothing here is read again")
    assert daemon.get("/health")["status"] == "healthy"
    assert daemon.stop() == 0


def test_a_terminal_that_goes_away_stops_the_daemon_in_order(daemons: Daemons) -> None:
    daemon = daemons()
    mine, its = pty.openpty()
    with daemon.log.open("a") as log:
        daemon.process = subprocess.Popen(
            (*FELTD, "serve", "--data", str(daemon.data), "--port", "0"),
            stdin=its, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    os.close(its)
    assert daemon.process.stdout is not None
    assert daemon.process.stdout.readline().startswith("http")
    daemon.process.send_signal(signal.SIGHUP)
    assert daemon.wait() == 0
    os.close(mine)
    assert '"event": "stopped"' in daemon.told()


def test_the_command_line_and_a_worker_believe_a_private_authority(
    daemons: Daemons, authority: Authority, tmp_path: Path
) -> None:
    daemon = secured(daemons, *authority.issue("one"))
    url = f"https://localhost:{urlsplit(daemon.url).port}"
    kept = {name: text for name, text in os.environ.items() if not name.startswith("FELTD_")}
    kept |= {"FELTD_URL": url, "FELTD_KEY": daemon.key}

    def feltd(*words: str, **env: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            (*FELTD, *words), env=kept | env, cwd=tmp_path, capture_output=True, text=True,
            timeout=PATIENCE_S * 2, check=False,
        )  # fmt: skip

    trusted = {"SSL_CERT_FILE": str(authority.cert)}
    believes = feltd("health", **trusted)
    assert believes.returncode == 0, believes.stderr
    doubts = feltd("health")
    assert doubts.returncode != 0
    assert "certificate" in doubts.stderr.lower()
    assert "SSL_CERT_FILE" in doubts.stderr
    assert "Traceback" not in doubts.stderr

    daemon.tls = authority.client()
    mesh = people(daemon)
    work = create(daemon, mesh, "a")
    trusted |= {"FELTD_KEY": mesh.registrar_key}
    with (tmp_path / "worker.log").open("w") as log:
        worker = subprocess.Popen(
            (*FELTD, "worker", "run", "--exec", "cat", "--name", "far"),
            env=kept | trusted, cwd=tmp_path, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        ends_s = time.monotonic() + PATIENCE_S
        while daemon.get(f"/v1/workloads/{work['workload_id']}")["state"] != "COMPLETED":
            assert time.monotonic() < ends_s, (tmp_path / "worker.log").read_text()
            time.sleep(0.05)
        worker.terminate()
        assert worker.wait(PATIENCE_S) == 0, (tmp_path / "worker.log").read_text()
    finally:
        worker.kill()
