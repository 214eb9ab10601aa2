"""A town to look at: a real daemon with people, live worker processes, and a row of every kind."""

import time
import urllib.parse
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.daemon.running import Answer, Daemon
from tests.worker.crew import Crew

PASSWORD = "a horse, a battery, a staple"
#: Names that would do something in a page that forgot to escape one.
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
#: The same, as far as names of things may hold such characters.
HOSTILE_ID = "evil@example+1"


class Town:
    """One daemon, three people, one application with its workers."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.daemon = Daemon(folder / "feltd.db", "--tick-ms", "200", *flags).init().start()
        self.crew = Crew(self.daemon, folder, "town")
        self.sessions: dict[str, str] = {}
        for name, role in (("ada", "admin"), ("olga", "operator"), ("vic", "viewer")):
            body = {"username": name, "password": PASSWORD, "roles": {"*": role}}
            self.daemon.post("/v1/users", body)

    @property
    def url(self) -> str:
        """Where the daemon listens."""
        return self.daemon.url

    def close(self) -> None:
        """End every process."""
        self.crew.close()
        self.daemon.close()

    def worker(self, name: str, *flags: str) -> dict[str, Any]:
        """Start a worker process and wait until it is ready."""
        self.crew.start(
            name, *flags, handlers="tests.console.handlers:worker",
            FELTD_TEST_FOLDER=str(self.folder),
        )  # fmt: skip
        return self.crew.ready(name)

    def dead(self, definition: str = "extract", **body: Any) -> str:
        """A workload that has died of what its handler said."""
        policy = {"retry_policy": {"max_attempts": 1}}
        workload_id = self.crew.work(definition, {"file": "a.pdf"}, **policy, **body)
        assert self.crew.final(workload_id)["state"] == "DEAD_LETTERED"
        return workload_id

    def login(self, name: str) -> str:
        """The session of a person."""
        if name not in self.sessions:
            body = {"username": name, "password": PASSWORD}
            self.sessions[name] = self.daemon.post("/v1/auth/login", body, key="")["session"]
        return self.sessions[name]

    def page(self, path: str, *, by: str = "ada") -> Answer:
        """A page as a person gets it."""
        return self.daemon.call("GET", path, key=self.login(by), Accept="text/html")

    def form(self, path: str, *, by: str = "ada", **fields: str) -> Answer:
        """What a form answers that is sent by a person."""
        address = urlsplit(self.url)
        connection = HTTPConnection(address.hostname or "", address.port, timeout=30)
        sent = {
            "Authorization": f"Bearer {self.login(by)}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        try:
            connection.request("POST", path, urllib.parse.urlencode(fields), sent)
            got = connection.getresponse()
            text = got.read().decode()
        finally:
            connection.close()
        return Answer(got.status, text, {name.lower(): one for name, one in got.headers.items()})

    def fill(self) -> None:
        """A row of every kind, some of them named by somebody who means no good."""
        post = self.daemon.post
        app, now_ms = self.crew.application, int(time.time() * 1000)
        post("/v1/pools", {
            "pool_id": "gpu", "tenant_id": "t", "name": HOSTILE, "application_id": app,
            "capabilities": ["extract"], "max_concurrency": 4,
        })  # fmt: skip
        post("/v1/holds", {
            "scope": "definition", "value": "held", "tenant_id": "t", "reason": HOSTILE,
        })  # fmt: skip
        grant = self.crew.submitting()
        common = {"tenant_id": "t", "target_capability": "extract", "authorization_grant": grant}
        post("/v1/triggers", common | {
            "trigger_id": HOSTILE_ID, "source_collection": "orders", "change_kind": "any",
            "predicate": {"op": "eq", "field": "after.status", "value": HOSTILE}, "start": 0,
        })  # fmt: skip
        post("/v1/triggers", common | {
            "trigger_id": "nightly", "kind": "schedule", "cron": "30 2 * * *",
            "timezone": "Europe/Berlin", "input": {"say": HOSTILE},
        })  # fmt: skip
        self.worker("edge-1", "--label", "zone=a")
        self.dead()
        post("/v1/keys", {"name": "soon <b>over</b>", "scopes": ["workloads:read"],
                          "tenants": ["t"], "expires_at_ms": now_ms + 86_400_000})  # fmt: skip


def wait(done: Any, what: str, patience_s: float = 30.0) -> Any:
    """What `done` gives once it gives something."""
    ends = time.monotonic() + patience_s
    while not (found := done()):
        assert time.monotonic() < ends, f"never: {what}"
        time.sleep(0.1)
    return found
