"""A worker with a long history claims as fast as a new one: only live claims are counted."""

from feltd.mesh import claims, taking
from tests.mesh.world import Mesh


def test_counting_live_claims_never_walks_through_ended_ones(mesh: Mesh) -> None:
    for statement in (claims.PULLER, taking.ISSUE):
        params = dict.fromkeys(
            (
                "worker_id",
                "request_id",
                "key_id",
                "wall_ms",
                "workload_id",
                "lease_ms",
                "now_ms",
                "expires_at_ms",
                "how",
                "incarnation",
                "affinity",
                "assigned",
                "decision_id",
                "pool_id",
                "gate_generation",
            ),
            1,
        )
        steps = mesh.conn.execute("EXPLAIN QUERY PLAN " + statement, params).fetchall()
        counting = [step["detail"] for step in steps if " c USING" in step["detail"]]
        assert any("claims_live_of_worker" in step for step in counting), counting
        assert not any("claims_of_worker" in step for step in counting), counting
