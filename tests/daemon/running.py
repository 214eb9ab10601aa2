"""A real daemon in a process of its own, and the calls a client makes to it."""

import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from feltd.cli.init import make_database, make_keyring
from feltd.config import Config
from feltd.daemon.place import take_lock

#: How long a process may take to begin or end before the test calls it hung.
PATIENCE_S = 30.0
FELTD = (sys.executable, "-m", "feltd")


class Answer(NamedTuple):
    """One HTTP answer; `body` is its JSON, or its text where it is none."""

    status: int
    body: Any
    headers: dict[str, str]


class Daemon:
    """`feltd serve` on one database. `url` and `pid` are those of the present process."""

    def __init__(self, data: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        self.data = data
        self.flags = flags
        self.env = env or {}
        self.key = ""
        self.url = ""
        self.told_at_start = ""
        self.tls: ssl.SSLContext | None = None
        self.process: subprocess.Popen[str] | None = None
        self.log = data.with_name(data.name + ".log")

    def init(self) -> "Daemon":
        """Make the database as `feltd init` does, without its process; its admin key is `key`."""
        config = Config(data=str(self.data))
        with take_lock(config.path):
            make_keyring(config.keyring_path)
            self.key = make_database(config.path, config.namespace).secret
        return self

    def start(self, *flags: str, env: dict[str, str] | None = None) -> "Daemon":
        """Start a process and wait until it names its address."""
        process = self.spawn(*flags, env=env)
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line:
            process.wait(PATIENCE_S)
            raise AssertionError(f"no address; exit {process.returncode}: {self.told()}")
        # The address, and behind it what else the daemon has to say.
        self.told_at_start, self.url = line, line.split()[0]
        return self

    def spawn(self, *flags: str, env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
        """Start a process and wait for nothing."""
        arguments = (*FELTD, "serve", "--data", str(self.data), "--port", "0", *self.flags, *flags)
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                arguments,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | self.env | (env or {}),
            )
        return self.process

    @property
    def pid(self) -> int:
        """The process."""
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        return self._end(signal.SIGTERM)

    def wait(self) -> int:
        """Wait for the process to end by itself; the exit code."""
        assert self.process is not None
        self.process.wait(PATIENCE_S)
        return self._closed()

    def close(self) -> None:
        """End whatever still runs."""
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def told(self) -> str:
        """The log so far."""
        return self.log.read_text() if self.log.exists() else ""

    def connection(self) -> http.client.HTTPConnection:
        """A new connection to it, by TLS where `tls` says whom to believe."""
        address = urlsplit(self.url)
        host, port = address.hostname or "", address.port
        if self.tls is None:
            return http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
        return http.client.HTTPSConnection(host, port, timeout=PATIENCE_S, context=self.tls)

    def call(
        self, method: str, path: str, body: object = None, *, key: str | None = None, **headers: str
    ) -> Answer:
        """One call on a connection of its own; OSError or HTTPException when it is lost."""
        connection = self.connection()
        sent = {name.replace("_", "-"): text for name, text in headers.items()}
        bearer = self.key if key is None else key
        if bearer:
            sent["Authorization"] = f"Bearer {bearer}"
        raw = None
        if body is not None:
            raw, sent["Content-Type"] = json.dumps(body), "application/json"
        try:
            connection.request(method, path, raw, sent)
            got = connection.getresponse()
            text = got.read().decode()
        finally:
            connection.close()
        is_json = "json" in got.headers.get("Content-Type", "")
        members = {name.lower(): one for name, one in got.headers.items()}
        return Answer(got.status, json.loads(text) if is_json else text, members)

    def get(self, path: str, **named: Any) -> Any:
        """The body of a GET that is answered 200."""
        answer = self.call("GET", path, **named)
        assert answer.status == 200, answer
        return answer.body

    def post(self, path: str, body: object = None, **named: Any) -> Any:
        """The body of a POST that is answered 2xx."""
        answer = self.call("POST", path, body if body is not None else {}, **named)
        assert answer.status < 300, answer
        return answer.body

    def check(self) -> "subprocess.CompletedProcess[str]":
        """`feltd check` on the file."""
        return feltd("check", "--data", str(self.data), "--json")

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(PATIENCE_S)
        return self._closed()

    def _closed(self) -> int:
        assert self.process is not None
        if self.process.stdout is not None:
            self.process.stdout.close()
        return self.process.returncode


def feltd(*arguments: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    return subprocess.run(
        (*FELTD, *arguments),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 2,
        check=False,
        env=os.environ | (env or {}),
    )


class Edge:
    """A worker process as the daemon sees it: registers, beats, takes and finishes work."""

    def __init__(self, daemon: Daemon, name: str, registrar_key: str, **body: Any) -> None:
        self.daemon = daemon
        self.body = {
            "name": name,
            "runtime": "process",
            "version": "1",
            "capacity": {"concurrency": 8},
            "process_id": f"process-{name}",
            "issue_key": True,
        } | body
        answer = daemon.post("/v1/workers", self.body, key=registrar_key)
        self.key: str = answer["worker_key"]
        self.id: str = answer["worker"]["worker_id"]
        self.capability_version: int = answer["worker"]["capability_version"]

    def call(self, verb: str, body: dict[str, Any]) -> Answer:
        """A call on its own path."""
        return self.daemon.call("POST", f"/v1/workers/{self.id}/{verb}", body, key=self.key)

    def beat(self, **body: Any) -> Answer:
        """One heartbeat."""
        return self.call(
            "heartbeat",
            {
                "worker_id": self.id,
                "version": "1",
                "capability_version": self.capability_version,
                "capacity": {"concurrency": 8},
                "health": "HEALTHY",
            }
            | body,
        )

    def pull(self, **body: Any) -> list[dict[str, Any]]:
        """Claims it was given."""
        answer = self.call("claims", {"max": 1} | body)
        assert answer.status == 200, answer
        return list(answer.body["claims"])

    def fenced(self, verb: str, claim: dict[str, Any], **body: Any) -> Answer:
        """One fenced write under a claim."""
        fence = {name: claim[name] for name in ("claim_id", "worker_id", "fencing_token")}
        path = f"/v1/workloads/{claim['workload_id']}/{verb}"
        return self.daemon.call("POST", path, fence | body, key=self.key)


class Mesh(NamedTuple):
    """What a test needs to have work done: a grant, and keys bound to it."""

    submitter_key: str
    registrar_key: str


def people(daemon: Daemon, **constraints: Any) -> Mesh:
    """A grant for one service over everything of tenant t, application a; two keys bound to it."""
    made = daemon.post(
        "/v1/grants",
        {
            "subject": {"kind": "service", "id": "crew"},
            "tenant_id": "t",
            "application_id": "a",
            "capabilities": ["worker:register", "worker:capability:documents.extract"],
            "resources": [{"kind": "RESOURCE_PREFIX", "uri": "flow://a/workers/*"}],
            "constraints": constraints,
            "expires_at_ms": int(time.time() * 1000) + 86_400_000,
        },
    )
    keys = [
        daemon.post(
            "/v1/keys",
            {
                "name": name,
                "scopes": scopes,
                "tenants": ["t"],
                "identity_id": "crew",
                "grant_id": made["grant"]["id"],
            },
        )["secret"]
        for name, scopes in (
            ("submitter", ["workloads:create", "workloads:read", "workloads:operate"]),
            ("registrar", ["workers:register"]),
        )
    ]
    return Mesh(*keys)


def create(daemon: Daemon, mesh: Mesh, key: str, **body: Any) -> dict[str, Any]:
    """A workload of definition extract, named by its idempotency key."""
    asked = {
        "definition_id": "extract",
        "idempotency_key": key,
        "capability_snapshot": ["documents.extract"],
        "tenant_id": "t",
        "application_id": "a",
    } | body
    answer: dict[str, Any] = daemon.post("/v1/workloads", asked, key=mesh.submitter_key)
    return answer
