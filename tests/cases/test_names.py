"""Names that are used again: of finished work, and of workers that went away."""

from tests.daemon.load import crew
from tests.daemon.running import Daemon, Edge, create, people


def test_the_key_of_a_dead_letter_says_so_and_a_requeue_is_the_way_back(daemon: Daemon) -> None:
    """BC-039: never a 201 behind which nothing can be claimed."""
    mesh = people(daemon)
    edge = crew(daemon, mesh, 1)[0]
    policy = {"max_attempts": 1}
    job = create(daemon, mesh, "k", retry_policy=policy)["workload_id"]
    (claim,) = edge.pull(start=True)
    assert edge.fenced("fail", claim, kind="broken", message="no").body["state"] == "DEAD_LETTERED"
    body = {
        "definition_id": "extract",
        "idempotency_key": "k",
        "capability_snapshot": ["documents.extract"],
        "retry_policy": policy,
    }

    again = daemon.call("POST", "/v1/workloads", body, key=mesh.submitter_key)

    assert (again.status, again.body["workload_id"]) == (200, job)
    assert (again.body["state"], again.body["failure"]["kind"]) == ("DEAD_LETTERED", "broken")
    assert edge.pull() == []
    back = daemon.post(f"/v1/workloads/{job}/requeue", {}, key=mesh.submitter_key)
    assert (back["state"], back["workload_id"]) == ("READY", job)
    (claim,) = edge.pull(start=True)
    assert edge.fenced("complete", claim, output=1).status == 200
    done = daemon.call("POST", "/v1/workloads", body, key=mesh.submitter_key)
    assert (done.status, done.body["state"]) == (200, "COMPLETED")


def test_a_name_that_is_restarted_again_and_again_is_one_worker(daemon: Daemon) -> None:
    """BC-028: twenty restarts, each killed with a claim; no row is left over, no claim is kept."""
    mesh = people(daemon)
    policy = {"initial_backoff_ms": 0, "jitter": 0, "max_attempts": 100}
    job = create(daemon, mesh, "k", retry_policy=policy)["workload_id"]
    tokens = []
    for number in range(20):
        process = {"process_id": f"p{number}", "takeover": True}
        edge = Edge(daemon, "edge-1", mesh.registrar_key, **process)
        told = edge.beat().body
        assert (told["worker"]["incarnation"], told["worker"]["claims"]) == (number + 1, [])
        (claim,) = edge.pull(lease_ms=3_600_000, start=True, wait_ms=5_000)
        assert claim["workload_id"] == job
        tokens.append(claim["fencing_token"])

    assert tokens == sorted(set(tokens))
    (only,) = daemon.get("/v1/workers")["items"]
    assert only["claims"] == [f"claim_{tokens[-1]}"]
    ends = [attempt.get("end") for attempt in daemon.get(f"/v1/workloads/{job}")["attempts"]]
    assert (ends.count("worker_lost"), ends.count(None)) == (19, 1)
    assert daemon.check().returncode == 0, daemon.check().stdout
