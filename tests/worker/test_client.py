"""Every named method of the client over a real daemon, each noun from its beginning to its end."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from feltd.api.app import routes
from feltd.config import Config
from feltd.worker import AsyncClient, Client, Refusal
from tests.daemon.running import Daemon, Edge
from tests.worker.crew import Crew


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon of these stories: their workers fall silent while other stories are told."""
    daemon = Daemon(tmp_path_factory.mktemp("client") / "feltd.db").init().start()
    yield daemon
    daemon.close()


@pytest.fixture
def edge(crew: Crew) -> Edge:
    """A worker of the crew that is READY and does nothing by itself."""
    worker = Edge(crew.daemon, "edge", crew.key, capabilities=["extract"])
    worker.beat()
    return worker


@pytest.fixture
def client(shared: Daemon) -> Iterator[Client]:
    """The operator's client, for tenant t."""
    with Client(shared.url, shared.key, tenant="t") as client:
        yield client


def refused(call: Any, *arguments: Any, **named: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        call(*arguments, **named)
    return caught.value


def test_a_group_from_its_first_workload_to_its_end(crew: Crew, edge: Edge, client: Client) -> None:
    name = crew.application
    first, second = crew.work("extract", group=name), crew.work("extract", group=name)
    after = client.group(name)
    assert (after["counts"], after["ended"]) == ({"READY": 2}, False)

    assert client.seal_group(name)["sealed"] is True
    child = crew.work("extract", dependencies=[f"group:{name}"], dependency_policy="all_finished")
    assert client.workload(child)["state"] == "PENDING"
    assert client.cancel_group(name, force=True, reason="over")["changed"] == 2

    ended = client.wait_group(name)
    assert ended["counts"] == {"CANCELLED": 2}
    assert client.group(name, 5_000) == ended
    assert {crew.state(job) for job in (first, second)} == {"CANCELLED"}
    assert client.workload(child)["state"] == "READY"
    assert refused(client.group, "made-up").code == "GROUP_NOT_FOUND"
    with Client(crew.daemon.url, crew.daemon.key) as anywhere:
        assert anywhere.group(name, tenant_id="t") == ended
        assert anywhere.seal_group(name, tenant_id="t")["sealed"] is True
        assert anywhere.cancel_group(name, tenant_id="t")["changed"] == 0


def test_a_pool_from_its_making_to_its_end(crew: Crew, edge: Edge, client: Client) -> None:
    pool = {"pool_id": crew.application, "name": "ours", "application_id": crew.application}
    made = client.create_pool(**pool, worker_ids=[edge.id])
    assert client.create_pool(**pool, worker_ids=[edge.id]) == made
    assert (made["members"], made["active"]) == (1, 0)
    assert made in client.pools(500)

    crew.work("extract", placement={"pool_id": crew.application})
    changed = client.replace_pool(**pool, max_concurrency=1)
    assert (changed["max_concurrency"], changed["worker_ids"]) == (1, [])
    edge.pull()
    assert client.pool(crew.application)["active"] == 1
    crew.client.delete_pool(crew.application, tenant_id="t")
    assert refused(client.pool, crew.application).code == "WORKER_POOL_NOT_FOUND"


def test_a_hold_keeps_work_until_it_is_lifted(crew: Crew, edge: Edge, client: Client) -> None:
    hold = client.place_hold("application", "a bad release", value=crew.application)
    job = crew.work("extract")
    assert edge.pull() == []
    assert client.why(job)["reasons"][0]["code"] == "HELD"
    assert hold in client.holds()

    client.lift_hold(hold["hold_id"])
    assert [claim["workload_id"] for claim in edge.pull()] == [job]
    assert refused(client.lift_hold, "hold_made_up").code == "HOLD_NOT_FOUND"


def test_a_worker_is_kept_apart_and_comes_back(crew: Crew, edge: Edge, client: Client) -> None:
    until_at_ms = int(time.time() * 1_000) + 600_000
    shown = client.quarantine(edge.id, reason="it lies", until_at_ms=until_at_ms)
    assert shown["worker_id"] == edge.id
    told = client.why_worker(edge.id)
    assert "WORKER_QUARANTINED" in {reason["code"] for reason in told["reasons"]}
    assert told["safe_to_stop"] is True

    client.unquarantine(edge.id)
    crew.work("extract")
    assert len(edge.pull()) == 1
    assert refused(client.transition, edge.id, "REGISTERED").code == "WORKER_TRANSITION_DENIED"


def test_work_is_tried_out_given_and_looked_back_at(crew: Crew, edge: Edge, client: Client) -> None:
    job = crew.work("extract")
    tried = client.try_placement(job, required_labels={"zone": "nowhere"})
    assert (tried["eligible_workers"], tried["refused"][0]["rule"]) == ([], "required_labels")
    assert client.try_placement(job)["selected_worker"] == edge.id

    claim = client.give(job)
    assert (claim["worker_id"], claim["workload_id"]) == (edge.id, job)
    (decision,) = client.placements(workload_id=job)
    whole = client.placement(decision["decision_id"])
    assert (whole["selected_worker"], whole["agrees"]) == (edge.id, True)
    other = crew.work("extract")
    assert client.give(other, edge.id, lease_ms=60_000)["workload_id"] == other
    assert client.give(job)["claim_id"] == claim["claim_id"]


def test_a_sink_asks_whether_a_claim_holds_and_which_token_is_the_highest(
    crew: Crew, edge: Edge, client: Client
) -> None:
    crew.work("extract")
    (claim,) = edge.pull()
    token = claim["fencing_token"]
    assert client.validate(claim["claim_id"], token)["workload_id"] == claim["workload_id"]
    assert refused(client.validate, claim["claim_id"], token + 1).code == "MESH_STALE_FENCE"

    for resource in (f"s3://{crew.application}/a b%2Fc?", f"ü#{crew.application}"):
        kept = client.fence(resource, token)
        assert kept == {"resource": resource, "highest": token}
        assert client.fence(resource, token, tenant_id="t") == kept
    with pytest.raises(ValueError, match="no name"):
        client.fence("..", token)
    stale = refused(client.fence, resource, token - 1)
    assert (stale.code, stale.facts["highest"]) == ("MESH_STALE_FENCE", token)


def test_work_is_edited_run_now_and_changed_in_bulk(crew: Crew, edge: Edge, client: Client) -> None:
    later = crew.work("extract", not_before_at_ms=2**52)
    assert client.edit(later, priority=7, labels={"team": "web"})["priority"] == 7
    assert client.workload(later)["labels"] == {"team": "web"}
    assert client.run_now(later)["state"] == "READY"

    ours = {"application_id": crew.application}
    counted = client.bulk("cancel", ours, dry_run=True)
    assert (counted["matched"], counted["changed"]) == (1, 0)
    assert client.bulk("reprioritise", ours, priority=9) == {"changed": 1, "remaining": 0}
    assert client.workload(later)["priority"] == 9

    (claim,) = edge.pull(start=True)
    edge.fenced("fail", claim, kind="permanent", message="broken")
    (kind,) = client.dead_letters(**ours)["items"]
    assert (kind["failure_kind"], kind["newest_workload_id"]) == ("permanent", later)
    dead = {**ours, "state": "DEAD_LETTERED"}
    assert client.bulk("requeue", dead) == {"changed": 1, "remaining": 0}
    (waiting,) = client.backlog(**ours)["items"]
    assert (waiting["ready"], waiting["definition_id"]) == (1, "extract")


@pytest.mark.anyio
async def test_the_asynchronous_client_does_the_same(crew: Crew, edge: Edge) -> None:
    name = crew.application
    async with AsyncClient(crew.daemon.url, crew.daemon.key, tenant="t") as client:
        job = crew.work("extract", group=name)
        assert (await client.group(name))["counts"] == {"READY": 1}
        assert (await client.why(job))["workload_id"] == job
        assert (await client.bulk("cancel", {"group": name}))["changed"] == 1
        await client.seal_group(name)
        assert (await client.wait_group(name))["ended"] is True


#: Routes whose call stands elsewhere: read by machines, or said under a claim by `fenced`.
WITHOUT_A_METHOD = {
    "ready", "readiness", "metrics", "explain", "openapi", "worker_py",
    "start", "renew", "checkpoint", "complete", "fail", "release", "log",
}  # fmt: skip


def test_every_method_is_there_twice_and_says_what_it_does() -> None:
    named = {name for name in dir(AsyncClient) if not name.startswith("_")} - {"close"}
    for name in named:
        assert getattr(AsyncClient, name).__doc__
        assert hasattr(Client, name), name
    assert len(routes(Config())) - len(WITHOUT_A_METHOD) <= len(named)
