"""What operators give as a reason is read by many and kept for long: no secret stands in it."""

import pytest

from feltd.identity import bearer
from feltd.mesh import drain, evict, holds, quarantine
from feltd.model.claim import Evict
from feltd.model.hold import NewHold
from feltd.model.worker import DrainRequest, Quarantining
from tests.mesh.world import Mesh

SECRET = bearer.bearer("s", "A" * 12 + "b" * 43)
REASON = f"key {SECRET} has leaked"
COVERED = "key ‹redacted: feltd-key› has leaked"


@pytest.mark.parametrize("verb", ["hold", "drain", "quarantine", "evict"])
def test_a_secret_in_a_reason_is_covered_where_it_is_kept(mesh: Mesh, verb: str) -> None:
    worker_id = mesh.worker()
    held = mesh.claims(mesh.workload(), worker_id)
    if verb == "hold":
        placing = holds.Placing("acme", NewHold(scope="tenant", reason=REASON))
        shown = mesh.ask(holds.place, placing).reason
    elif verb == "drain":
        mesh.ask(drain.drain, DrainRequest(reason=REASON), worker_id)
        shown = mesh.row("SELECT drain_reason FROM workers")[0]
    elif verb == "quarantine":
        mesh.ask(quarantine.quarantine, Quarantining(reason=REASON), worker_id)
        shown = mesh.row("SELECT quarantine_reason FROM workers")[0]
    else:
        mesh.ask(evict.evict, Evict(reason=REASON, to="DEAD_LETTERED"), held.claim_id)
        shown = mesh.row("SELECT failure_message FROM workloads")[0]

    assert shown == COVERED
    assert SECRET not in str([tuple(row) for row in mesh.everything()])
