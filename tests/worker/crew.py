"""The people and processes of one application: its grant, its keys, its workers, its work."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from feltd.worker import Client
from tests.daemon.running import FELTD, Daemon

PATIENCE_S = 30.0
KINDS = ("extract",)


class Crew:
    """One application on a daemon. `client` is the operator's; `close` ends every process."""

    def __init__(self, daemon: Daemon, folder: Path, name: str) -> None:
        self.daemon = daemon
        self.folder = folder
        self.application = "app-" + hashlib.sha256(name.encode()).hexdigest()[:12]
        self.seen_file = folder / "seen.jsonl"
        self.client = Client(daemon.url, daemon.key)
        self.grant_id, self.key = self.enroll()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def enroll(self, **constraints: Any) -> tuple[str, str]:
        """A grant and a key bound to it, as `feltd enroll` makes them."""
        subject = "enroll-" + os.urandom(6).hex()
        issued = self.client.issue_grant(
            subject={"kind": "service", "id": subject},
            tenant_id="t",
            application_id=self.application,
            capabilities=["worker:register", *(f"worker:capability:{kind}" for kind in KINDS)],
            resources=[{"kind": "RESOURCE_PREFIX", "uri": f"flow://{self.application}/workers/*"}],
            constraints=constraints,
            expires_at_ms=int(time.time() * 1000) + 30 * 86_400_000,
        )
        made = self.client.create_key(
            name=subject,
            scopes=["workers:register"],
            tenants=["t"],
            identity_id=subject,
            grant_id=issued["grant"]["id"],
        )
        return issued["grant"]["id"], made["secret"]

    def start(
        self, name: str = "w", *flags: str, handlers: str = "tests.worker.handlers:worker",
        url: str | None = None, **env: str,
    ) -> "subprocess.Popen[bytes]":  # fmt: skip
        """Start a worker process."""
        target = () if {"--exec", "--wasm", "--remote"} & {*flags} else (handlers,)
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                (*FELTD, "worker", "run", *target, "--name", name, *flags),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=os.environ | {
                    "FELTD_URL": url or self.daemon.url, "FELTD_KEY": self.key,
                    "FELTD_TEST_SEEN": str(self.seen_file),
                } | env,
            )  # fmt: skip
        self.processes[f"{name}-{process.pid}"] = process
        return process

    def log(self, name: str = "w") -> str:
        """What a worker process said."""
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def worker(self, name: str = "w") -> dict[str, Any]:
        """The daemon's row of a worker of this application, {} before it registered."""
        found = self.client.workers(application_id=self.application)
        return next((dict(one) for one in found if one["name"] == name), {})

    def ready(self, name: str = "w") -> dict[str, Any]:
        """Wait until a worker is READY."""
        self.until(lambda: self.worker(name).get("lifecycle") == "READY", f"{name} is ready")
        return self.worker(name)

    def work(self, definition: str, given: Any = None, **body: Any) -> str:
        """A workload of this application; its id."""
        made = self.client.create(
            {
                "tenant_id": "t",
                "application_id": self.application,
                "definition_id": definition,
                "input": given,
                "capability_snapshot": ["extract"],
                "authorization_grant": self.submitting(),
                **body,
            }
        )
        return str(made["workload_id"])

    def submitting(self) -> str:
        """The token of a grant that the operator's own key may create work under."""
        if not hasattr(self, "_token"):
            me = self.client.me()["subject"]
            self._token = self.client.issue_grant(
                subject=me,
                tenant_id="t",
                application_id=self.application,
                capabilities=["workload:capability:extract"],
                resources=[],
                expires_at_ms=int(time.time() * 1000) + 30 * 86_400_000,
            )["token"]
        return str(self._token)

    def final(self, workload_id: str) -> dict[str, Any]:
        """The workload once it is COMPLETED, CANCELLED or DEAD_LETTERED."""
        for _ in range(6):
            found = self.client.workload(workload_id, 5_000)
            if found["state"] in ("COMPLETED", "CANCELLED", "DEAD_LETTERED"):
                return dict(found)
        raise AssertionError(f"never final: {found}\n{self.log()}")

    def state(self, workload_id: str) -> str:
        """The workload's present state."""
        return str(self.client.workload(workload_id)["state"])

    def ends(self, workload_id: str) -> list[str]:
        """How each attempt ended, oldest first."""
        found = self.client.workload(workload_id)["attempts"]
        ordered = sorted(found, key=lambda one: one["number"])
        return [one.get("end") or "live" for one in ordered]

    def seen(self, what: str) -> list[dict[str, Any]]:
        """What handlers told of themselves."""
        if not self.seen_file.exists():
            return []
        lines = [json.loads(line) for line in self.seen_file.read_text().splitlines()]
        return [line for line in lines if line["what"] == what]

    def until(self, done: Callable[[], Any], what: str) -> None:
        """Wait for something to become so."""
        ends = time.monotonic() + PATIENCE_S
        while not done():
            logs = "\n".join(path.read_text() for path in self.folder.glob("*.log"))
            assert time.monotonic() < ends, f"never: {what}\n{logs[-3_000:]}"
            time.sleep(0.05)

    def ended(self, process: "subprocess.Popen[bytes]") -> int:
        """Wait for a process to end; its exit code."""
        try:
            return process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it never ended: {self.log()}") from None

    def close(self) -> None:
        """End what still runs."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait()
        self.client.close()
