"""What is measured: a real daemon on a temporary file, and the bare HTTP floor beside it."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.bench.wire import Line

TENANT = "bench"
APPLICATION = "bench"
CAPABILITY = "bench.work"

FLOOR = """
import asyncio, sys
from hypercorn.asyncio import serve
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

async def echo(request):
    return JSONResponse(await request.json())

config = Config()
config.bind = [f"127.0.0.1:{sys.argv[1]}"]
config.keep_alive_max_requests = 1 << 40
config.accesslog = None
config.errorlog = None
app = Starlette(routes=[Route("/v1/echo", echo, methods=["POST"])])
asyncio.run(serve(app, config))
"""


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Floor:
    """Bare hypercorn and starlette answering one JSON POST: what HTTP costs without feltd."""

    def __init__(self) -> None:
        self.port = free_port()

    async def __aenter__(self) -> "Floor":
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FLOOR, str(self.port)
        )
        for _ in range(200):
            await asyncio.sleep(0.05)
            try:
                line = Line("127.0.0.1", self.port)
                await line.call("POST", "/v1/echo", {})
                line.close()
                break
            except OSError:
                continue
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        await self._process.wait()


class Daemon:
    """`feltd serve` on a temporary file, with an admin, a submitter and workers of one tenant."""

    def __init__(self, *flags: str, prepare: Callable[[Path], None] | None = None) -> None:
        #: Fills the database before it is served.
        self._prepare = prepare
        self._folder = tempfile.TemporaryDirectory(prefix="feltd-bench-")
        #: Its database.
        self.data = Path(self._folder.name) / "bench.db"
        self._flags = flags
        self.port = 0
        self.waiting = 0

    async def __aenter__(self) -> "Daemon":
        run = [sys.executable, "-m", "feltd"]
        key_file = self.data.with_name("admin.key")
        await asyncio.to_thread(
            subprocess.run,
            [*run, "init", "--data", str(self.data), "--key-file", str(key_file)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self.admin = key_file.read_text().strip()
        if self._prepare is not None:
            self._prepare(self.data)
        log = self.data.with_name("log").open("wb")
        self._process = await asyncio.create_subprocess_exec(
            *run,
            "serve",
            "--data",
            str(self.data),
            "--port",
            "0",
            "--max-in-flight",
            "256",
            *self._flags,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env={**os.environ},
        )
        assert self._process.stdout is not None
        said = (await self._process.stdout.readline()).decode().strip()
        self.port = int(said.rsplit(":", 1)[1].rstrip("/"))
        self.operator = self.line(self.admin)
        self.submitter = await self.submitter_of(TENANT)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()
        self._folder.cleanup()

    async def stop(self) -> None:
        """End the daemon; its file stays until the end of the block."""
        if self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), 20)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def line(self, bearer: str) -> Line:
        """A connection with this bearer."""
        return Line("127.0.0.1", self.port, bearer)

    async def submitter_of(self, tenant: str) -> str:
        """The bearer of somebody who creates the tenant's work."""
        subject = f"submitter-{tenant}"
        grant = await self._grant(subject, [f"workload:capability:{CAPABILITY}"], tenant)
        key = await self.operator.call(
            "POST",
            "/v1/keys",
            {
                "name": subject,
                "scopes": ["workloads:create", "workloads:read"],
                "tenants": [tenant],
                "identity_id": subject,
                "grant_id": grant["grant"]["id"],
            },
        )
        return str(key["secret"])

    async def _grant(self, subject_id: str, capabilities: list[str], tenant: str) -> Any:
        return await self.operator.call(
            "POST",
            "/v1/grants",
            {
                "subject": {"kind": "service", "id": subject_id},
                "tenant_id": tenant,
                "application_id": APPLICATION,
                "capabilities": capabilities,
                "resources": [
                    {"kind": "RESOURCE_PREFIX", "uri": f"flow://{APPLICATION}/workers/*"}
                ],
                "expires_at_ms": 4_000_000_000_000,
            },
        )

    async def worker(
        self, name: str, concurrency: int, *, tenant: str = TENANT, **members: Any
    ) -> tuple[str, Line, dict[str, Any]]:
        """Register a worker that was heard: its id, its connection, its row."""
        subject = f"host-{name}"
        may = ["worker:register", f"worker:capability:{CAPABILITY}"]
        grant = await self._grant(subject, may, tenant)
        key = await self.operator.call(
            "POST",
            "/v1/keys",
            {
                "name": subject,
                "scopes": ["workers:register"],
                "tenants": [tenant],
                "identity_id": subject,
                "grant_id": grant["grant"]["id"],
            },
        )
        host = self.line(key["secret"])
        made = await host.call(
            "POST",
            "/v1/workers",
            {
                "name": name,
                "runtime": "process",
                "version": "1",
                "capacity": {"concurrency": concurrency},
                "capabilities": [CAPABILITY],
                "process_id": f"bench-{name}",
                "issue_key": True,
                "takeover": True,
                "heartbeat_interval_ms": 60_000,
                "heartbeat_timeout_ms": 3_600_000,
                **members,
            },
        )
        host.close()
        worker = made["worker"]
        line = self.line(made["worker_key"])
        await line.call(
            "POST",
            f"/v1/workers/{worker['worker_id']}/heartbeat",
            {
                "worker_id": worker["worker_id"],
                "version": "1",
                "capability_version": worker["capability_version"],
                "capacity": {"concurrency": concurrency},
                "health": "HEALTHY",
            },
        )
        return worker["worker_id"], line, worker

    async def fill(self, rows: int, prefix: str) -> None:
        """Create waiting workloads, 1,000 a call, until `rows` wait."""
        rows -= self.waiting
        if rows <= 0:
            return
        self.waiting += rows
        line = self.line(self.submitter)
        for start in range(0, rows, 1000):
            batch = [workload(f"{prefix}-{n}") for n in range(start, min(start + 1000, rows))]
            await line.call("POST", "/v1/workloads/batch", {"workloads": batch})
        line.close()


def workload(key: str, tenant: str = TENANT) -> dict[str, Any]:
    """One small workload."""
    return {
        "tenant_id": tenant,
        "application_id": APPLICATION,
        "definition_id": "bench",
        "idempotency_key": key,
        "capability_snapshot": [CAPABILITY],
        "input": {"n": key},
    }
