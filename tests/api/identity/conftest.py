"""One running daemon for the wire transcripts of this folder; each test makes keys of its own."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.daemon.running import Daemon

DAY_MS = 86_400_000
PATIENCE_S = 20.0


class Wire:
    """What the stories say to the daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.call = daemon.call
        self.get = daemon.get
        self.post = daemon.post
        self.data = daemon.data

    def key(self, by: str | None = None, **members: Any) -> dict[str, Any]:
        """A new key, made by the admin's or the named bearer."""
        body = {"name": "a key", "tenants": ["acme"], **members}
        if "worker_id" in members:
            del body["tenants"]
        made: dict[str, Any] = self.post("/v1/keys", body, key=by)
        return made

    def grant(self, by: str | None = None, **members: Any) -> dict[str, Any]:
        """A new grant for service:registrar with its token."""
        body = {
            "subject": {"kind": "service", "id": "registrar"},
            "tenant_id": "acme",
            "application_id": "docs",
            "capabilities": ["worker:register", "worker:capability:extract"],
            "resources": [{"kind": "RESOURCE_PREFIX", "uri": "flow://docs/workers/*"}],
            "expires_at_ms": int(time.time() * 1_000) + DAY_MS,
            **members,
        }
        made: dict[str, Any] = self.post("/v1/grants", body, key=by)
        return made

    def enrolled(self, **members: Any) -> tuple[dict[str, Any], str]:
        """A grant for service:registrar, and the secret of a key bound to it."""
        grant = self.grant(**members)
        made = self.key(
            scopes=["workers:register"], identity_id="registrar", grant_id=grant["grant"]["id"]
        )
        return grant, made["secret"]

    def register(self, registrar: str, name: str, **members: Any) -> dict[str, Any]:
        """Register a worker and have its key issued."""
        body = {
            "name": name,
            "runtime": "process",
            "version": "1",
            "capacity": {"concurrency": 1},
            "process_id": "p1",
            "capabilities": ["extract"],
            "issue_key": True,
            **members,
        }
        done: dict[str, Any] = self.post("/v1/workers", body, key=registrar)
        return done

    def refused(self, method: str, path: str, body: object = None, **named: Any) -> dict[str, Any]:
        """The problem document of a call that is refused."""
        answer = self.call(method, path, body, **named)
        assert answer.status >= 400, answer
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.body["status"] == answer.status
        problem: dict[str, Any] = answer.body
        return problem

    def reasons(self, key: str) -> list[str]:
        """Why a bearer is told that it has ended; [] for a stranger."""
        problem = self.refused("GET", "/v1/auth/me", key=key)
        assert (problem["status"], problem["code"]) == (401, "UNAUTHENTICATED")
        return [reason["code"] for reason in problem.get("reasons", [])]

    def eventually(self, what: Any) -> None:
        """Wait until it holds."""
        end_s = time.monotonic() + PATIENCE_S
        while not what():
            assert time.monotonic() < end_s, "it never came true"
            time.sleep(0.02)


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """A daemon of this module alone."""
    daemon = Daemon(tmp_path_factory.mktemp("wire") / "feltd.db", "--tick-ms", "200")
    try:
        yield Wire(daemon.init().start())
    finally:
        daemon.close()
