"""The processes of `feltd demo`: a daemon of its own and three workers, and nothing left of them.

Real processes on a free loopback port and a temporary file. Leaving the stage ends them all,
whatever happened on it.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click

from feltd.api.listen import find_local_socket
from feltd.cli.demo_show import Show
from feltd.worker.client import Client

TENANT, APPLICATION = "demo", "files"
#: Each part of a demo ends by then, or the demo has failed.
PART_S = 30.0
LOOK_EVERY_S = 0.15
START_S = 20.0
STOP_S = 12.0
SERVE = (
    "--port", "0", "--tick-ms", "200", "--max-connections", "256",
    "--heartbeat-interval-ms", "1000", "--heartbeat-timeout-ms", "3000",
)  # fmt: skip


class Failed(click.ClickException):
    """The demo did not show what it shall show."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        """Say it on stderr, as every other error is said."""
        click.echo(f"error: {self.message}", file, err=True)


class Stage:
    """A folder, a daemon, some workers. A context manager; `folder` must exist and be empty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "demo.db"
        self.notes = folder / "notes.jsonl"
        self.url = ""
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self._daemon: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._client is not None:
            self._client.close()
        processes = [*self.workers.values(), *([self._daemon] if self._daemon else [])]
        for process in processes:
            _end(process)

    @property
    def client(self) -> Client:
        """The local operator's client."""
        if self._client is None:
            path = find_local_socket(str(self.database))
            self._client = Client(socket=path, patience_ms=10_000)
        return self._client

    def serve(self) -> None:
        """Make the database and start the daemon; returns once it listens."""
        key_file = str(self.folder / "admin.key")
        made = self._run("init", "--data", str(self.database), "--key-file", key_file)
        if made.returncode != 0:
            raise Failed(f"feltd init failed: {made.stderr.decode(errors='replace')}")
        with (self.folder / "daemon.log").open("wb") as log:
            self._daemon = subprocess.Popen(
                [sys.executable, "-m", "feltd", "serve", "--data", str(self.database), *SERVE],
                stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL,
                env=_environment(), start_new_session=True,
            )  # fmt: skip
        self.url = self._first_line(self._daemon)

    def enrolled(self, kinds: Sequence[str]) -> str:
        """A key as `feltd enroll` makes it: bound to a grant that holds these capabilities."""
        issued = self.client.issue_grant(
            subject={"kind": "service", "id": "enroll-demo"},
            tenant_id=TENANT,
            application_id=APPLICATION,
            capabilities=["worker:register", *(f"worker:capability:{kind}" for kind in kinds)],
            resources=[{"kind": "RESOURCE_PREFIX", "uri": f"flow://{APPLICATION}/workers/*"}],
            expires_at_ms=int(time.time() * 1000) + 3_600_000,
        )
        made = self.client.create_key(
            name="enroll-demo",
            scopes=["workers:register"],
            tenants=[TENANT],
            identity_id="enroll-demo",
            grant_id=issued["grant"]["id"],
        )
        return str(made["secret"])

    def start_worker(self, name: str, key: str, concurrency: int, handlers: str) -> None:
        """Start one worker process of these handlers, MODULE:NAME."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.workers[name] = subprocess.Popen(
                [
                    sys.executable, "-m", "feltd", "worker", "run", handlers,
                    "--name", name, "--concurrency", str(concurrency),
                ],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                env=_environment(
                    FELTD_URL=self.url, FELTD_KEY=key, FELTD_DEMO_NOTES=str(self.notes)
                ),
            )  # fmt: skip

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a worker a signal."""
        self.workers[name].send_signal(number)

    def noted(self) -> list[dict[str, Any]]:
        """What the workers' handlers have noted so far, in order."""
        if not self.notes.exists():
            return []
        return [json.loads(line) for line in self.notes.read_text().splitlines()]

    def until(self, show: Show, what: str, done: Callable[[], bool]) -> None:
        """Look until it is so; the demo has failed where it is not by then."""
        ends = time.monotonic() + PART_S
        while not done():
            if time.monotonic() > ends:
                logs = "\n".join(self.last_lines(name) for name in ("daemon", *self.workers))
                raise Failed(f"waited {PART_S:.0f} s until {what}\n{logs}")
            for name, process in self.workers.items():
                if process.poll() is not None and process.returncode != -signal.SIGKILL:
                    ended = f"{name} ended with {process.returncode}"
                    raise Failed(f"{ended}:\n{self.last_lines(name)}")
            time.sleep(LOOK_EVERY_S)
        show.settled()

    def stop_worker(self, name: str) -> int:
        """SIGTERM, and the exit code the worker ends with."""
        process = self.workers[name]
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"{name} did not end within {STOP_S:.0f} s of SIGTERM") from None

    def stop_daemon(self) -> int:
        """SIGTERM, and the exit code the daemon ends with."""
        if self._client is not None:
            self._client.close()
            self._client = None
        assert self._daemon is not None
        self._daemon.send_signal(signal.SIGTERM)
        try:
            return self._daemon.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"the daemon did not end within {STOP_S:.0f} s of SIGTERM") from None

    def check(self) -> tuple[int, str]:
        """`feltd check` over the demo's file: its exit code and what it printed."""
        done = self._run("check", "--data", str(self.database))
        return done.returncode, (done.stdout + done.stderr).decode(errors="replace")

    def last_lines(self, name: str) -> str:
        """The end of a process's log, for when something went wrong."""
        with contextlib.suppress(OSError):
            lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
            return "\n".join(lines[-5:])
        return ""

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "feltd", *arguments],
            capture_output=True, stdin=subprocess.DEVNULL, env=_environment(), check=False,
            timeout=60,
        )  # fmt: skip

    def _first_line(self, process: subprocess.Popen[bytes]) -> str:
        """The address a daemon says once it listens."""
        assert process.stdout is not None
        ends = time.monotonic() + START_S
        while time.monotonic() < ends:
            ready, _, _ = select.select([process.stdout], [], [], 0.1)
            if ready:
                line = process.stdout.readline().decode().strip()
                if line.startswith("http"):
                    return line
            if process.poll() is not None:
                break
        raise Failed(f"the daemon did not start:\n{self.last_lines('daemon')}")


def _environment(**more: str) -> dict[str, str]:
    """This process's environment without its own FELTD_ settings."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("FELTD_")}
    return kept | {"PYTHONUNBUFFERED": "1"} | more


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process whatever state it is in, and what it started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
