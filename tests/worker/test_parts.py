"""The parts of a worker that talk to nobody: pauses, leases, endings, outcomes on their way."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from feltd.clock import boot_ms
from feltd.worker import Permanent, Transient, Unreachable, refusal
from feltd.worker.command import STDERR_BYTES_MAX, outcome
from feltd.worker.courier import Courier, items, results
from feltd.worker.failures import OUTPUT_BYTES_MAX, RELEASED, failed, raised, returned
from feltd.worker.leases import Held, LeaseView
from feltd.worker.transport import PAUSE_MAX_S, pause_s


def claim(token: int = 17, expires_at_ms: int = 30_000, **members: Any) -> dict[str, Any]:
    return {
        "claim_id": f"claim_{token}",
        "attempt_id": f"attempt_{token}",
        "workload_id": f"workload_{token}",
        "definition_id": "extract",
        "fencing_token": token,
        "expires_at_ms": expires_at_ms,
        **members,
    }


def held(token: int = 17, left_ms: int = 30_000) -> Held:
    leases = LeaseView()
    leases.saw(boot_ms(), 1_000_000)
    return Held(claim(token, 1_000_000 + left_ms), left_ms, leases)


def test_a_program_that_failed_is_told_by_the_end_of_its_stderr() -> None:
    with pytest.raises(Permanent) as failing:
        outcome(101, b"", b"noise\n" * 1_000 + b"the page is torn")
    told = raised(failing.value).body["message"]
    assert told.startswith("exit code 101: ")
    assert told.endswith("the page is torn")
    assert len(told.encode()) > STDERR_BYTES_MAX


def test_a_pause_is_never_shorter_than_retry_after_and_never_the_same_for_all() -> None:
    """BC-058: clients that are told one time do not come back in one moment."""
    told = [pause_s(1, 3.0, chance / 10) for chance in range(10)]
    assert min(told) >= 3.0
    assert len(set(told)) == 10
    assert all(0 < pause_s(tries, None, 1.0) <= PAUSE_MAX_S for tries in range(1, 100))
    assert pause_s(1, None, 0.5) < pause_s(5, None, 0.5)


def test_a_lease_instant_is_never_put_later_here_than_it_is() -> None:
    leases = LeaseView()
    sent_ms = boot_ms()
    leases.saw(sent_ms, 5_000)

    assert leases.here(8_000, 0) == sent_ms + 3_000


def test_a_lease_is_given_up_at_two_thirds() -> None:
    one = held(left_ms=30_000)
    now_ms = boot_ms()

    assert now_ms + 19_000 < one.give_up_ms < now_ms + 21_000


def test_a_lost_claim_stays_lost_whatever_is_said_later() -> None:
    one = held()
    one.stop("cancel")
    one.stop("lost")
    one.stop("shutdown")

    assert one.stopping == "lost"
    assert one.stopped.is_set()


def test_what_a_handler_raises_decides_how_its_attempt_ends() -> None:
    assert raised(Transient("soon", 500)).body == {
        "kind": "transient", "message": "soon", "retry_after_ms": 500,
    }  # fmt: skip
    assert raised(Permanent("never")).body["kind"] == "execution_error"
    full = refusal.read(503, b'{"code": "SERVICE_OVERLOADED", "next": "repeat"}', "1")
    wrong = refusal.read(422, b'{"code": "WORKLOAD_INVALID", "next": "fix_request"}', None)
    assert raised(wrong).body["kind"] == "execution_error"
    for error in (ConnectionError("gone"), TimeoutError(), OSError("disk"), Unreachable(), full):
        assert raised(error).body["kind"] == "transient"
    other = raised(ValueError("no page"))
    assert other.body == {"kind": "execution_error", "message": "ValueError: no page"}
    assert "Transient" in other.hint


def test_an_output_that_cannot_be_stored_fails_the_attempt_in_words() -> None:
    assert returned({"a": [1, None]}).verb == "complete"
    assert returned({1, 2}.__iter__()).verb == "fail"
    assert "bytes" in returned("x" * OUTPUT_BYTES_MAX).body["message"]
    assert "\x00" not in failed("a", "b\x00c").body["message"]


def test_an_answer_that_is_no_problem_document_is_still_a_refusal() -> None:
    proxy = refusal.read(502, b"<html>bad gateway</html>", None)
    assert (proxy.code, proxy.next) == ("HTTP_502", "repeat")
    odd = refusal.read(418, b"[1]", "soon")
    assert (odd.code, odd.next, odd.retry_after_s) == ("HTTP_418", "ask_operator", None)
    body = {"code": "NEW_CODE", "next": "wait", "detail": "d", "eligible_at_ms": 5}
    new = refusal.read(409, json.dumps(body).encode(), "7")
    assert (new.code, new.next, new.retry_after_s) == ("NEW_CODE", "wait", 7.0)
    assert new.facts["eligible_at_ms"] == 5


class Clerk:
    """Hands outcomes to a courier and keeps what it settles."""

    def __init__(self) -> None:
        self.settled: list[tuple[str, str]] = []
        self.courier = Courier(lambda one, state: self.settled.append((one.claim_id, state)))

    def answer(self, **outcome: Any) -> None:
        """Load what may go, and have the daemon say this of each."""
        parcels = self.courier.load(hurry=True)
        lists = items(parcels, "worker_a")
        said = [
            {"op": verb, "claim_id": item["claim_id"], **outcome}
            for verb, of in lists.items()
            for item in of
        ]
        self.courier.settle(parcels, said)


@pytest.fixture
def clerk() -> Clerk:
    return asyncio.run(_clerk())


async def _clerk() -> Clerk:
    return Clerk()


def test_an_outcome_goes_again_until_the_daemon_has_said_something_of_it(clerk: Clerk) -> None:
    clerk.courier.hand(held(), returned("done"))
    clerk.courier.settle(clerk.courier.load(), [])
    clerk.answer(ok=False, code="STORAGE_BUSY", next="repeat")
    assert clerk.settled == []
    clerk.answer(ok=True, state="COMPLETED")

    assert clerk.settled == [("claim_17", "COMPLETED")]
    assert len(clerk.courier) == 0


def test_a_result_that_does_not_fit_becomes_a_failure_that_says_so(clerk: Clerk) -> None:
    clerk.courier.hand(held(), returned("done"))
    clerk.answer(ok=False, code="WORKLOAD_INVALID", next="fix_request", detail="too deep")
    [parcel] = clerk.courier.load(hurry=True)

    assert parcel.verb == "fail"
    assert "too deep" in parcel.body["message"]


def test_a_failure_that_is_refused_again_and_again_ends_as_a_release(clerk: Clerk) -> None:
    clerk.courier.hand(held(), failed("execution_error", "…"))
    for _ in range(2):
        clerk.answer(ok=False, code="WORKLOAD_INVALID", next="fix_request", detail="no")
    [parcel] = clerk.courier.load(hurry=True)

    assert parcel.verb == "release"


def test_a_text_that_looks_like_a_secret_is_sent_again_to_be_redacted(clerk: Clerk) -> None:
    clerk.courier.hand(held(), failed("execution_error", "password=abcdefgh"))
    clerk.answer(ok=False, code="WORKLOAD_SECRET_IN_TEXT", next="fix_request")
    [parcel] = clerk.courier.load(hurry=True)

    assert parcel.body["on_secret"] == "redact"


def test_a_result_that_came_too_late_is_kept_as_evidence(clerk: Clerk) -> None:
    clerk.courier.hand(held(), returned("late"))
    clerk.answer(ok=False, code="WORKLOAD_STALE_FENCE", next="drop_claim")
    told, carried = results(clerk.courier.late)

    assert clerk.settled == [("claim_17", "")]
    assert [one["attempt_id"] for one in told] == ["attempt_17"]
    assert told[0]["outcome"] == "completed"
    assert carried == clerk.courier.late


def test_a_claim_that_has_ended_needs_no_giving_back(clerk: Clerk) -> None:
    for token, ending in ((1, RELEASED), (2, RELEASED), (3, returned("done"))):
        clerk.courier.hand(held(token), ending)
    [first, *_] = clerk.courier.load()
    clerk.courier.put_back([first])

    for token in (1, 2, 3, 4):
        clerk.courier.over(f"claim_{token}")

    # A result may still count, or be kept as evidence: the daemon says which.
    assert [said for said, _ in clerk.settled] == ["claim_1", "claim_2"]
    assert len(clerk.courier) == 1


def test_a_reconciliation_carries_no_more_than_one_body(clerk: Clerk) -> None:
    for token in range(1, 5):
        clerk.courier.hand(held(token), returned("x" * 300_000))
    clerk.courier.hand(held(5), failed("transient", "no"))
    clerk.courier.hand(held(6), RELEASED)

    told, carried = results(list(clerk.courier.waiting.values()))

    assert [one["fencing_token"] for one in told] == [1, 2, 3, 5]
    assert [parcel.held.fencing_token for parcel in carried] == [1, 2, 3, 5]
    assert len(msgspec.json.encode(told)) < 1024 * 1024


def test_a_load_stays_within_what_one_exchange_may_carry(clerk: Clerk) -> None:
    for token in range(1, 5):
        clerk.courier.hand(held(token), returned("x" * 500_000))
    for token in range(5, 300):
        clerk.courier.hand(held(token), returned(1))
    loads = []
    while parcels := clerk.courier.load():
        loads.append(parcels)

    assert all(sum(one.bytes for one in load) <= 900 * 1024 for load in loads)
    assert all(len(load) <= 256 for load in loads)
    assert sum(map(len, loads)) == 299


def test_after_a_refusal_of_the_whole_exchange_each_item_goes_alone(clerk: Clerk) -> None:
    for token in (1, 2, 3):
        clerk.courier.hand(held(token), returned(token))
    clerk.courier.put_back(clerk.courier.load(), alone=True)

    assert [len(clerk.courier.load()) for _ in range(3)] == [1, 1, 1]
