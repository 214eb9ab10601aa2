"""The owner of a sink asks the daemon: does this claim hold, is this token the highest."""

from urllib.parse import quote

from tests.api.claims.conftest import Crew
from tests.api.placements.test_placements_wire import key
from tests.daemon.running import Answer, Daemon


def validate(daemon: Daemon, claim_id: str, token: int, bearer: str) -> Answer:
    return daemon.call(
        "POST", f"/v1/claims/{claim_id}/validate", {"fencing_token": token}, key=bearer
    )


def fence(daemon: Daemon, resource: str, token: int, bearer: str, **members: object) -> Answer:
    body = {"fencing_token": token, **members}
    return daemon.call("POST", f"/v1/fences/{quote(resource, safe='')}", body, key=bearer)


def test_a_claim_is_valid_until_it_is_over(daemon: Daemon, crew: Crew) -> None:
    edge, sink = crew.worker(), key(daemon, "claims:validate")
    job = crew.work()
    (claim,) = edge.pull()
    token = claim["fencing_token"]

    valid = validate(daemon, claim["claim_id"], token, sink)
    assert valid.status == 200
    assert {"claim_id", "workload_id", "worker_id", "fencing_token", "expires_at_ms"} <= set(
        valid.body
    )
    assert (valid.body["workload_id"], valid.body["state"]) == (job, "CLAIMED")

    assert edge.fenced("release", claim).status == 200
    over = validate(daemon, claim["claim_id"], token, sink)
    assert (over.status, over.body["code"]) == (409, "MESH_STALE_FENCE")
    assert (over.body["next"], over.body["detail"]) == ("drop_claim", "claim is expired or fenced")


def test_what_is_not_the_sinks_to_see_is_stale_like_what_never_was(
    daemon: Daemon, crew: Crew
) -> None:
    edge = crew.worker()
    crew.work()
    (claim,) = edge.pull()
    stranger = key(daemon, "claims:validate", tenants=("u",))

    foreign = validate(daemon, claim["claim_id"], claim["fencing_token"], stranger)
    made_up = validate(daemon, "claim_17", 17, stranger)

    drop = {"request_id"}
    assert foreign.status == made_up.status == 409
    assert {k: v for k, v in foreign.body.items() if k not in drop} == {
        k: v for k, v in made_up.body.items() if k not in drop
    }


def test_a_fence_tells_the_older_of_two_claims(daemon: Daemon, crew: Crew) -> None:
    edge, sink = crew.worker(), key(daemon, "claims:validate")
    crew.work()
    (old,) = edge.pull()
    edge.fenced("release", old)
    (new,) = edge.pull()

    raised = fence(daemon, "invoice 17", new["fencing_token"], sink)
    late = fence(daemon, "invoice 17", old["fencing_token"], sink)

    assert (raised.status, raised.body) == (
        200,
        {"resource": "invoice 17", "highest": new["fencing_token"]},
    )
    assert (late.status, late.body["code"]) == (409, "MESH_STALE_FENCE")
    assert late.body["highest"] == new["fencing_token"]
    assert fence(daemon, "invoice 17", new["fencing_token"], sink).status == 200


def test_a_bogus_token_is_refused_and_locks_nobody_out(daemon: Daemon, crew: Crew) -> None:
    edge, sink = crew.worker(), key(daemon, "claims:validate")
    crew.work()
    (claim,) = edge.pull()

    bogus = fence(daemon, "r", 2**53 - 1, sink)

    assert (bogus.status, bogus.body["code"]) == (422, "REQUEST_INVALID")
    assert bogus.body["errors"][0]["pointer"] == "/fencing_token"
    assert fence(daemon, "r", claim["fencing_token"], sink).status == 200
    for token in (0, -1, 2**53, "7", None):
        assert fence(daemon, "r", token, sink).status == 422  # type: ignore[arg-type]
    assert fence(daemon, "x" * 201, claim["fencing_token"], sink).status == 422


def test_a_fence_is_of_one_tenant(daemon: Daemon, crew: Crew) -> None:
    edge = crew.worker()
    crew.work()
    (claim,) = edge.pull()
    token = claim["fencing_token"]
    both = key(daemon, "claims:validate", tenants=("t", "u"))

    assert fence(daemon, "r2", token, both).status == 422
    assert fence(daemon, "r2", token, both, tenant_id="t").status == 200
    assert fence(daemon, "r2", token, both, tenant_id="u").status == 409
    assert fence(daemon, "r2", token, both, tenant_id="v").status == 403


def test_only_the_scope_of_a_sink_asks(daemon: Daemon, crew: Crew) -> None:
    edge = crew.worker()
    crew.work()
    (claim,) = edge.pull()
    reader = key(daemon, "workers:read")

    for bearer in (reader, edge.key):
        assert validate(daemon, claim["claim_id"], claim["fencing_token"], bearer).status == 403
        assert fence(daemon, "r", claim["fencing_token"], bearer).status == 403
