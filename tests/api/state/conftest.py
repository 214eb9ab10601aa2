"""One daemon with records, and keys of several tenants to write and read them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import daemons
from tests.daemon.running import Answer, Daemon

__all__ = ["daemons"]

ALL = ("state:read", "state:write", "capabilities:write")


class Tenant:
    """A key of one tenant, and the calls made with it."""

    def __init__(self, daemon: Daemon, tenant_id: str, *scopes: str) -> None:
        self.daemon = daemon
        self.tenant_id = tenant_id
        body = {"name": tenant_id, "scopes": list(scopes or ALL), "tenants": [tenant_id]}
        made = daemon.post("/v1/keys", body)
        self.key_id, self.key = made["key_id"], made["secret"]

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """A call, whatever is answered."""
        return self.daemon.call(method, path, body, key=self.key, **headers)

    def get(self, path: str, **headers: str) -> Any:
        """What a GET answers."""
        return self.daemon.get(path, key=self.key, **headers)

    def put(self, record: str, value: Any, **headers: str) -> Answer:
        """Write `collection/id`."""
        return self.call("PUT", self.at(record), value, **headers)

    def patch(self, record: str, value: Any, **headers: str) -> Answer:
        """Patch `collection/id`."""
        return self.call("PATCH", self.at(record), value, **headers)

    def delete(self, record: str, **headers: str) -> Answer:
        """Delete `collection/id`."""
        return self.call("DELETE", self.at(record), **headers)

    def transact(self, *mutations: dict[str, Any], **members: Any) -> Answer:
        """One transaction."""
        return self.call("POST", "/v1/transactions", {"mutations": list(mutations), **members})

    def head(self) -> int:
        """The number of the newest change."""
        return int(self.get("/v1/state/version")["sequence"])

    @staticmethod
    def at(record: str) -> str:
        """The path of `collection/id`."""
        collection, _, record_id = record.partition("/")
        return f"/v1/collections/{collection}/records/{record_id}"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("state")
    running = Daemon(folder / "feltd.db", "--tick-ms", "50").init().start()
    yield running
    running.close()


@pytest.fixture(scope="module")
def acme(daemon: Daemon) -> Tenant:
    return Tenant(daemon, "acme")


@pytest.fixture(scope="module")
def other(daemon: Daemon) -> Tenant:
    return Tenant(daemon, "other")
