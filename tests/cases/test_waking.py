"""Parked polls hear at once of what concerns them; here nothing else ever wakes them."""

from collections.abc import Iterator

import pytest

from tests.api.claims.conftest import Crew
from tests.cases.altered import Altered


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Altered]:
    """A daemon whose polls are woken by signals alone."""
    data = tmp_path_factory.mktemp("waking") / "feltd.db"
    running = Altered(data, "--tick-ms", "50", env={"FELTD_CASES_SIGNALS_ALONE": "1"})
    try:
        running.init().start()
        yield running
    finally:
        running.close()


@pytest.fixture
def crew(quiet: Altered) -> Iterator[Crew]:
    """An application of its own for each story."""
    people = Crew(quiet)
    yield people
    people.go_home()


def reasons(waiting: object) -> list[str]:
    answer = waiting.answer()  # type: ignore[attr-defined]
    assert (answer.status, answer.body["claims"]) == (200, [])
    return [one["code"] for one in answer.body["reasons"]]


def test_work_wakes_it(crew: Crew) -> None:
    """BC-057: in the order in which they came, one for each."""
    first, second = crew.poll(crew.worker()), crew.poll(crew.worker())
    jobs = [crew.work(), crew.work()]

    got = [one["workload_id"] for poll in (first, second) for one in poll.answer().body["claims"]]

    assert sorted(got) == sorted(jobs)


def test_a_drain_ends_it(crew: Crew) -> None:
    """BC-035."""
    edge = crew.worker()
    waiting = crew.poll(edge)

    crew.daemon.post(f"/v1/workers/{edge.id}/drain", {})

    assert reasons(waiting) == ["WORKER_DRAINING"]


def test_its_own_leave_ends_it(crew: Crew) -> None:
    """BC-035."""
    edge = crew.worker()
    waiting = crew.poll(edge)

    edge.call("drain", {})

    assert reasons(waiting) == ["WORKER_DRAINING"]


def test_a_transition_ends_it(crew: Crew) -> None:
    edge = crew.worker()
    waiting = crew.poll(edge)

    crew.daemon.post(f"/v1/workers/{edge.id}/transition", {"to": "OFFLINE"})

    assert reasons(waiting) == ["WORKER_RECOVERY_REQUIRED"]


def test_its_removal_ends_it(crew: Crew) -> None:
    edge = crew.worker()
    waiting = crew.poll(edge)

    assert crew.daemon.call("DELETE", f"/v1/workers/{edge.id}").status == 204

    answer = waiting.answer()
    assert answer.status in (401, 404) or answer.body["claims"] == []


def test_a_takeover_ends_it(crew: Crew) -> None:
    edge = crew.worker()
    waiting = crew.poll(edge)

    taken = edge.body | {"process_id": "another", "takeover": True}
    crew.daemon.post("/v1/workers", taken, key=crew.registrar_key)

    assert reasons(waiting) == ["taken_over"]


def test_the_end_of_its_key_ends_it(crew: Crew) -> None:
    """BC-089."""
    edge = crew.worker()
    waiting = crew.poll(edge)

    assert crew.daemon.call("DELETE", f"/v1/keys/{edge.key.split('_')[2]}").status == 204

    assert reasons(waiting) == ["revoked"]


def test_the_end_of_its_grant_ends_it(crew: Crew) -> None:
    """BC-089."""
    edge = crew.worker()
    waiting = crew.poll(edge)
    grant_id = crew.daemon.get(f"/v1/workers/{edge.id}")["authorization_grant_id"]

    crew.daemon.post(f"/v1/grants/{grant_id}/revoke", {})

    assert reasons(waiting) == ["grant_ended"]


def test_a_slot_that_becomes_free_wakes_it(crew: Crew) -> None:
    edge = crew.worker(capacity={"concurrency": 1})
    crew.work()
    (held,) = edge.pull(start=True)
    job = crew.work()
    waiting = crew.poll(edge)

    assert edge.fenced("complete", held).status == 200

    assert [one["workload_id"] for one in waiting.answer().body["claims"]] == [job]


def test_a_backoff_that_is_over_wakes_it(crew: Crew) -> None:
    edge = crew.worker()
    job = crew.work(retry_policy={"initial_backoff_ms": 300, "jitter": 0})
    (held,) = edge.pull(start=True)
    assert edge.fenced("fail", held, kind="transient", message="again").status == 200
    waiting = crew.poll(edge)

    assert [one["workload_id"] for one in waiting.answer().body["claims"]] == [job]


def test_a_lease_that_ends_wakes_it(crew: Crew) -> None:
    lost, edge = crew.worker(), crew.worker()
    job = crew.work(retry_policy={"initial_backoff_ms": 0, "jitter": 0})
    assert len(lost.pull(lease_ms=1_000)) == 1
    waiting = crew.poll(edge)

    assert [one["workload_id"] for one in waiting.answer().body["claims"]] == [job]
