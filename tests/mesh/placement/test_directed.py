"""Work is given to a worker by a person, and the decision can be asked again ever after."""

from typing import Any

import pytest
from msgspec import convert
from msgspec.json import decode

from feltd.errors import Refused
from feltd.identity.principals import LOCAL
from feltd.mesh import decisions, directed, exchange, heartbeat, holds, inputs, pools
from feltd.mesh.pools import OfTenant
from feltd.model.base import Caller, Subject
from feltd.model.claim import Claim, ClaimById
from feltd.model.exchange import Exchange, ExchangeAnswer
from feltd.model.hold import NewHold
from feltd.model.placement import Decision, DecisionQuery, Dry
from feltd.model.policy import Placement
from feltd.model.pool import NewPool
from feltd.model.worker import Heartbeat, HeartbeatAnswer
from tests.mesh.world import Mesh

OPERATOR = Caller(
    subject=Subject("service", "ops"),
    scopes=frozenset({"workloads:operate"}),
    tenants=("acme",),
    local=True,
)


def give(mesh: Mesh, job: str, caller: Caller = OPERATOR, **body: Any) -> Claim:
    return mesh.ask(directed.claim, convert(body, ClaimById), job, caller)[0]


def refusal(mesh: Mesh, job: str, caller: Caller = OPERATOR, **body: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        give(mesh, job, caller, **body)
    return refused.value


def try_out(mesh: Mesh, job: str, **policy: Any) -> Dry:
    return mesh.ask(directed.try_out, convert(policy, Placement), job, OPERATOR)


def kept(mesh: Mesh, **query: Any) -> list[Decision]:
    return mesh.ask(decisions.page, convert(query, DecisionQuery), caller=OPERATOR).items


def decision(mesh: Mesh, decision_id: str) -> Decision:
    return mesh.ask(decisions.get, None, decision_id, OPERATOR)


def beat(mesh: Mesh, worker_id: str, *running: str) -> HeartbeatAnswer:
    return mesh.ask(heartbeat.heartbeat, beat_body(mesh, worker_id, *running), worker_id)


def beat_body(mesh: Mesh, worker_id: str, *running: str) -> Heartbeat:
    row = mesh.row("SELECT capability_version FROM workers WHERE worker_id = :id", id=worker_id)
    told = {
        "worker_id": worker_id,
        "version": "1",
        "capability_version": row["capability_version"],
        "capacity": {"concurrency": 1},
        "health": "HEALTHY",
        "running_claims": list(running),
    }
    return convert(told, Heartbeat)


def frame(mesh: Mesh, worker_id: str, **body: Any) -> ExchangeAnswer:
    asked = exchange.Exchanging(convert(body, Exchange), {})
    return mesh.ask(exchange.exchange, asked, worker_id)


def ids(claims: list[Claim]) -> list[str]:
    return [claim.claim_id for claim in claims]


def test_a_named_worker_gets_the_work_and_the_decision_is_kept(mesh: Mesh) -> None:
    worker, other = mesh.worker("a"), mesh.worker("b")
    job = mesh.workload()

    held = give(mesh, job, worker_id=other, lease_ms=60_000)

    assert (held.worker_id, held.state) == (other, "CLAIMED")
    assert held.expires_at_ms == mesh.now.lease_ms + 60_000
    (found,) = kept(mesh, workload_id=job)
    assert (found.selected_worker, found.claim_id) == (other, held.claim_id)
    assert found.reason == "deterministic capability and capacity match"
    assert (found.eligible_workers, found.refused) == ([other], [])
    assert found.decided_by == "service:ops"
    row = mesh.row("SELECT how, decision_id, assigned FROM claims")
    assert tuple(row) == ("directed", int(found.decision_id.removeprefix("placement_")), 1)
    assert worker != other


def test_without_a_name_the_documented_order_chooses(mesh: Mesh) -> None:
    busy = mesh.worker("busy", capacity={"concurrency": 8}, labels={"zone": "a"})
    mesh.claims(mesh.workload(), by=busy)
    small = mesh.worker("small", capacity={"concurrency": 2})
    large = mesh.worker("large", capacity={"concurrency": 4})

    plain = give(mesh, mesh.workload())
    near = give(mesh, mesh.workload(placement={"affinity": {"zone": "a"}}))

    assert (plain.worker_id, near.worker_id) == (large, busy)
    rows = mesh.conn.execute("SELECT affinity FROM claims WHERE how = 'directed' ORDER BY 1")
    assert [row["affinity"] for row in rows] == [0, 1]
    assert kept(mesh)[1].eligible_workers == sorted([busy, small, large])


def test_the_lease_is_at_least_two_heartbeat_intervals(mesh: Mesh) -> None:
    worker = mesh.worker(heartbeat_interval_ms=20_000, heartbeat_timeout_ms=60_000)

    held = give(mesh, mesh.workload(), worker_id=worker, lease_ms=1_000)

    assert held.expires_at_ms == mesh.now.lease_ms + 40_000


def test_a_given_claim_is_told_until_a_beat_names_it(mesh: Mesh) -> None:
    worker = mesh.worker()
    held = give(mesh, mesh.workload(input={"page": 1}), worker_id=worker)

    first, again = beat(mesh, worker), beat(mesh, worker)
    assert ids(first.assigned_claims) == ids(again.assigned_claims) == [held.claim_id]
    assert bytes(first.assigned_claims[0].input) == b'{"page":1}'
    mesh.later(ms=6_000)
    # It is no unknown claim meanwhile: the worker has not been told, as far as anybody knows.
    assert beat(mesh, worker).unknown_claims == []

    named = beat(mesh, worker, held.claim_id)

    assert (named.assigned_claims, named.unknown_claims) == ([], [])
    # Named once and then forgotten is a difference like any other.
    assert beat(mesh, worker).unknown_claims == [held.claim_id]
    assert beat(mesh, worker).assigned_claims == []


def test_its_start_names_it_too(mesh: Mesh) -> None:
    worker = mesh.worker()
    held = give(mesh, mesh.workload(), worker_id=worker)
    mesh.say("start", held)

    assert beat(mesh, worker).assigned_claims == []
    mesh.later(ms=6_000)
    assert beat(mesh, worker).unknown_claims == [held.claim_id]


def test_an_exchange_tells_it_and_an_item_names_it(mesh: Mesh) -> None:
    worker = mesh.worker()
    held = give(mesh, mesh.workload(), worker_id=worker)

    assert ids(frame(mesh, worker).assigned_claims) == [held.claim_id]
    item = {
        "workload_id": held.workload_id,
        "claim_id": held.claim_id,
        "worker_id": worker,
        "fencing_token": held.fencing_token,
    }
    assert frame(mesh, worker, renew=[item]).assigned_claims == []
    assert frame(mesh, worker).assigned_claims == []


def test_an_exchange_with_a_beat_names_what_the_beat_names(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 2})
    one, two = (give(mesh, mesh.workload(), worker_id=worker) for _ in range(2))

    answer = frame(mesh, worker, heartbeat=beat_body(mesh, worker, one.claim_id))

    assert ids(answer.assigned_claims) == [two.claim_id]


def test_a_given_claim_that_nobody_takes_up_runs_out(mesh: Mesh) -> None:
    job = mesh.workload()
    give(mesh, job, worker_id=mesh.worker(), lease_ms=20_000)

    mesh.later(ms=20_000)
    mesh.sweep()

    assert mesh.state(job) == "READY"


def test_repeating_gives_the_same_claim_and_decides_nothing_again(mesh: Mesh) -> None:
    worker, job = mesh.worker(capacity={"concurrency": 2}), mesh.workload()

    first = give(mesh, job, worker_id=worker)
    again = mesh.ask(directed.claim, ClaimById(worker_id=worker), job, OPERATOR)
    unnamed = mesh.ask(directed.claim, ClaimById(), job, OPERATOR)

    assert (again[1], unnamed[1]) == (False, False)
    assert {first.claim_id} == {again[0].claim_id, unnamed[0].claim_id}
    assert len(kept(mesh)) == 1
    # Somebody else, or another worker, is another wish.
    assert refusal(mesh, job, LOCAL).code == "WORKLOAD_NOT_READY"
    assert refusal(mesh, job, worker_id=mesh.worker("b")).code == "WORKLOAD_NOT_READY"


def test_refusals_come_in_the_order_of_the_law(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 1})
    mesh.claims(mesh.workload(), by=worker)
    foreign = mesh.worker("theirs", tenant_id="other")
    asks = {"capability_snapshot": ["gpu"], "not_before_at_ms": mesh.now.wall_ms + 60_000}
    later = {"not_before_at_ms": mesh.now.wall_ms + 60_000}

    def code(job: str, worker_id: str | None = worker) -> str:
        body = {} if worker_id is None else {"worker_id": worker_id}
        return refusal(mesh, job, **body).code

    assert code("workload_none") == "WORKLOAD_NOT_FOUND"
    assert code(mesh.workload(tenant_id="other")) == "WORKLOAD_NOT_FOUND"
    assert code(mesh.workload(**asks), "worker_none") == "WORKER_NOT_FOUND"
    assert code(mesh.workload(**asks), foreign) == "WORKER_NOT_FOUND"
    assert code(mesh.workload(**asks)) == "WORKLOAD_CAPABILITY_DENIED"
    assert code(mesh.workload(**later)) == "WORKLOAD_NOT_YET_ELIGIBLE"
    assert code(mesh.workload()) == "MESH_PLACEMENT_DENIED"
    assert code(mesh.workload(**asks), None) == "WORKLOAD_NOT_YET_ELIGIBLE"
    assert code(mesh.workload(), None) == "MESH_NO_ELIGIBLE_WORKER"


def test_a_refusal_names_rules_and_its_decision_is_kept_once_for_its_inputs(mesh: Mesh) -> None:
    worker, job = mesh.worker(capacity={"concurrency": 1}), mesh.workload()
    mesh.claims(mesh.workload(), by=worker)

    first = refusal(mesh, job, worker_id=worker)
    mesh.later(ms=1_000)
    again = refusal(mesh, job, worker_id=worker)

    assert (first.facts["rules"], first.facts["reasons"][0]["code"]) == (["full"], "full")
    assert first.facts["decision_id"] == again.facts["decision_id"]
    (found,) = kept(mesh, workload_id=job)
    assert found.decision_id == first.facts["decision_id"]
    assert found.selected_worker is found.claim_id is None
    assert [(one.worker_id, one.rule) for one in found.refused] == [(worker, "full")]
    # Silence turns the answer, so it is a new decision.
    mesh.later(ms=60_000)
    assert refusal(mesh, job, worker_id=worker).facts["rules"] == ["full", "stale"]
    assert len(kept(mesh, workload_id=job)) == 2


def test_nobody_fits_names_the_first_rule_of_each_worker(mesh: Mesh) -> None:
    full, lame = mesh.worker("full"), mesh.worker("lame", capabilities=[])
    mesh.claims(mesh.workload(), by=full)

    refused = refusal(mesh, mesh.workload(capability_snapshot=["docs.extract"]))

    assert refused.code == "MESH_NO_ELIGIBLE_WORKER"
    told = {one["worker_id"]: one["code"] for one in refused.facts["reasons"]}
    assert told == {full: "full", lame: "capabilities"}


def test_a_claim_narrows_the_policy_of_its_workload(mesh: Mesh) -> None:
    east = mesh.worker("east", labels={"zone": "east", "disk": "hdd"})
    mesh.worker("west", labels={"zone": "west", "disk": "ssd"})
    job = mesh.workload(placement={"required_labels": {"zone": "east"}})

    none = refusal(mesh, job, placement={"required_labels": {"disk": "ssd"}})
    wider = refusal(mesh, job, placement={"required_labels": {"zone": "west"}})
    held = give(mesh, job, placement={"required_labels": {"disk": "hdd"}})

    assert (none.code, wider.code) == ("MESH_NO_ELIGIBLE_WORKER", "WORKLOAD_INVALID")
    assert held.worker_id == east


def test_a_pool_is_enforced_and_may_be_named_by_the_claim(mesh: Mesh) -> None:
    inside, outside = mesh.worker("inside"), mesh.worker("outside")
    body = NewPool(pool_id="east", name="East", worker_ids=(inside,), max_concurrency=1)
    mesh.ask(pools.create, OfTenant("acme", body))
    pooled = mesh.workload(placement={"pool_id": "east"})

    assert refusal(mesh, pooled, worker_id=outside).facts["rules"] == ["pool"]
    made_up = refusal(mesh, mesh.workload(), placement={"pool_id": "nowhere"})
    assert made_up.code == "WORKER_POOL_NOT_FOUND"
    assert give(mesh, mesh.workload(), placement={"pool_id": "east"}).worker_id == inside
    assert {one.worker_id: one.rule for one in try_out(mesh, pooled).refused} == {
        inside: "full",
        outside: "pool",
    }


def test_a_claim_that_names_a_pool_is_counted_in_it(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 9})
    body = NewPool(pool_id="tight", name="Tight", max_concurrency=1)
    mesh.ask(pools.create, OfTenant("acme", body))
    tight = {"pool_id": "tight"}

    given = give(mesh, mesh.workload(), placement=tight)
    refused = refusal(mesh, mesh.workload(), worker_id=worker, placement=tight)
    mesh.workload(placement=tight)

    assert refused.facts["rules"] == ["pool_full"]
    assert mesh.ask(pools.get, OfTenant("acme"), "tight").active == 1
    assert {one.code for one in mesh.pull(worker, workload_kinds=["other"]).reasons} == {"NO_MATCH"}
    mesh.say("release", given)
    assert mesh.ask(pools.get, OfTenant("acme"), "tight").active == 0
    assert give(mesh, mesh.workload(), placement=tight).worker_id == worker


def test_limits_and_holds_keep_everybody_away(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 9})
    key = {"concurrency": {"key": "printer", "limit": 1}}
    rate = {"rate": {"key": "mail", "limit": 1, "period_ms": 60_000}}
    body = NewPool(pool_id="tight", name="Tight", max_concurrency=1)
    mesh.ask(pools.create, OfTenant("acme", body))
    pool = {"placement": {"pool_id": "tight"}}

    for members, rule in ((key, "key_full"), (rate, "rate_full"), (pool, "pool_full")):
        give(mesh, mesh.workload(**members), worker_id=worker)
        assert refusal(mesh, mesh.workload(**members), worker_id=worker).facts["rules"] == [rule]
    job = mesh.workload()
    mesh.ask(holds.place, holds.Placing("acme", NewHold(scope="tenant", reason="backup")))
    assert refusal(mesh, job, worker_id=worker).facts["rules"] == ["held"]
    for found in kept(mesh):
        assert decision(mesh, found.decision_id).agrees is True
    mesh.later(ms=60_000)
    assert "rate_full" not in try_out(mesh, mesh.workload(**rate)).refused[0].rules


def test_a_dry_run_says_what_would_be_and_stores_nothing(mesh: Mesh) -> None:
    first, second = mesh.worker("a", labels={"zone": "a"}), mesh.worker("b")
    job = mesh.workload()
    before = mesh.everything()

    found, narrow = try_out(mesh, job), try_out(mesh, job, required_labels={"zone": "a"})

    assert found.eligible_workers == sorted([first, second])
    assert found.selected_worker == min(first, second)
    assert (narrow.selected_worker, narrow.refused[0].rules) == (first, ("required_labels",))
    assert (found.state, found.evaluated_at_ms) == ("READY", mesh.now.lease_ms)
    assert mesh.everything() == before
    assert kept(mesh) == []
    given = give(mesh, job, placement={"required_labels": {"zone": "a"}})
    assert given.worker_id == narrow.selected_worker


def test_a_dry_run_of_nobody_is_an_answer(mesh: Mesh) -> None:
    found = try_out(mesh, mesh.workload())

    assert (found.eligible_workers, found.selected_worker) == ([], None)
    assert found.reason == "no worker satisfies placement policy"


def test_who_may_not_operate_gives_nothing(mesh: Mesh) -> None:
    viewer = Caller(subject=Subject("service", "v"), tenants=("acme",), local=True)
    assert refusal(mesh, mesh.workload(), viewer).code == "FORBIDDEN"


def test_decisions_of_another_tenant_answer_as_made_up_ones(mesh: Mesh) -> None:
    job = mesh.workload(tenant_id="other")
    worker = mesh.worker("theirs", tenant_id="other")
    mesh.ask(directed.claim, ClaimById(worker_id=worker), job, LOCAL)

    assert kept(mesh) == kept(mesh, workload_id=job) == kept(mesh, worker_id=worker) == []
    answers = set()
    for decision_id in ("placement_1", "placement_2", "placement_01", "nonsense", "placement_-1"):
        with pytest.raises(Refused) as refused:
            decision(mesh, decision_id)
        answers.add((refused.value.code, refused.value.detail))
    assert answers == {("PLACEMENT_NOT_FOUND", "no such placement decision")}
    assert mesh.ask(decisions.get, None, "placement_1", LOCAL).selected_worker == worker


def test_decisions_come_newest_first_and_page_on(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 9})
    for _ in range(5):
        give(mesh, mesh.workload(), worker_id=worker)

    seen: list[str] = []
    before = None
    while True:
        query = DecisionQuery(worker_id=worker, limit=2, before=before)
        page = mesh.ask(decisions.page, query, caller=OPERATOR)
        seen += [one.decision_id for one in page.items]
        if (before := page.next_before) is None:
            break
    assert seen == [f"placement_{number}" for number in (5, 4, 3, 2, 1)]


def test_a_page_of_large_decisions_ends_early_and_goes_on(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "ANSWER_BYTES_MAX", 300)
    worker = mesh.worker(capacity={"concurrency": 9})
    for _ in range(5):
        give(mesh, mesh.workload(), worker_id=worker)

    sizes, before = [], None
    while True:
        page = mesh.ask(decisions.page, DecisionQuery(before=before), caller=OPERATOR)
        sizes.append(len(page.items))
        if (before := page.next_before) is None:
            break
    assert sum(sizes) == 5
    assert max(sizes) < 5


def test_a_decision_shows_its_inputs_and_is_decided_once_more(mesh: Mesh) -> None:
    worker, job = mesh.worker(labels={"zone": "a"}), mesh.workload()
    give(mesh, job)

    found = decision(mesh, "placement_1")

    assert found.agrees is True
    assert found.inputs is not None
    told = decode(bytes(found.inputs))
    assert [one["worker_id"] for one in told["workers"]] == [worker]
    assert told["lease_ms"] == mesh.now.lease_ms
    # What happens later changes nothing of it.
    mesh.later(ms=9_999_999)
    assert decision(mesh, "placement_1") == found


def test_a_decision_that_was_tampered_with_agrees_no_more(mesh: Mesh) -> None:
    mesh.worker("a")
    mesh.worker("b")
    give(mesh, mesh.workload())
    mesh.hand(
        "UPDATE decisions SET candidates = replace(candidates, '\"active\":0', '\"active\":1')"
    )

    assert decision(mesh, "placement_1").agrees is False


def test_of_very_many_workers_those_that_can_work_are_looked_at_first(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "WORKERS_MAX", 2)
    workers = [mesh.worker(name) for name in "abcd"]
    mesh.conn.execute("UPDATE workers SET health = 'DEGRADED' WHERE name IN ('a', 'b', 'c')")

    found = try_out(mesh, mesh.workload())

    assert (found.selected_worker, found.unread) == (workers[3], 2)


def test_giving_is_told_to_the_worker_and_written_down(mesh: Mesh) -> None:
    worker, job = mesh.worker(), mesh.workload()

    give(mesh, job, worker_id=worker)

    assert ("worker", worker) in mesh.signals
    event = mesh.row("SELECT actor FROM events WHERE kind = 'claim'")
    assert event["actor"] == "service:ops"
    act = mesh.row("SELECT actor, subject, reason FROM audit WHERE action = 'claim'")
    assert tuple(act) == ("service:ops", job, worker)
