"""A repeat under an Idempotency-Key gets the first answer, not one that only means the same."""

from http.client import HTTPConnection
from urllib.parse import urlsplit

from tests.daemon.conftest import daemon as daemon
from tests.daemon.conftest import daemons as daemons
from tests.daemon.running import Daemon, Edge, Mesh, create, people


def told(daemon: Daemon, path: str, body: bytes, key: str) -> tuple[int, bytes]:
    """Status and bytes of one POST under the Idempotency-Key `once`."""
    address = urlsplit(daemon.url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=30)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        connection.request("POST", path, body, headers | {"Idempotency-Key": "once"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def twice(daemon: Daemon, path: str, body: bytes, key: str) -> None:
    """The same call and its repeat are answered alike, to the byte."""
    first = told(daemon, path, body, key)
    assert first[0] == 200
    assert told(daemon, path, body, key) == first


def test_a_repeated_cancellation_is_answered_with_the_same_bytes(daemon: Daemon) -> None:
    mesh = people(daemon)
    labels = {"zone": "a", "a": "z", "m": "n"}
    made = create(daemon, mesh, "k", labels=labels, input={"b": 1, "a": [2.0, "é"]})

    twice(daemon, f"/v1/workloads/{made['workload_id']}/cancel", b"{}", mesh.submitter_key)


def test_a_repeated_requeue_is_answered_with_the_same_bytes(daemon: Daemon) -> None:
    mesh = people(daemon)
    made = create(daemon, mesh, "k", retry_policy={"max_attempts": 1})
    edge = beating(daemon, mesh)
    (claim,) = edge.pull(start=True)
    assert edge.fenced("fail", claim, kind="boom", message="no").body["state"] == "DEAD_LETTERED"

    path = f"/v1/workloads/{made['workload_id']}/requeue"
    twice(daemon, path, b'{"priority": 5}', mesh.submitter_key)


def test_a_repeated_resume_is_answered_with_the_same_bytes(daemon: Daemon) -> None:
    mesh = people(daemon)
    edge = beating(daemon, mesh)
    daemon.post(f"/v1/workers/{edge.id}/drain", {})

    twice(daemon, f"/v1/workers/{edge.id}/resume", b"", daemon.key)


def beating(daemon: Daemon, mesh: Mesh) -> Edge:
    edge = Edge(daemon, "edge-1", mesh.registrar_key, labels={"z": "1", "a": "2"})
    assert edge.beat().status == 200
    return edge
