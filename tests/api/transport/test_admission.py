"""Who is let in when the daemon is full, and what the others are told (BC-058, seeds T3 and T4)."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feltd.api.admission import OVERLOADED, PRESENT_S, Admission, Permit
from feltd.errors import Refused
from tests.api.transport.kit import House, request, serving


class Elapsed:
    """Time that moves by hand."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def full(max_in_flight: int = 1) -> tuple[Admission, Elapsed]:
    elapsed = Elapsed()
    admission = Admission(max_in_flight, elapsed_s=elapsed)
    for _ in range(max_in_flight):
        admission.take(keep_alive=True)
    return admission, elapsed


def refused(admission: Admission, *, keep_alive: bool = False) -> Refused:
    with pytest.raises(Refused) as caught:
        admission.take(keep_alive=keep_alive)
    return caught.value


def test_an_overload_is_an_explicit_refusal_with_a_retry_hint() -> None:
    """T3."""
    with serving(stack={"max_in_flight": 1}) as house:
        holder = house.connect().send(request("POST", "/v1/hold"))
        house.eventually(lambda: house.world.entered == 1)
        answer = house.call("POST", "/v1/echo", b'{"name": "a"}')
        holder.close()

    assert (answer.status, answer.code) == (503, "SERVICE_OVERLOADED")
    assert answer.headers["retry-after"] == "1"
    assert answer.json["committed"] is False
    assert answer.json["detail"] == answer.json["error"] == OVERLOADED
    assert OVERLOADED == "server is at its in-flight request limit"
    assert answer.json["next"] == "repeat"
    assert "retry_after_s" not in answer.json


def test_an_overload_is_not_reported_as_a_server_fault() -> None:
    """T4."""
    admission, _ = full()
    status = refused(admission).status

    assert status != 500
    assert 500 <= status < 600


def test_the_refused_do_not_all_come_back_in_the_same_second() -> None:
    """BC-058."""
    admission, _ = full()
    told = Counter(refused(admission).facts["retry_after_s"] for _ in range(500))

    assert set(told) == {1, 2, 3, 4, 5}
    assert max(told.values()) < 200


def test_an_overload_after_a_quiet_time_is_a_lone_one_again() -> None:
    admission, elapsed = full()
    for _ in range(100):
        refused(admission)
    elapsed.s += 1.5

    assert refused(admission).facts["retry_after_s"] == 1


@pytest.mark.parametrize(
    ("permits", "ordinary"), [(1, 1), (2, 1), (3, 2), (4, 3), (64, 48), (100, 75)]
)
def test_the_last_quarter_is_for_those_who_keep_leases_alive(permits: int, ordinary: int) -> None:
    admission = Admission(permits)
    for _ in range(ordinary):
        admission.take(keep_alive=False)
    assert admission.crowded()
    refused(admission)
    for _ in range(permits - ordinary):
        admission.take(keep_alive=True)
    refused(admission, keep_alive=True)

    assert admission.in_flight == permits
    assert (admission.shed_ordinary, admission.shed_keep_alive) == (1, 1)


def test_a_daemon_without_permits_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="--max-in-flight must be at least 1"):
        Admission(0)


@given(st.lists(st.sampled_from(["take", "beat", "release", "again", "park", "unpark"])))
def test_no_permit_is_ever_lost_or_made(steps: list[str]) -> None:
    admission = Admission(4)
    held: list[Permit] = []
    parked: list[tuple[Permit, object]] = []
    for step in steps:
        try:
            if step in ("take", "beat"):
                held.append(admission.take(keep_alive=step == "beat"))
            elif step == "release" and held:
                held.pop().release()
            elif step == "again" and held:
                held[0].release()
                held.pop(0).release()
            elif step == "park" and held:
                permit = held.pop()
                parked.append((permit, permit.parked().__enter__()))
            elif step == "unpark" and parked:
                permit, parking = parked.pop()
                parking.__exit__(None, None, None)  # type: ignore[attr-defined]
                held.append(permit)
        except Refused:
            assert admission.in_flight >= admission.ordinary_max
        assert admission.in_flight == len(held)
        assert admission.long_polls == len(parked)


def taken(admission: Admission, tenant: str, calls: int) -> list[Permit]:
    """As many ordinary permits of `calls` as the tenant gets."""
    got = []
    for _ in range(calls):
        try:
            got.append(admission.take(keep_alive=False, tenant=tenant))
        except Refused:
            break
    return got


def test_a_flood_of_one_tenant_leaves_room_for_another() -> None:
    admission = Admission(64)
    quiet = admission.take(keep_alive=True, tenant="quiet")
    quiet.release()

    assert len(taken(admission, "loud", 100)) == 42
    assert admission.crowded("loud")
    assert not admission.crowded("quiet")
    assert len(taken(admission, "quiet", 100)) == 6
    assert admission.in_flight == admission.ordinary_max


def test_tenants_that_flood_share_all_but_what_is_kept() -> None:
    admission = Admission(64)
    admission.take(keep_alive=True, tenant="b").release()
    held = {"a": taken(admission, "a", 100), "b": taken(admission, "b", 100)}
    assert [len(permits) for permits in held.values()] == [42, 6]
    for _ in range(20):
        for tenant, permits in held.items():
            permits.pop().release()
            permits += taken(admission, tenant, 1)

    assert sum(len(permits) for permits in held.values()) == admission.in_flight == 42
    assert len(taken(admission, "c", 100)) == 6


def test_a_tenant_that_calls_alone_has_every_ordinary_permit() -> None:
    elapsed = Elapsed()
    admission = Admission(64, elapsed_s=elapsed)
    admission.take(keep_alive=True, tenant="quiet").release()
    first = taken(admission, "loud", 100)
    assert not admission.alone("loud")
    elapsed.s += PRESENT_S + 1
    more = taken(admission, "loud", 100)

    assert admission.alone("loud")
    assert (len(first), len(more)) == (42, 6)
    # Whoever comes then is refused once, and has room with the next permit that is given back.
    assert not taken(admission, "quiet", 1)
    first.pop().release()
    assert not taken(admission, "loud", 1)
    assert taken(admission, "quiet", 1)


def test_a_daemon_of_few_permits_keeps_none() -> None:
    admission = Admission(8)
    admission.take(keep_alive=True, tenant="quiet").release()

    assert len(taken(admission, "loud", 100)) == admission.ordinary_max == 6


def test_a_permit_given_back_while_its_poll_waits_is_not_taken_again() -> None:
    admission = Admission(4)
    permit = admission.take(keep_alive=False)
    with permit.parked():
        permit.release()
    assert admission.in_flight == 0


def test_a_call_outside_admission_takes_no_room_even_when_it_parks() -> None:
    admission, _ = full()
    permit = admission.exempt()
    with permit.parked():
        assert admission.long_polls == 1
    permit.release()
    assert (admission.in_flight, admission.long_polls) == (1, 0)


def test_48_calls_at_work_and_the_49th_is_refused_while_health_and_heartbeats_go_on() -> None:
    with serving() as house:
        talks = [house.connect().send(request("POST", "/v1/hold")) for _ in range(48)]
        house.eventually(lambda: house.world.entered == 48)

        shed = house.call("POST", "/v1/hold")
        assert (shed.status, shed.code) == (503, "SERVICE_OVERLOADED")
        assert house.call("GET", "/health").status == 200
        assert house.call("POST", "/v1/beat").status == 200
        exchange = house.call("POST", "/v1/mixed", b'{"name": "renew"}')
        assert (exchange.status, exchange.json["crowded"]) == (200, True)
        assert house.call("POST", "/v1/mixed", b'{"name": "claim"}').code == "SERVICE_OVERLOADED"

        house.do(house.world.release.set)
        assert [talk.answer().status for talk in talks] == [200] * 48
        house.eventually(lambda: house.stack.admission.in_flight == 0)
        assert house.world.shed == [("in_flight", False)] * 2
        assert ("hold", "SERVICE_OVERLOADED") in house.world.refusals


def test_no_way_out_of_a_call_keeps_its_permit(house: House) -> None:
    for body, path in (
        (b'{"name": "a"}', "/v1/echo"),
        (b"{", "/v1/echo"),
        (b'{"name": 1}', "/v1/echo"),
        (None, "/v1/fault"),
        (None, "/v1/unknown"),
        (b'{"name": "renew"}', "/v1/mixed"),
    ):
        house.call("POST", path, body)
        assert house.do(lambda: house.stack.admission.in_flight) == 0


def test_strangers_are_refused_before_they_cost_a_permit_or_a_body() -> None:
    with serving(stack={"max_in_flight": 1}) as house:
        holder = house.connect().send(request("POST", "/v1/hold"))
        house.eventually(lambda: house.world.entered == 1)
        talk = house.connect()
        head = request("POST", "/v1/echo", Content_Length="1000", Authorization="Bearer bad")
        answer = talk.send(head).answer()

        assert (answer.status, answer.code) == (401, "UNAUTHENTICATED")
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert house.do(lambda: house.stack.bodies.reading_bytes) == 0
        assert house.do(lambda: house.stack.admission.in_flight) == 1
        talk.close()
        holder.close()


def test_a_herd_that_honours_retry_after_is_served(house: House) -> None:
    """BC-058: the storm is over as soon as there is room; health answers in the middle of it."""
    with serving(stack={"max_in_flight": 8}) as stormed:
        holders = [stormed.connect().send(request("POST", "/v1/hold")) for _ in range(6)]
        stormed.eventually(lambda: stormed.world.entered == 6)
        herd = [stormed.connect() for _ in range(200)]
        for talk in herd:
            talk.send(request("POST", "/v1/echo", b'{"name": "a"}'))
        told = [talk.answer() for talk in herd]
        assert stormed.call("GET", "/health").status == 200
        assert {answer.status for answer in told} == {503}
        assert len({answer.headers["retry-after"] for answer in told}) == 5

        stormed.do(stormed.world.release.set)
        assert [talk.answer().status for talk in holders] == [200] * 6
        for talk in herd:
            answer = talk.send(request("POST", "/v1/echo", b'{"name": "a"}')).answer()
            assert answer.status == 201
