"""However much a worker holds, a reconciliation answers all of it, within one bounded answer."""

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.json import decode, encode

from feltd.mesh import holding
from feltd.store.connect import open_local
from tests.mesh.workers.stories import House
from tests.mesh.world import Mesh

LARGE = """
UPDATE workloads
   SET input = '"' || printf('%.*c', :bytes, 'x') || '"'
"""
KEPT = """
INSERT INTO checkpoints (workload_id, fencing_token, at_ms, state)
SELECT workload_id, fencing_token, 1, '"' || printf('%.*c', :bytes, 'x') || '"'
  FROM workloads
"""
KIB_256 = 256 * 1024


@pytest.fixture
def filed(mesh: Mesh, tmp_path: Path) -> House:
    """A house on disk, where a quarter of a gigabyte has room."""
    conn = open_local(tmp_path / "feltd.db", read_only=False)
    mesh.conn.backup(conn)
    conn.execute("PRAGMA synchronous = OFF")
    mesh.conn.close()
    mesh.conn = conn
    return House(mesh)


def reconciled(house: House, edge: Any, **told: Any) -> tuple[Any, int, int]:
    """The answer, its bytes on the wire, and the most memory that making it took."""
    tracemalloc.start()
    answer = edge.reconcile(**told)
    raw = encode(answer)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return answer, len(raw), peak


def test_a_thousand_of_the_largest_claims_are_all_answered(filed: House) -> None:
    edge = filed.worker(capacity={"concurrency": 1_000})
    held = [claim for _ in range(4) for claim in edge.takes(250, lease_ms=600_000)]
    filed.mesh.hand(LARGE, bytes=KIB_256 - 2)
    known = [claim.claim_id for claim in held[:990]]

    answer, answer_bytes, peak_bytes = reconciled(filed, edge, known_claims=known)

    claims = answer.authoritative_claims
    assert [one.claim_id for one in claims] == [claim.claim_id for claim in held]
    assert answer_bytes <= holding.ANSWER_BYTES_MAX
    assert peak_bytes < 16 * 1024 * 1024
    whole = [one.claim_id for one in claims if not one.truncated]
    # First those its worker has nothing of, then as many as have room.
    assert set(whole) > {claim.claim_id for claim in held[990:]}
    assert answer_bytes + holding.CLAIM_BYTES_MAX > holding.ANSWER_BYTES_MAX
    assert (answer.fenced_claims, len(answer.worker.claims)) == ([], 1_000)


def test_what_is_left_out_of_a_truncated_claim_is_never_told_as_something_else(
    filed: House,
) -> None:
    """A client that would run it fails to find its input, rather than run it with none."""
    edge = filed.worker(capacity={"concurrency": 20})
    edge.takes(20, lease_ms=600_000)
    filed.mesh.hand(LARGE, bytes=KIB_256 - 2)

    answer, _, _ = reconciled(filed, edge)

    short = [one for one in answer.authoritative_claims if one.truncated]
    told = decode(encode(short[0]))
    assert short[0].input is UNSET
    left_out = {"input", "timeouts", "runtime_policy", "connection_scopes", "capability_snapshot"}
    assert not left_out & told.keys()
    assert told["truncated"] is True
    whole = decode(encode(answer.authoritative_claims[0]))
    assert left_out <= whole.keys()
    assert "truncated" not in whole
    fence = {"claim_id", "worker_id", "workload_id", "fencing_token", "expires_at_ms", "attempt_id"}
    assert fence <= told.keys()
    assert edge.says("release", short[0]).state == "READY"


def test_checkpoints_count_into_the_bound(filed: House) -> None:
    edge = filed.worker(capacity={"concurrency": 40})
    for claim in edge.takes(40):
        edge.says("release", claim)
    filed.mesh.pull(edge.id, edge.caller, max=40, lease_ms=600_000)
    filed.mesh.hand(LARGE, bytes=KIB_256 - 2)
    filed.mesh.hand(KEPT, bytes=KIB_256 - 2)

    answer, answer_bytes, _ = reconciled(filed, edge)

    assert len(answer.authoritative_claims) == 40
    assert answer_bytes <= holding.ANSWER_BYTES_MAX
    assert answer.authoritative_claims[0].checkpoint is not None
    assert answer.authoritative_claims[-1].checkpoint is None


def test_few_claims_are_whole(house: House) -> None:
    edge = house.worker(capacity={"concurrency": 50})
    edge.takes(50)

    assert not any(one.truncated for one in edge.reconcile().authoritative_claims)
