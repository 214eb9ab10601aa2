"""What goes over a channel: exchanges with their answers, and what is pushed to its worker."""

import time

from tests.api.channel.conftest import Opens
from tests.api.channel.talk import done
from tests.api.claims.conftest import Crew, eventually


def test_a_frame_is_an_exchange_and_is_answered_under_its_id(crew: Crew, opens: Opens) -> None:
    job, worker = crew.work(), crew.worker()
    wire = opens(worker)

    answer = wire.ask(claim={"max": 1, "start": True})
    (claim,) = answer["claims"]
    ended = wire.ask(complete=[done(claim, output={"pages": 3})])

    assert claim["workload_id"] == job
    assert [(one["op"], one["ok"], one["state"]) for one in ended["outcomes"]] == [
        ("complete", True, "COMPLETED")
    ]
    assert crew.state(job) == "COMPLETED"


def test_several_frames_are_in_flight_and_a_parked_one_holds_up_none(
    crew: Crew, opens: Opens
) -> None:
    wire = opens(crew.worker())

    wire.send({"id": "waits", "claim": {"wait_ms": 20_000}})
    wire.send({"id": "asks", "claim": {}})
    told = wire.answer("asks")
    job = crew.work()

    assert [one["code"] for one in told["reasons"]] == ["NO_WORK"]
    assert [one["workload_id"] for one in wire.answer("waits")["claims"]] == [job]


def test_frames_begin_in_the_order_in_which_they_came(crew: Crew, opens: Opens) -> None:
    worker = crew.worker(capacity={"concurrency": 1})
    for _ in range(40):
        crew.work()
    wire = opens(worker)
    (claim,) = wire.ask(claim={"max": 1, "start": True})["claims"]

    # Each pair arrives at once, and the writer takes ends before claims: the claim that came
    # before the end must not find the room that the end makes.
    for _ in range(20):
        wire.send_both(
            {"id": "more", "claim": {"max": 1}}, {"id": "end", "complete": [done(claim)]}
        )
        assert [one["code"] for one in wire.answer("more")["reasons"]] == ["WORKER_FULL"]
        assert wire.answer("end")["outcomes"][0]["ok"]
        wire.send_both(
            {"id": "more", "claim": {"max": 1}},
            {"id": "none", "claim": {"max": 1}},
        )
        (claim,) = wire.answer("more")["claims"]
        assert wire.answer("none")["claims"] == []


def test_a_credit_keeps_as_many_claims_given_under_completes(crew: Crew, opens: Opens) -> None:
    worker = crew.worker(capacity={"concurrency": 8})
    jobs = [crew.work() for _ in range(30)]
    wire = opens(worker)

    held = wire.ask(claim={"credit": 3, "start": True})["claims"]
    assert len(held) == 3
    finished = []
    while len(finished) < 30:
        claim = held.pop(0)
        finished.append(claim["workload_id"])
        assert wire.ask(complete=[done(claim)])["outcomes"][0]["ok"]
        if len(finished) <= 27:
            held += wire.pushed("claims")
            assert len(held) == 3

    assert sorted(finished) == sorted(jobs)
    assert [one for one in wire.waiting() if "push" in one] == []


def test_an_end_and_the_next_claim_are_one_frame(crew: Crew, opens: Opens) -> None:
    for _ in range(40):
        crew.work()
    wire = opens(crew.worker())
    (claim,) = wire.ask(claim={"credit": 1, "start": True})["claims"]

    before = crew.metric("feltd_writer_run_seconds_count")
    began_s = time.monotonic()
    for _ in range(39):
        answer = wire.ask(complete=[done(claim)], claim={"credit": 1, "start": True})
        assert answer["outcomes"][0]["ok"]
        (claim,) = answer["claims"]

    # Whatever the keeper does each 200 ms comes on top; a look for each end would double it.
    ticks = 5 * (time.monotonic() - began_s) + 2
    assert crew.metric("feltd_writer_run_seconds_count") - before < 39 + 10 * ticks
    assert wire.waiting() == [], "nothing is given twice, in an answer and in a push"


def test_a_credit_is_bounded_by_the_free_slots(crew: Crew, opens: Opens) -> None:
    for _ in range(6):
        crew.work()
    worker = crew.worker(capacity={"concurrency": 4})
    (elsewhere,) = worker.pull()
    wire = opens(worker)

    claims = wire.ask(claim={"credit": 9})["claims"]
    worker.fenced("complete", elsewhere, start=True)

    assert len(claims) == 3
    assert len(wire.pushed("claims")) == 1, "room made by a call over HTTP counts too"


def test_work_that_comes_later_is_pushed_and_never_twice(crew: Crew, opens: Opens) -> None:
    wires = [opens(crew.worker()) for _ in range(4)]
    for wire in wires:
        assert wire.ask(claim={"credit": 5, "lease_ms": 60_000})["claims"] == []

    jobs = {crew.work() for _ in range(12)}
    given: list[str] = []

    def all_came() -> bool:
        for wire in wires:
            for message in wire.waiting():
                given.extend(one["workload_id"] for one in message["push"]["claims"])
                wire.wait(lambda one, message=message: one is message)
        return len(given) >= 12

    eventually(all_came)
    assert sorted(given) == sorted(jobs)


def test_credit_zero_ends_the_order(crew: Crew, opens: Opens) -> None:
    wire = opens(crew.worker())
    wire.ask(claim={"credit": 2})
    wire.ask(claim={"credit": 0})

    job = crew.work()

    assert [one["workload_id"] for one in wire.ask(claim={"max": 1})["claims"]] == [job]
    assert wire.waiting() == []


def test_a_cancel_is_pushed_to_the_holder_once(crew: Crew, opens: Opens) -> None:
    job, worker = crew.work(), crew.worker()
    wire = opens(worker)
    (claim,) = wire.ask(claim={"max": 1, "start": True})["claims"]

    began_s = time.monotonic()
    crew.daemon.post(f"/v1/workloads/{job}/cancel", {})
    told = wire.pushed("cancel_claims")
    took_ms = 1000 * (time.monotonic() - began_s)

    assert told == [claim["claim_id"]]
    print(f"a cancel was pushed after {took_ms:.1f} ms, the call itself included")
    crew.daemon.post(f"/v1/workers/{worker.id}/quarantine", {"reason": "look at it"})
    assert wire.quiet(0.3)


def test_a_claim_that_is_taken_away_is_pushed_as_fenced(crew: Crew, opens: Opens) -> None:
    crew.work()
    wire = opens(crew.worker())
    (claim,) = wire.ask(claim={"credit": 1, "start": True})["claims"]

    crew.daemon.post(f"/v1/claims/{claim['claim_id']}/evict", {"reason": "the host is replaced"})

    assert wire.pushed("fenced_claims") == [claim["claim_id"]]
    (again,) = wire.pushed("claims")
    assert again["fencing_token"] > claim["fencing_token"]


def test_what_a_worker_ends_itself_is_never_pushed_as_fenced(crew: Crew, opens: Opens) -> None:
    crew.work()
    worker = crew.worker()
    wire = opens(worker)
    (claim,) = wire.ask(claim={"max": 1, "start": True})["claims"]

    assert worker.fenced("complete", claim).status == 200
    crew.daemon.post(f"/v1/workers/{worker.id}/drain", {"reason": "so that it is looked at"})

    wire.pushed("drain")
    assert wire.waiting() == []


def test_an_expired_lease_is_pushed_as_fenced(crew: Crew, opens: Opens) -> None:
    crew.work()
    wire = opens(crew.worker())
    (claim,) = wire.ask(claim={"max": 1, "lease_ms": 1_000})["claims"]

    assert wire.pushed("fenced_claims") == [claim["claim_id"]]


def test_a_drain_is_pushed_and_its_end_too(crew: Crew, opens: Opens) -> None:
    worker = crew.worker()
    wire = opens(worker)
    wire.ask(claim={"credit": 2})

    crew.daemon.post(f"/v1/workers/{worker.id}/drain", {"reason": "new kernel"})
    told = wire.pushed("drain")
    job = crew.work()
    assert wire.quiet(0.2)
    crew.daemon.post(f"/v1/workers/{worker.id}/resume", {})

    assert (told["reason"], told["until"]) == ("new kernel", "resumed")
    assert wire.pushed("drain") is None
    worker.call("reconcile", {"worker_id": worker.id, "worker_version": "1",
                              "capability_version": worker.capability_version})  # fmt: skip
    assert [one["workload_id"] for one in wire.pushed("claims")] == [job]


def test_a_standing_drain_is_told_to_a_new_channel(crew: Crew, opens: Opens) -> None:
    worker = crew.worker()
    crew.daemon.post(f"/v1/workers/{worker.id}/drain", {"reason": "before it came"})

    assert opens(worker).pushed("drain")["reason"] == "before it came"


def test_work_that_was_given_to_the_worker_is_pushed(crew: Crew, opens: Opens) -> None:
    worker = crew.worker()
    wire = opens(worker)
    job = crew.work()

    crew.daemon.post(f"/v1/workloads/{job}/claim", {"worker_id": worker.id, "lease_ms": 60_000})

    assert [one["workload_id"] for one in wire.pushed("claims")] == [job]
    crew.daemon.post(f"/v1/workers/{worker.id}/quarantine", {"reason": "so that it looks"})
    assert wire.quiet(0.3), "it is told once"


def test_a_quarantined_worker_is_pushed_nothing_and_goes_on_afterwards(
    crew: Crew, opens: Opens
) -> None:
    worker = crew.worker()
    wire = opens(worker)
    crew.daemon.post(f"/v1/workers/{worker.id}/quarantine", {"reason": "suspect"})

    assert [one["code"] for one in wire.ask(claim={"credit": 1})["reasons"]] == [
        "WORKER_QUARANTINED"
    ]
    job = crew.work()
    assert wire.quiet(0.3)
    crew.daemon.post(f"/v1/workers/{worker.id}/unquarantine", {})

    assert [one["workload_id"] for one in wire.pushed("claims")] == [job]


def test_a_heartbeat_goes_over_the_channel(crew: Crew, opens: Opens) -> None:
    worker = crew.worker()
    wire = opens(worker)
    beat = {
        "worker_id": worker.id,
        "version": "1",
        "capability_version": worker.capability_version,
        "capacity": {"concurrency": 8},
        "health": "DEGRADED",
    }

    answer = wire.ask(heartbeat=beat)

    assert answer["outcomes"] == [{"op": "heartbeat", "ok": True}]
    assert answer["worker"]["health"] == "DEGRADED"


def test_a_look_of_the_daemon_does_not_keep_a_silent_worker_alive(crew: Crew, opens: Opens) -> None:
    worker = crew.worker(heartbeat_interval_ms=1_000, heartbeat_timeout_ms=2_000)
    wire = opens(worker)
    assert wire.ask(claim={"credit": 8, "lease_ms": 60_000})["claims"] == []

    lifecycle = ""
    ends_s = time.monotonic() + 20
    while lifecycle != "OFFLINE" and time.monotonic() < ends_s:
        crew.work()
        lifecycle = crew.daemon.get(f"/v1/workers/{worker.id}")["lifecycle"]
        time.sleep(0.1)

    assert lifecycle == "OFFLINE", "pushes are no sign of life"


def test_the_channels_are_counted_and_so_are_their_frames(crew: Crew, opens: Opens) -> None:
    before = crew.metric("feltd_channels ")
    wires = [opens(crew.worker()) for _ in range(3)]
    for wire in wires:
        wire.ask(claim={})

    assert crew.metric("feltd_channels ") == before + 3
    assert crew.metric('feltd_requests_total{operation="channel",status="200"}') >= 3
    for wire in wires:
        wire.close()
    eventually(lambda: crew.metric("feltd_channels ") == before)
