"""What a verification stands on: a real daemon on a free port, and the program under test.

Both are processes in groups of their own; closing ends them and what they started, whatever
happened. What the daemon holds is read from its database, never from what a program prints.
"""

import contextlib
import os
import resource
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from feltd.api.listen import find_local_socket
from feltd.cli.init import make_database, make_keyring
from feltd.daemon.place import take_lock
from feltd.store.connect import open_local
from feltd.worker.client import Client

START_S = 30.0
#: How often a worker beats and when it counts as silent, unless it asks for something else itself.
#: Silence is judged slowly: a lease that lapses has to come before it.
INTERVAL_MS, TIMEOUT_MS = 1_000, 8_000
#: A program that prints and prints is ended here, before it has filled the disk.
LOG_BYTES_MAX = 256 * 1024**2
#: The end of what it printed, searched for the last lines.
LAST_WORDS_BYTES = 8_192
#: Connections are few here, and descriptors may be too.
CONNECTIONS_MAX, CONNECTIONS_MIN, SPARE_FILES = 256, 32, 256


class Trouble(Exception):
    """The verification itself cannot be done; says nothing about the program."""

    remedy = ""


class Ground:
    """A daemon on a new database in `folder`, and the operator's way to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "verify.db"
        self.url = ""
        self._daemon: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None
        self._port = 0

    @property
    def client(self) -> Client:
        """The local operator's client; one for all threads."""
        assert self._client is not None
        return self._client

    def start(self) -> None:
        """Make the database if there is none, and serve it; on the same port each time."""
        if not self.database.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            with take_lock(self.database):
                make_keyring(self.folder / "signing.keyring")
                make_database(self.database, "default")
        log = (self.folder / "daemon.log").open("ab")
        with log:
            self._daemon = subprocess.Popen(
                [
                    sys.executable, "-m", "feltd", "serve", "--data", str(self.database),
                    "--port", str(self._port), "--tick-ms", "100",
                    "--max-connections", str(connections()),
                    "--heartbeat-interval-ms", str(INTERVAL_MS),
                    "--heartbeat-timeout-ms", str(TIMEOUT_MS),
                ],
                stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL,
                env=environment(), start_new_session=True,
            )  # fmt: skip
        self.url = self._first_line(self._daemon)
        self._port = int(self.url.rpartition(":")[2])
        if self._client is None:
            path = find_local_socket(str(self.database))
            self._client = Client(socket=path, patience_ms=10_000)

    def kill(self) -> None:
        """SIGKILL: no drain, no checkpoint, no word to anybody."""
        if self._daemon is not None:
            end(self._daemon)

    def close(self) -> None:
        """End the daemon. Safe to repeat."""
        if self._client is not None:
            self._client.close()
        self.kill()

    def open(self) -> sqlite3.Connection:
        """A reading connection to the daemon's database, for one thread."""
        conn = open_local(self.database)
        conn.row_factory = sqlite3.Row
        return conn

    def enroll(self, application: str, capabilities: Sequence[str]) -> tuple[str, str]:
        """What `feltd enroll` makes: a grant, and the key of a worker process. (grant id, key)."""
        subject = f"enroll-{application}"
        issued = self.client.issue_grant(
            subject={"kind": "service", "id": subject}, **granted(application, capabilities)
        )
        made = self.client.create_key(
            name=subject,
            scopes=["workers:register"],
            tenants=["verify"],
            identity_id=subject,
            grant_id=issued["grant"]["id"],
        )
        return str(issued["grant"]["id"]), str(made["secret"])

    def _first_line(self, process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        ends_s = time.monotonic() + START_S
        while time.monotonic() < ends_s and process.poll() is None:
            ready, _, _ = select.select([process.stdout], [], [], 0.1)
            if ready:
                line = process.stdout.readline().decode().strip()
                if line.startswith("http"):
                    return line
        said = (self.folder / "daemon.log").read_text(errors="replace")[-500:]
        raise Trouble(f"the daemon did not start: {said}")


class Program:
    """The program under test; what it prints goes to a file and decides nothing."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.command = list(command)
        self.log = log
        self.env = env
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it. Raises Trouble where there is no such program."""
        try:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    env=environment(**self.env), start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            raise Trouble(f"{self.command[0]} cannot be run: {error.strerror}") from error

    @property
    def code(self) -> int | None:
        """Its exit code, None while it runs."""
        return None if self.process is None else self.process.poll()

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send it a signal, or its whole group."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if group:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)

    def last_words(self) -> str:
        """The end of what it printed, for whoever has to find the cause."""
        with contextlib.suppress(OSError):
            with self.log.open("rb") as log:
                log.seek(max(0, self.log.stat().st_size - LAST_WORDS_BYTES))
                lines = log.read(LAST_WORDS_BYTES).decode(errors="replace").strip().splitlines()
            return " · ".join(line.strip()[:200] for line in lines[-2:])
        return ""

    def close(self) -> None:
        """End it. Safe to repeat."""
        if self.process is not None:
            end(self.process)


def granted(application: str, capabilities: Sequence[str]) -> dict[str, Any]:
    """What a worker of an application may do, as the members of a grant."""
    return {
        "tenant_id": "verify",
        "application_id": application,
        "capabilities": [
            "worker:register",
            *(f"worker:capability:{capability}" for capability in capabilities),
        ],
        "resources": [{"kind": "RESOURCE_PREFIX", "uri": f"flow://{application}/workers/*"}],
        "expires_at_ms": int(time.time() * 1000) + 3_600_000,
    }


def connections() -> int:
    """As many connections as the hard limit of file descriptors leaves room for, at most 256."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(CONNECTIONS_MIN, min(CONNECTIONS_MAX, hard - SPARE_FILES))


def environment(**more: str) -> dict[str, str]:
    """This process's environment without its own FELTD_ settings."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("FELTD_")}
    return kept | {"PYTHONUNBUFFERED": "1"} | more


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """Meanwhile no file of this process and of what it starts grows beyond LOG_BYTES_MAX."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    bounds = [bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_FSIZE, (min([LOG_BYTES_MAX, *bounds]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def end_left_behind(mark: str) -> None:
    """SIGKILL what has `mark` (NAME=text) in its environment: a program's child that left it."""
    for told in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in told.read_bytes().split(b"\0"):
                os.kill(int(told.parent.name), signal.SIGKILL)


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a process and its group, and wait."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
