"""nginx and Caddy, really run, by the very snippets that are shipped, with a test's own ports."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.daemon.running import PATIENCE_S
from tests.transport.certificates import Authority

SNIPPETS = Path(__file__).resolve().parents[2] / "systemd"
CADDY = Path(sys.executable).with_name("caddy")

#: What a distribution's own nginx.conf has around the snippet.
NGINX = """
{user}
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/feltd.conf;
}}
"""


class Proxy(NamedTuple):
    """A running proxy: its process, and the ports for TLS and for clear text (0: none)."""

    process: "subprocess.Popen[bytes]"
    port: int
    clear_port: int
    log: Path

    def close(self) -> None:
        """End it, its workers too."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()


def nginx(folder: Path, authority: Authority, daemon_url: str) -> Proxy:
    """nginx before the daemon at an address (http://… or unix:…)."""
    port, clear_port = _ports(2)
    cert, key = authority.issue("nginx")
    snippet = _substituted(
        "nginx.conf",
        ("    listen [::]:80;\n", ""),
        ("    listen [::]:443 ssl;\n", ""),
        ("listen 80;", f"listen 127.0.0.1:{clear_port};"),
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("/etc/ssl/felt.example.org.pem", str(cert)),
        ("/etc/ssl/felt.example.org.key", str(key)),
        ("server 127.0.0.1:7610;", f"server {_address(daemon_url)};"),
    ).replace("felt.example.org", "localhost")
    (folder / "feltd.conf").write_text(snippet)
    user = "user root;" if os.geteuid() == 0 else ""
    main, log = folder / "nginx.conf", folder / "nginx-error.log"
    main.write_text(NGINX.format(folder=folder, user=user))
    command = ["nginx", "-c", str(main), "-p", str(folder), "-e", str(log), "-g", "daemon off;"]
    return _started(command, Proxy(None, port, clear_port, log))  # type: ignore[arg-type]


def caddy(folder: Path, authority: Authority, daemon_url: str) -> Proxy:
    """Caddy before the daemon; the certificate is given, where it would get one by itself."""
    (port,) = _ports(1)
    cert, key = authority.issue("caddy")
    address = _address(daemon_url).replace("unix:", "unix/")
    site = f"https://localhost:{port} {{\n\tbind 127.0.0.1\n\ttls {cert} {key}\n"
    snippet = _substituted(
        "Caddyfile",
        ("felt.example.org {\n", site),
        ("reverse_proxy 127.0.0.1:7610 {", f"reverse_proxy {address} {{"),
    )  # fmt: skip
    own = f"{{\n\tadmin off\n\tauto_https disable_redirects\n\tstorage file_system {folder}\n}}\n"
    main, log = folder / "Caddyfile", folder / "caddy.log"
    main.write_text(own + snippet)
    command = [str(CADDY), "run", "--config", str(main), "--adapter", "caddyfile"]
    return _started(command, Proxy(None, port, 0, log))  # type: ignore[arg-type]


def _started(command: list[str], proxy: Proxy) -> Proxy:
    folder = proxy.log.parent
    with proxy.log.open("ab") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=folder, env=os.environ | {"HOME": str(folder)}
        )
    ends_s = time.monotonic() + PATIENCE_S
    while True:
        assert process.poll() is None, proxy.log.read_text()
        try:
            socket.create_connection(("127.0.0.1", proxy.port), 1).close()
        except OSError:
            assert time.monotonic() < ends_s, proxy.log.read_text()
            time.sleep(0.02)
        else:
            return proxy._replace(process=process)


def _substituted(name: str, *changes: tuple[str, str]) -> str:
    text = (SNIPPETS / name).read_text()
    for shipped, ours in changes:
        assert shipped in text, f"{name} no longer has {shipped!r}"
        text = text.replace(shipped, ours)
    return text


def _address(url: str) -> str:
    return url if url.startswith("unix:") else urlsplit(url).netloc


def _ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports
