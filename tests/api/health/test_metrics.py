"""What is counted of refusals: by their cause, not by their code alone."""

from feltd.api.metrics import Metrics
from feltd.errors import Refused
from feltd.store import trouble


def test_only_what_ran_past_its_deadline_is_counted_so() -> None:
    metrics = Metrics()
    metrics.shed("in_flight", False)
    for refused in (
        Refused("SERVICE_OVERLOADED", "the daemon is stopping", committed=False),
        Refused("SERVICE_OVERLOADED", "server is at its in-flight request limit"),
        trouble.unknown(OSError("the disk is gone")),
    ):
        metrics.refused("create_workload", refused)
    assert metrics.past_deadline == {"false": 0, "unknown": 0}

    metrics.refused("create_workload", trouble.never_begun())
    metrics.refused("create_workload", trouble.not_over())
    metrics.refused("create_workload", trouble.not_over())
    assert metrics.past_deadline == {"false": 1, "unknown": 2}


def test_the_refusals_of_the_fence_are_counted_by_code() -> None:
    metrics = Metrics()
    for operation in ("complete", "renew", "cancel"):
        metrics.refused(operation, Refused("WORKLOAD_STALE_FENCE", "it ended"))
    assert metrics.fence_refusals == {"WORKLOAD_STALE_FENCE": 2}
