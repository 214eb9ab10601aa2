"""An operator's slip in one key's row, typed into sqlite3 beside the daemon, stays that key's."""

import sqlite3

import pytest

from tests.daemon.conftest import daemon as daemon
from tests.daemon.conftest import daemons as daemons
from tests.daemon.running import Daemon

SLIPS = [
    "UPDATE keys SET scopes = '[workloads:read]' WHERE key_id = ?",
    "UPDATE keys SET tenants = '[1]' WHERE key_id = ?",
    "UPDATE keys SET namespaces = '[default]' WHERE key_id = ?",
    "UPDATE keys SET secret_digest = 'sha256:' || printf('%064d', 0) || '' WHERE key_id = ?",
    "UPDATE keys SET secret_digest = 'sha256:' || printf('%.64c', 'z') WHERE key_id = ?",
]


@pytest.mark.parametrize("slip", SLIPS)
def test_a_row_that_cannot_be_read_lets_nobody_in_and_keeps_nobody_out(
    daemon: Daemon, slip: str
) -> None:
    body = {"name": "edited", "scopes": ["workloads:read"], "tenants": ["acme"]}
    edited = daemon.post("/v1/keys", body)
    other = daemon.post("/v1/keys", body)
    connection = sqlite3.connect(daemon.data, isolation_level=None, timeout=5)
    try:
        assert connection.execute(slip, [edited["key_id"]]).rowcount == 1
    finally:
        connection.close()
    # The next commit sees the foreign write and has every key read again.
    daemon.post("/v1/keys", body)

    assert daemon.call("GET", "/v1/auth/me", key=edited["secret"]).status == 401
    assert daemon.call("GET", "/v1/auth/me", key=other["secret"]).status == 200
    assert daemon.get("/v1/auth/me")["principal"]["scopes"] == ["*"]
    assert daemon.stop() == 0
    assert daemon.start().call("GET", "/v1/auth/me", key=other["secret"]).status == 200
