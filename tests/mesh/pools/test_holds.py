"""A hold is placed, seen, lifted, and ends at its instant; each knows whose work it touches."""

import pytest

from feltd.mesh import holds, placement
from feltd.model.page import PageAsk
from tests.mesh.pools.stories import drop, generation, hold, lift, make, person, refusal
from tests.mesh.world import Mesh


def of(mesh: Mesh, application: str = "docs", tenant: str = "acme") -> placement.Holds:
    """The holds of an application, as the one who takes work finds them."""
    return mesh.run(lambda tx, _, now: holds.of_application(tx, tenant, application, None))


def listed(mesh: Mesh, *tenants: str, only: str | None = None) -> list[str]:
    page = mesh.ask(holds.page, PageAsk(tenant_id=only), "", person(*tenants))
    return [one.hold_id for one in page.items]


def test_a_hold_says_who_placed_it_and_why(mesh: Mesh) -> None:
    until_at_ms = mesh.now.wall_ms + 60_000
    held = hold(mesh, "application", "docs", by=person("acme"), until_at_ms=until_at_ms)

    assert (held.scope, held.value, held.tenant_id) == ("application", "docs", "acme")
    assert (held.held_by, held.reason) == ("human:ann", "a new release comes")
    assert (held.held_at_ms, held.until_at_ms) == (mesh.now.lease_ms, until_at_ms)
    event = mesh.row("SELECT * FROM events WHERE kind = 'hold'")
    assert (event["tenant_id"], event["application_id"]) == ("acme", "docs")
    act = mesh.row("SELECT * FROM audit WHERE action = 'hold'")
    assert (act["actor"], act["reason"]) == ("human:ann", "a new release comes")


def test_each_scope_touches_its_work_and_no_other(mesh: Mesh) -> None:
    make(mesh)
    plain = {
        "definition_id": "extract",
        "definition_revision": "1",
        "capability_snapshot": "[]",
        "resources": "{}",
        "placement": "{}",
    }
    second = {**plain, "definition_revision": "2"}
    other = {**plain, "definition_id": "index"}
    pooled = {**other, "placement": '{"pool_id": "gpu"}'}
    cases: tuple[tuple[str, str | None, tuple[bool, bool, bool, bool]], ...] = (
        ("tenant", None, (True, True, True, True)),
        ("application", "docs", (True, True, True, True)),
        ("application", "mail", (False, False, False, False)),
        ("definition", "extract", (True, True, False, False)),
        ("definition", "extract#2", (False, True, False, False)),
        ("pool", "gpu", (False, False, False, True)),
        ("all", None, (True, True, True, True)),
    )
    for scope, value, touched in cases:
        held = hold(mesh, scope, value)
        found = tuple(
            holds.touching(row, of(mesh)) is not None for row in (plain, second, other, pooled)
        )
        assert found == touched, (scope, value)
        elsewhere = of(mesh, tenant="other")
        assert (holds.touching(plain, elsewhere) is not None) == (scope == "all")
        lift(mesh, held.hold_id)


def test_a_lifted_hold_holds_nothing_and_lifting_it_again_is_harmless(mesh: Mesh) -> None:
    held = hold(mesh, "tenant")
    assert of(mesh).whole is not None

    lift(mesh, held.hold_id)
    lift(mesh, held.hold_id)
    assert of(mesh).whole is None
    assert listed(mesh, "acme") == []
    assert refusal(lambda: lift(mesh, "hold_never")).code == "HOLD_NOT_FOUND"


def test_anothers_hold_answers_like_a_made_up_one(mesh: Mesh) -> None:
    theirs, everybodys = hold(mesh, "tenant"), hold(mesh, "all")

    for hold_id in (theirs.hold_id, everybodys.hold_id):
        for tenant in ("other", ""):
            real = refusal(lift, mesh, hold_id, tenant=tenant, by=person("other"))
            made_up = refusal(lift, mesh, "hold_x", tenant=tenant, by=person("other"))
            assert (real.code, real.detail) == ("HOLD_NOT_FOUND", made_up.detail)
    assert listed(mesh, "other") == []
    assert set(listed(mesh, "*")) == {theirs.hold_id, everybodys.hold_id}


def test_everybodys_work_is_held_by_whoever_has_every_tenant(mesh: Mesh) -> None:
    refused = refusal(lambda: hold(mesh, "all", by=person("acme", "other")))
    assert refused.code == "FORBIDDEN"
    assert hold(mesh, "all", by=person("*")).tenant_id is None


@pytest.mark.parametrize(
    ("scope", "value", "pointer"),
    [
        ("all", "acme", "/scope"),
        ("tenant", "other", "/value"),
        ("application", None, "/value"),
        ("application", "a:b", "/value"),
        ("pool", None, "/value"),
        ("definition", "a#b#c", "/value"),
    ],
)
def test_what_does_not_fit_is_refused(
    mesh: Mesh, scope: str, value: str | None, pointer: str
) -> None:
    refused = refusal(lambda: hold(mesh, scope, value))
    assert refused.code == "REQUEST_INVALID"
    assert refused.facts["errors"][0]["pointer"] == pointer


def test_a_hold_on_a_pool_that_is_not_there_is_refused(mesh: Mesh) -> None:
    make(mesh, "theirs", tenant="other")

    for pool_id in ("theirs", "made-up"):
        assert refusal(hold, mesh, "pool", pool_id).code == "WORKER_POOL_NOT_FOUND"
    make(mesh)
    held = hold(mesh, "pool", "gpu")
    drop(mesh)
    # Made again, its work is still held.
    make(mesh)
    assert listed(mesh, "acme") == [held.hold_id]


def test_a_hold_ends_at_its_instant(mesh: Mesh) -> None:
    """Nothing is written while none is due; the waiting workers look when one ends."""
    mesh.workload()
    past = refusal(lambda: hold(mesh, "tenant", until_at_ms=mesh.now.wall_ms))
    assert past.facts["errors"][0]["pointer"] == "/until_at_ms"
    hold(mesh, "tenant", until_at_ms=mesh.now.wall_ms + 1_000)

    mesh.later(999)
    assert mesh.run(holds.end_due, 50) == 0
    mesh.later(1)
    assert mesh.run(holds.end_due, 50) == 1
    assert ("ready", "acme/docs") in mesh.signals
    assert of(mesh).whole is None
    assert mesh.row("SELECT kind FROM events ORDER BY seq DESC LIMIT 1")["kind"] == "hold_end"


def test_a_tenant_has_so_many_holds_and_no_more(mesh: Mesh) -> None:
    first = hold(mesh, "tenant")
    for _ in range(holds.HOLDS_MAX - 1):
        hold(mesh, "tenant")

    full = refusal(lambda: hold(mesh, "tenant"))
    assert (full.code, full.facts["limit"]) == ("REQUEST_INVALID", holds.HOLDS_MAX)
    lift(mesh, first.hold_id)
    hold(mesh, "tenant")
    hold(mesh, "all")
    hold(mesh, "tenant", tenant="other")


def test_ended_holds_are_remembered_within_bounds(mesh: Mesh) -> None:
    ids = []
    for _ in range(holds.ENDED_MAX + 5):
        ids.append(hold(mesh, "tenant").hold_id)
        lift(mesh, ids[-1])
        mesh.later(1)

    assert mesh.row("SELECT count(*) AS n FROM holds")["n"] == holds.ENDED_MAX
    lift(mesh, ids[-1])
    assert refusal(lambda: lift(mesh, ids[0])).code == "HOLD_NOT_FOUND"


def test_every_application_that_is_touched_looks_again(mesh: Mesh) -> None:
    mesh.workload()
    mesh.workload(application_id="mail")
    mesh.workload(tenant_id="other")

    hold(mesh, "application", "docs")
    assert (generation(mesh), generation(mesh, "mail")) == (1, 0)
    hold(mesh, "definition", "extract")
    assert (generation(mesh), generation(mesh, "mail")) == (2, 1)
    assert generation(mesh, tenant="other") == 0
    everybodys = hold(mesh, "all")
    assert (generation(mesh), generation(mesh, tenant="other")) == (3, 1)
    lift(mesh, everybodys.hold_id)
    told = {key for topic, key in mesh.signals if topic == "ready"}
    assert told == {"acme/docs", "acme/mail", "other/docs"}


def test_the_hold_of_the_start_is_one_however_often_the_daemon_starts(mesh: Mesh) -> None:
    def start() -> None:
        mesh.run(lambda tx, _, now: holds.hold_at_start(tx, now))

    start()
    assert ("held", "nothing is claimed: hold_at_start by service:feltd: --hold-claims") in (
        mesh.signals
    )
    start()
    assert listed(mesh, "*") == ["hold_at_start"]
    lift(mesh, "hold_at_start")
    assert ("held", "") in mesh.signals
    assert of(mesh).whole is None
    start()
    assert of(mesh).whole is not None
    assert mesh.row("SELECT count(*) AS n FROM events WHERE kind = 'hold'")["n"] == 2


def test_what_is_remembered_of_holds_ends_with_the_generation(mesh: Mesh) -> None:
    mesh.workload()

    def found() -> placement.Hold | None:
        number = generation(mesh)
        return mesh.run(lambda tx, _, now: holds.of_application(tx, "acme", "docs", number)).whole

    assert found() is None
    assert mesh.run(lambda tx, _, now: (found_again(tx), tx.statements)[1]) == 0
    hold(mesh, "tenant")
    assert found() is not None


def found_again(tx: object) -> object:
    return holds.of_application(tx, "acme", "docs", 0)  # type: ignore[arg-type]
