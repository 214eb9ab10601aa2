"""An earlier file put back, and a client that lives through it: another history is told apart."""

from collections.abc import Callable
from pathlib import Path

import pytest

from feltd.api.listen import local_socket_path
from feltd.worker.client import AsyncClient, Client
from feltd.worker.refusal import Refusal
from tests.api.state.conftest import Tenant
from tests.daemon.running import Daemon
from tests.daemon.test_restore import copied, put_back


@pytest.mark.parametrize("sidecar", ["kept", "lost"])
def test_another_history_goes_on_under_another_name(
    daemons: Callable[..., Daemon], tmp_path: Path, sidecar: str
) -> None:
    daemon = daemons().start()
    tenant = Tenant(daemon, "acme")
    tenant.put("orders/a", 1)
    tenant.put("orders/a", 2)
    daemon.stop()
    copied(daemon, tmp_path / "copy")
    daemon.start()
    first = tenant.get("/v1/state/version")
    # By the socket of the file, which is the same for whatever daemon serves it.
    reader = Client(socket=local_socket_path(str(daemon.data)), tenant="acme")
    following = reader.changes(1)
    assert next(following)["seq"] == 2
    for number in (3, 4, 5):
        tenant.put("orders/a", number)
    daemon.stop()
    put_back(daemon, tmp_path / "copy")
    if sidecar == "lost":
        daemon.data.with_name(daemon.data.name + ".mark").unlink()

    daemon.start()

    put = tenant.get("/v1/state/version")
    assert put["sequence"] == 2
    assert put["instance_id"] != first["instance_id"]
    lost = tenant.call("GET", "/v1/changes?after=5")
    assert (lost.status, lost.body["code"], lost.body["head"]) == (410, "CHANGES_COMPACTED", 2)
    assert tenant.put("orders/a", 9, If_Match='"2"').headers["etag"] == '"3"'
    page = tenant.get("/v1/changes?after=2")
    assert [one["seq"] for one in page["items"]] == [3], "no number is left out"
    assert page["instance_id"] == put["instance_id"]
    with pytest.raises(Refusal, match="CHANGES_COMPACTED"):
        next(following)
    reader.close()
    assert daemon.check().returncode == 0, daemon.check().stdout

    daemon.stop()
    daemon.start()
    assert tenant.get("/v1/state/version")["instance_id"] == put["instance_id"]


def test_the_client_has_a_method_for_each(daemon: Daemon) -> None:
    tenant = Tenant(daemon, "client")
    with Client(daemon.url, tenant.key) as client:
        assert client.put_record("orders", "a", {"n": 1}, if_version=None)["version"] == 1
        assert client.put_record("orders", "b", None)["value"] is None
        assert client.patch_record("orders", "a", {"m": 2}, if_version=1)["version"] == 2
        with pytest.raises(Refusal, match="RECORD_CONFLICT"):
            client.put_record("orders", "a", 0, if_version=1)
        assert client.record("orders", "a")["value"] == {"n": 1, "m": 2}
        assert [one["id"] for one in client.records("orders")] == ["b", "a"]
        assert [one["id"] for one in client.records("orders", prefix="a")] == ["a"]
        assert [one["records"] for one in client.collections()] == [2]
        assert client.search("orders", "M")["scanned"] == 2
        assert len(client.provenance("orders", "a")["items"]) == 2
        put = {"op": "put", "collection": "orders", "id": "c", "value": 1, "if_version": None}
        done = client.transact([put], request_id="r")
        assert client.transact([put], request_id="r") == done
        assert client.transact([{**put, "id": "d"}])["sequence"] == 5
        client.delete_record("orders", "b", if_version=1)
        assert client.state_version()["sequence"] == 6
        told = [one["seq"] for one in client.changes(follow=False)]
        assert told == [1, 2, 3, 4, 5, 6]
        assert client.acknowledge_changes("copy", told[-1])["lag"] == 0
        assert client.consumer("copy")["ack"] == 6
        assert [one["name"] for one in client.consumers()] == ["copy"]
        client.delete_consumer("copy")
        assert client.consumers() == []


@pytest.mark.anyio
async def test_a_follower_hears_what_comes(daemon: Daemon) -> None:
    tenant = Tenant(daemon, "follower")
    async with AsyncClient(daemon.url, tenant.key) as client:
        changes = client.changes(0, collection="orders", wait_ms=5_000)
        for number in range(3):
            await client.put_record("noise", "a", number)
            await client.put_record("orders", "a", number)
            assert (await anext(changes))["after"] == number
        await changes.aclose()  # type: ignore[attr-defined]
