"""One daemon and a service of tenant acme that defines triggers under its grant, for a file."""

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.running import PATIENCE_S, Answer, Daemon

_numbers = count(1)
SCOPES = [
    "state:read", "state:write", "triggers:read", "triggers:write", "workloads:read",
    "events:read",
]  # fmt: skip


class Shop:
    """What the stories say. `token` proves the grant, `key` is bound to it."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        made = daemon.post(
            "/v1/grants",
            {
                "subject": {"kind": "service", "id": "shop"},
                "tenant_id": "acme",
                "application_id": "docs",
                "capabilities": ["workload:capability:docs.extract"],
                "resources": [],
                "expires_at_ms": int(time.time() * 1_000) + 86_400_000,
            },
        )
        self.grant_id, self.token = made["grant"]["id"], made["token"]
        self.key = self.made_key(grant_id=self.grant_id)

    def made_key(self, **members: Any) -> str:
        """A key of service shop in acme; its secret."""
        body = {"name": "shop", "scopes": SCOPES, "tenants": ["acme"], "identity_id": "shop"}
        return str(self.daemon.post("/v1/keys", body | members)["secret"])

    def call(self, method: str, path: str, body: object = None, **named: Any) -> Answer:
        """A call with the shop's key."""
        return self.daemon.call(method, path, body, **{"key": self.key, **named})

    def ok(self, method: str, path: str, body: object = None, **named: Any) -> Any:
        """The body of a call that is answered 2xx."""
        answer = self.call(method, path, body, **named)
        assert answer.status < 300, answer
        return answer.body

    def definition(self, **members: Any) -> dict[str, Any]:
        """A trigger of an id and a collection of its own."""
        number = next(_numbers)
        told = {
            "trigger_id": f"t{number}",
            "source_collection": f"c{number}",
            "change_kind": "any",
            "target_capability": f"work-{number}",
        }
        return {name: it for name, it in (told | members).items() if it is not None}

    def define(self, **members: Any) -> dict[str, Any]:
        """Define a trigger."""
        made: dict[str, Any] = self.ok("POST", "/v1/triggers", self.definition(**members))
        return made

    def put(self, collection: str, record_id: str, value: Any, **named: Any) -> Any:
        """Write a record."""
        path = f"/v1/collections/{collection}/records/{record_id}"
        return self.ok("PUT", path, value, **named)

    def made(self, trigger_id: str, amount: int) -> list[dict[str, Any]]:
        """The workloads of a trigger, oldest first, once there are so many."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            found = self.ok("GET", f"/v1/workloads?trigger={trigger_id}&limit=500")["items"]
            if len(found) >= amount:
                return list(reversed(found))
            assert time.monotonic() < end_s, found
            time.sleep(0.02)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder: Path = tmp_path_factory.mktemp("triggers")
    daemon = Daemon(folder / "feltd.db", "--tick-ms", "50").init().start()
    yield Shop(daemon)
    daemon.close()
