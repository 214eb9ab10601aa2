"""One daemon with real keys for the stories of a file, and clients that wait in threads."""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.daemon.running import Answer, Daemon, Edge

PATIENCE_S = 20.0
_numbers = count(1)


class Waiting:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Answer]) -> None:
        self._answer: Answer | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._answer = self._call()

    @property
    def over(self) -> bool:
        """Whether it was answered."""
        return not self._thread.is_alive()

    def answer(self) -> Answer:
        """Its answer, waited for."""
        self._thread.join(PATIENCE_S)
        assert self._answer is not None, "the call was never answered"
        return self._answer


class Crew:
    """The people and workers of one application of tenant t, as the stories name them."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self._polls: list[tuple[Edge, Waiting]] = []
        self.application_id = f"app-{next(_numbers)}"
        grant = daemon.post(
            "/v1/grants",
            {
                "subject": {"kind": "service", "id": "crew"},
                "tenant_id": "t",
                "application_id": self.application_id,
                "capabilities": ["worker:register", "worker:capability:documents.extract"],
                "resources": [
                    {"kind": "RESOURCE_PREFIX", "uri": f"flow://{self.application_id}/workers/*"}
                ],
                "expires_at_ms": int(time.time() * 1000) + 86_400_000,
            },
        )
        self.submitter_key, self.registrar_key = (
            self._key(grant["grant"]["id"], scope)
            for scope in ("workloads:create", "workers:register")
        )

    def _key(self, grant_id: str, scope: str) -> str:
        body = {
            "name": scope.replace(":", "-"),
            "scopes": [scope],
            "tenants": ["t"],
            "identity_id": "crew",
            "grant_id": grant_id,
        }
        return str(self.daemon.post("/v1/keys", body)["secret"])

    def worker(self, **body: Any) -> Edge:
        """A new worker, READY."""
        edge = Edge(self.daemon, f"edge-{next(_numbers)}", self.registrar_key, **body)
        concurrency = edge.body["capacity"]["concurrency"]
        assert edge.beat(capacity={"concurrency": concurrency}).status == 200
        return edge

    def work(self, **body: Any) -> str:
        """A new workload of definition extract; its id."""
        asked = {
            "definition_id": "extract",
            "idempotency_key": f"job-{next(_numbers)}",
            "capability_snapshot": ["documents.extract"],
        }
        made = self.daemon.post("/v1/workloads", asked | body, key=self.submitter_key)
        return str(made["workload_id"])

    def state(self, job: str) -> str:
        """The state of a workload."""
        return str(self.daemon.get(f"/v1/workloads/{job}")["state"])

    def parked(self) -> int:
        """Long polls parked now."""
        return int(self.metric("feltd_long_polls "))

    def metric(self, line: str) -> float:
        """The number behind the metric whose line begins so; 0 before there is one."""
        for text in str(self.daemon.get("/metrics")).splitlines():
            if text.startswith(line):
                return float(text.rsplit(" ", 1)[1])
        return 0.0

    def poll(self, edge: Edge, wait_ms: int = 20_000, **body: Any) -> Waiting:
        """A pull that waits; returned once it is parked."""
        before = self.parked()
        waiting = Waiting(lambda: edge.call("claims", {"wait_ms": wait_ms} | body))
        eventually(lambda: self.parked() > before or waiting.over)
        self._polls.append((edge, waiting))
        return waiting

    def go_home(self) -> None:
        """End what still waits, so that it is not counted in the next story."""
        for edge, waiting in self._polls:
            if not waiting.over and self.daemon.process and self.daemon.process.poll() is None:
                edge.call("drain", {})
                waiting.answer()


class Raw:
    """A connection of its own on which a request was sent and no answer is read."""

    def __init__(self, daemon: Daemon, path: str, body: object, key: str) -> None:
        address = urlsplit(daemon.url)
        self.socket = socket.create_connection((address.hostname, address.port), PATIENCE_S)
        raw = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
        )
        self.socket.sendall(head.encode() + raw)

    def reset(self) -> None:
        """Go away with a reset, as a killed process does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def eventually(what: Callable[[], object]) -> None:
    """Wait until it holds."""
    end_s = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end_s, "it never came true"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for the stories of a file."""
    running = Daemon(tmp_path_factory.mktemp("claims") / "feltd.db", "--tick-ms", "200")
    try:
        yield running.init().start()
    finally:
        running.close()


@pytest.fixture
def crew(daemon: Daemon) -> Iterator[Crew]:
    """An application of its own for each story."""
    people = Crew(daemon)
    yield people
    people.go_home()
