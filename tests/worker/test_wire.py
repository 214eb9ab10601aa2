"""What the wire does to a worker: lost replies, a full daemon, silence longer than a lease."""

from collections.abc import Callable

import pytest

from feltd.worker import AsyncClient, Client, Refusal, Unreachable
from tests.daemon.running import Daemon
from tests.worker.crew import Crew
from tests.worker.lossy import LOSE, PASS, SHED, Wire

EXCHANGE = "POST /v1/workers/…/exchange"
BEAT = "POST /v1/workers/…/heartbeat"
REGISTER = "POST /v1/workers"


def every(nth: int, what: str, *kinds: str) -> Callable[[str, int], str]:
    """Do `what` to each nth request of these kinds."""
    return lambda kind, count: what if kind in kinds and count % nth == 0 else PASS


def test_every_effect_happens_once_though_every_third_reply_is_lost(crew: Crew) -> None:
    """BC-036: committed, and the answer is lost; the repeat finds the first outcome."""
    kinds = (EXCHANGE, BEAT, "POST /v1/workloads/…/log", "POST /v1/workloads/…/checkpoint")
    with Wire(crew.daemon.url, every(3, LOSE, *kinds)) as wire:
        crew.start(url=wire.url)
        jobs = [crew.work("echo", n) for n in range(20)] + [
            crew.work("echo_async", n) for n in range(10)
        ]
        done = [crew.final(job) for job in jobs]

    assert {one["state"] for one in done} == {"COMPLETED"}
    assert {tuple(crew.ends(job)) for job in jobs} == {("completed",)}
    assert EXCHANGE in wire.lost


def test_a_lost_answer_to_the_registration_makes_no_second_worker(crew: Crew) -> None:
    with Wire(crew.daemon.url, lambda kind, n: LOSE if kind == REGISTER and n < 3 else PASS) as w:
        crew.start(url=w.url)
        assert crew.final(crew.work("echo"))["state"] == "COMPLETED"

    assert w.lost == [REGISTER, REGISTER]
    assert crew.worker()["incarnation"] == 1


def test_a_daemon_that_sheds_is_asked_again_and_nothing_is_lost(crew: Crew) -> None:
    with Wire(crew.daemon.url, lambda _kind, count: SHED if count % 2 else PASS) as wire:
        crew.start(url=wire.url)
        jobs = [crew.work("echo", n) for n in range(8)]
        assert {crew.final(job)["state"] for job in jobs} == {"COMPLETED"}


def test_work_is_stopped_at_two_thirds_of_its_lease_when_renewals_fail(crew: Crew) -> None:
    """The worker's own clock ends it, before the daemon gives the work to anybody else."""
    with Wire(crew.daemon.url) as wire:
        crew.start(url=wire.url, FELTD_TEST_LEASE_MS="6000", FELTD_TEST_TIMEOUT_MS="60000")
        job = crew.work("hold")
        crew.until(lambda: crew.seen("begun"), "it has begun")
        wire.cut()
        crew.until(lambda: crew.seen("told"), "it is told to stop")
        still = crew.client.workload(job)
        wire.mend()

        assert crew.seen("told")[0]["why"] == "lease"
        assert still["state"] == "RUNNING"
        crew.until(lambda: "released" in crew.ends(job), "it is given back")


def test_after_an_outage_longer_than_its_timeout_a_worker_reconciles_and_works_on(
    crew: Crew,
) -> None:
    with Wire(crew.daemon.url) as wire:
        process = crew.start(url=wire.url, FELTD_TEST_TIMEOUT_MS="2000")
        first = crew.work("deaf", {"seconds": 1})
        crew.until(lambda: crew.seen("begun"), "it has begun")
        wire.cut()
        crew.until(lambda: crew.worker()["lifecycle"] == "OFFLINE", "the daemon has lost it")
        wire.mend()
        crew.ready()

        assert process.poll() is None
        assert crew.final(crew.work("echo"))["state"] == "COMPLETED"
        assert crew.final(first)["state"] == "COMPLETED"
        assert crew.ends(first)[0] == "worker_lost"
        late = crew.client.late_results(first)
        assert [one["outcome"] for one in late] == ["completed"]


def test_a_blocking_client_repeats_a_lost_creation_with_the_same_key(shared: Daemon) -> None:
    """BC-037: two arrivals of one creation are one workload."""
    path = "POST /v1/keys"
    with (
        Wire(shared.url, lambda kind, n: LOSE if kind == path and n == 1 else PASS) as wire,
        Client(wire.url, shared.key) as client,
    ):
        made = client.create_key(name="twice", tenants=["t-twice"], scopes=["state:read"])
        live = [one for one in client.keys(500) if one["name"] == "twice"]

    assert wire.lost == [path]
    assert [one["key_id"] for one in live if "revoked_at_ms" not in one] == [made["key_id"]]


def test_silence_is_reported_when_patience_ends() -> None:
    with (
        Client("http://127.0.0.1:9", "k", patience_ms=300) as client,
        pytest.raises(Unreachable, match="no answer from"),
    ):
        client.health()


def test_a_refusal_tells_its_code_and_what_is_next(shared: Daemon) -> None:
    with Client(shared.url, shared.key) as client, pytest.raises(Refusal) as caught:
        client.worker("worker_000000000000000000000000")

    refused = caught.value
    assert (refused.status, refused.code, refused.next) == (404, "WORKER_NOT_FOUND", "register")
    assert refused.facts["request_id"]


@pytest.mark.anyio
async def test_the_asynchronous_client_has_the_same_calls(shared: Daemon) -> None:
    async with AsyncClient(shared.url, shared.key) as client:
        assert (await client.health())["status"] in ("healthy", "degraded")
        assert [one["name"] for one in await client.keys()].count("admin") == 1
    for name in ("create", "pull", "exchange", "heartbeat", "evict"):
        assert getattr(Client, name).__doc__ == getattr(AsyncClient, name).__doc__


def test_what_is_no_address_or_no_key_is_said_before_anything_is_sent() -> None:
    for url in ("", "localhost:7610", "ftp://x", "http://"):
        with pytest.raises(ValueError, match=r"URL|address"):
            Client(url or None, "k")
    with pytest.raises(ValueError, match="one line"):
        Client("http://127.0.0.1:1", "two\nlines")
