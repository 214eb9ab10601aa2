"""Keys: nobody hands out more than he has; how keys end; what of them is on disk."""

from pathlib import Path
from typing import Any

import pytest

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import keys, presets, worker_keys
from feltd.identity.principals import LOCAL, OPEN
from feltd.mesh import ledger
from feltd.model.base import Ask, Caller, Subject
from feltd.model.key import CreateKey, RotateKey, Scope
from feltd.model.page import PageAsk
from feltd.store import connect, migrate
from feltd.store.tx import Tx
from tests.identity.house import HOUR_MS, START_MS, House, pointers


def admin(house: House, **more: Any) -> Caller:
    return house.caller(**{"scopes": ["keys:admin", "state:read"], **more})


def test_a_new_key_that_names_nothing_gets_the_defaults(house: House) -> None:
    made = house.key()

    assert made.scopes == ("events:read", "state:read", "state:write")
    assert made.namespaces == ("default",)
    assert (made.subject_type, made.expires_at_ms) == ("service", None)
    assert house.bearer_of(made).subject == Subject(kind="service", id=made.key_id)


@pytest.mark.parametrize(
    ("subject_type", "letter"),
    [("service", "s"), ("api_key", "s"), ("user", "s"), ("human", "s"), ("agent", "a")],
)
def test_the_text_of_a_key_tells_its_kind(house: House, subject_type: str, letter: str) -> None:
    assert house.key(subject_type=subject_type).secret[5] == letter


def test_sets_are_sorted_and_each_once(house: House) -> None:
    made = house.key(scopes=["workers:read", "state:read", "workers:read"], tenants=["b", "a", "b"])

    assert made.scopes == ("state:read", "workers:read")
    assert made.tenants == ("a", "b")


@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"scopes": ["state:read", "workers:operate"]}, "/scopes"),
        ({"scopes": ["*"]}, "/scopes"),
        ({"scopes": []}, None),
        ({"scopes": None}, "/scopes"),
        ({"scopes": ["state:read"], "tenants": ["other"]}, "/tenants"),
        ({"scopes": ["state:read"], "tenants": ["acme", "other"]}, "/tenants"),
        ({"scopes": ["state:read"], "tenants": ["*"]}, "/tenants"),
        ({"scopes": ["state:read"], "namespaces": ["default", "staging"]}, "/namespaces"),
        ({"scopes": ["state:read"], "expires_at_ms": START_MS + HOUR_MS + 1}, "/expires_at_ms"),
        ({"scopes": ["state:read"], "expires_at_ms": START_MS + HOUR_MS}, None),
        ({"scopes": ["state:read", "keys:admin"], "tenants": ["acme"]}, None),
    ],
)
def test_nobody_hands_out_more_than_he_has(
    house: House, more: dict[str, Any], pointer: str | None
) -> None:
    maker = admin(house, expires_at_ms=START_MS + HOUR_MS)

    if pointer is None:
        house.key(maker, **more)
    else:
        refused = house.refusal(lambda: house.key(maker, **more))
        assert (refused.code, pointers(refused)) == ("FORBIDDEN", [pointer])


def test_a_key_never_outlives_the_one_that_made_it(house: House) -> None:
    maker = admin(house, expires_at_ms=START_MS + HOUR_MS)

    assert house.key(maker, scopes=["state:read"]).expires_at_ms == START_MS + HOUR_MS


def test_a_key_of_a_maker_from_another_namespace_gets_the_makers(house: House) -> None:
    maker = admin(house, namespaces=["staging"])

    assert house.key(maker, scopes=[]).namespaces == ("staging",)


def test_only_keys_admin_makes_keys_and_a_worker_never(house: House) -> None:
    worker = house.issue_worker_key(house.caller(scopes=["*"]), house.worker("worker_1"))

    for caller in (worker, house.caller(scopes=["workloads:create"])):
        assert house.refusal(lambda c=caller: house.key(c)).code == "FORBIDDEN"


def test_an_ended_key_makes_no_keys(house: House) -> None:
    maker = admin(house)
    house.revoke_key(maker.key_id)

    refused = house.refusal(lambda: house.key(maker, scopes=[]))

    assert refused.code == "UNAUTHENTICATED"


def test_a_maker_of_several_tenants_says_which_it_means(house: House) -> None:
    for tenants in (["a", "b"], ["*"]):
        maker = admin(house, tenants=tenants)
        refused = house.refusal(lambda m=maker: house.key(m, scopes=[]))
        assert (refused.code, pointers(refused)) == ("REQUEST_INVALID", ["/tenants"])
    assert house.key(OPEN, scopes=[]).tenants == ("default",)


def test_an_expiry_in_the_past_is_refused(house: House) -> None:
    refused = house.refusal(lambda: house.key(expires_at_ms=START_MS))

    assert (refused.code, pointers(refused)) == ("REQUEST_INVALID", ["/expires_at_ms"])


# Bound grants


def test_a_grant_is_bound_by_who_may_issue_it_or_is_its_subject(house: House) -> None:
    grant = house.grant("registrar")
    bound = {"scopes": [], "identity_id": "registrar", "grant_id": grant.id}

    maker = admin(house)
    refused = house.refusal(lambda: house.key(maker, **bound | {"identity_id": None}))
    assert (refused.code, pointers(refused)) == ("FORBIDDEN", ["/grant_id"])
    issuer = admin(house, scopes=["keys:admin", "grants:issue"])
    subject = admin(house, identity_id="registrar")

    assert house.key(issuer, **bound).grant_id == grant.id
    assert house.usable(house.caller(subject, **bound)) == grant


def test_nobody_makes_a_key_that_is_another_whom_a_grant_was_given_to(house: House) -> None:
    house.grant("registrar")
    house.grant("elsewhere", tenant_id="other")
    over = house.grant("over")
    house.revoke(over)
    maker = admin(house)
    registrar = house.key(identity_id="registrar", scopes=[])

    for verb in (
        lambda: house.key(maker, scopes=[], identity_id="registrar"),
        lambda: house.rotate(registrar.key_id, 0, maker),
    ):
        refused = house.refusal(verb)
        assert (refused.code, pointers(refused)) == ("FORBIDDEN", ["/identity_id"])
    for harmless in ("nobody", "elsewhere", "over"):
        house.key(maker, scopes=[], identity_id=harmless)
    house.key(maker, scopes=[], identity_id="registrar", subject_type="agent")
    everywhere = admin(house, tenants=["*"])
    refused = house.refusal(
        lambda: house.key(everywhere, scopes=[], tenants=["*"], identity_id="elsewhere")
    )
    assert pointers(refused) == ["/identity_id"]


def test_a_grant_of_no_use_to_the_key_is_not_bound(house: House) -> None:
    grant = house.grant("registrar")
    foreign = house.grant("registrar", tenant_id="other")

    def refusal(**more: Any) -> Refused:
        members = {"identity_id": "registrar", "grant_id": grant.id, **more}
        return house.refusal(lambda: house.key(**members))

    assert refusal(identity_id="somebody").code == "REQUEST_INVALID"
    assert refusal(subject_type="agent").code == "REQUEST_INVALID"
    assert refusal(grant_id=foreign.id).code == "REQUEST_INVALID"
    assert refusal(grant_id="grant_made_up").code == "GRANT_NOT_FOUND"
    house.revoke(grant)
    assert refusal().code == "GRANT_DENIED"


def test_a_foreign_grant_is_not_there_for_the_maker(house: House) -> None:
    foreign = house.grant("registrar", tenant_id="other")
    issuer = admin(house, scopes=["keys:admin", "grants:issue"])

    def refusal(grant_id: str) -> Refused:
        return house.refusal(lambda: house.key(issuer, scopes=[], grant_id=grant_id))

    there, made_up = refusal(foreign.id), refusal("grant_made_up")
    assert (there.code, there.detail) == (made_up.code, made_up.detail)
    assert there.code == "GRANT_NOT_FOUND"


# Workers' keys


def test_a_key_made_for_a_worker_is_that_worker_and_has_no_scopes(house: House) -> None:
    maker = admin(house, scopes=["keys:admin", "grants:issue"])
    made = house.key(maker, worker_id=house.worker("worker_1"))
    caller = house.bearer_of(made)

    assert made.secret.startswith("felt_w_")
    assert (made.scopes, made.tenants) == ((), ("acme",))
    assert caller.subject == Subject(kind="worker", id="worker_1")
    assert (caller.worker_id, caller.incarnation) == ("worker_1", None)
    assert not caller.holds("state:read")


@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"scopes": ["state:read"]}, "/scopes"),
        ({"tenants": ["acme"]}, "/tenants"),
        ({"subject_type": "service"}, "/subject_type"),
        ({"identity_id": "somebody"}, "/identity_id"),
    ],
)
def test_a_workers_key_takes_no_scopes_tenants_or_kind(
    house: House, more: dict[str, Any], pointer: str
) -> None:
    house.worker("worker_1")

    refused = house.refusal(lambda: house.key(worker_id="worker_1", **more))

    assert (refused.code, pointers(refused)) == ("REQUEST_INVALID", [pointer])


def test_a_worker_key_without_a_worker_cannot_be_made(house: House) -> None:
    refused = house.refusal(lambda: house.key(subject_type="worker"))

    assert (refused.code, pointers(refused)) == ("REQUEST_INVALID", ["/worker_id"])


def test_a_worker_of_another_tenant_is_not_there(house: House) -> None:
    house.worker("worker_1", tenant_id="other")
    maker = admin(house)

    foreign = house.refusal(lambda: house.key(maker, worker_id="worker_1"))
    made_up = house.refusal(lambda: house.key(maker, worker_id="worker_2"))

    assert (foreign.code, foreign.detail) == (made_up.code, made_up.detail)
    assert foreign.code == "WORKER_NOT_FOUND"


def test_registering_again_replaces_the_key_that_was_issued_before(house: House) -> None:
    registrar = house.caller(scopes=["workers:register"], expires_at_ms=START_MS + HOUR_MS)
    house.worker("worker_1")
    by_hand = house.key(worker_id="worker_1")
    first = house.issue_worker_key(registrar, "worker_1")

    second = house.issue_worker_key(registrar, "worker_1")

    assert house.ended(first.key_id) == "revoked"
    assert house.ended(second.key_id) is None
    assert house.ended(by_hand.key_id) is None
    assert house.row(second.key_id)["expires_at_ms"] == START_MS + HOUR_MS


def test_a_takeover_ends_the_keys_of_earlier_incarnations_alone(house: House) -> None:
    registrar = house.caller(scopes=["workers:register"])
    old = house.issue_worker_key(registrar, house.worker("worker_1"), incarnation=1)
    other = house.issue_worker_key(registrar, house.worker("worker_2"), incarnation=1)

    assert house.takes_over("worker_1") == [old.key_id]

    assert house.ended(old.key_id) == "taken_over"
    assert house.ended(other.key_id) is None
    assert house.signals == [("key", old.key_id)]
    new = house.issue_worker_key(registrar, "worker_1", incarnation=2)
    assert house.do(lambda tx, now: worker_keys.revoke_keys_of_worker(tx, now, "worker_1", 2)) == []
    assert house.ended(new.key_id) is None


# Ends


def test_a_key_takes_every_key_it_obtained_with_it(house: House) -> None:
    registrar = house.caller(scopes=["workers:register"])
    one = house.issue_worker_key(registrar, house.worker("worker_1"))
    two = house.issue_worker_key(registrar, house.worker("worker_2"))

    house.revoke_key(registrar.key_id)

    assert {house.ended(it.key_id) for it in (registrar, one, two)} == {"revoked"}
    assert house.ended_now == sorted(("key", it.key_id) for it in (registrar, one, two))


def test_revoking_again_changes_nothing(house: House) -> None:
    made = house.key()
    house.revoke_key(made.key_id)
    before = house.dump()
    house.later(1_000)

    house.revoke_key(made.key_id)

    assert house.dump() == before


def test_a_revoked_key_stays_revoked_whoever_types(house: House) -> None:
    made = house.key()
    house.revoke_key(made.key_id)

    with pytest.raises(Exception, match="stays revoked"):
        house.conn.execute("UPDATE keys SET revoked_at_ms = NULL, revoked_reason = NULL")


@pytest.mark.parametrize("tenants", [["other"], ["acme", "other"], ["*"]])
def test_a_key_that_reaches_other_tenants_is_not_there(house: House, tenants: list[str]) -> None:
    """BC-093: nothing of it is changed before that is known."""
    foreign = house.key(tenants=tenants)
    maker = admin(house)

    for verb in (house.revoke_key, lambda key_id, by: house.rotate(key_id, 0, by)):
        refused = house.refusal(lambda v=verb: v(foreign.key_id, maker))
        made_up = house.refusal(lambda v=verb: v("000000009999", maker))
        assert (refused.code, refused.detail) == (made_up.code, made_up.detail)
        assert refused.code == "KEY_NOT_FOUND"


# Rotation


def test_a_rotated_key_goes_on_beside_its_successor_and_then_ends(house: House) -> None:
    old = house.key(name="import", scopes=["state:read"])

    new = house.rotate(old.key_id, overlap_ms=HOUR_MS)

    assert house.row(old.key_id)["expires_at_ms"] == START_MS + HOUR_MS
    assert (new.name, new.scopes, new.tenants) == ("import", ("state:read",), ("acme",))
    assert new.expires_at_ms is None
    # Whoever was known by the old key's id still is the same subject.
    assert house.bearer_of(new).subject == house.bearer_of(old).subject


def test_without_an_overlap_the_old_key_ends_at_once_and_what_it_obtained_lives(
    house: House,
) -> None:
    old = house.key(scopes=["workers:register"])
    worker = house.issue_worker_key(house.bearer_of(old), house.worker("worker_1"))

    new = house.rotate(old.key_id, overlap_ms=0)

    assert house.ended(old.key_id) == "rotated"
    assert house.ended(worker.key_id) is None
    house.revoke_key(new.key_id)
    assert house.ended(worker.key_id) == "revoked"


def test_rotation_gives_nobody_what_he_has_not(house: House) -> None:
    strong = house.key(scopes=["workers:operate"])
    grant = house.grant("registrar")
    bound = house.key(scopes=[], identity_id="registrar", grant_id=grant.id)
    maker = admin(house)

    for key_id, pointer in ((strong.key_id, "/scopes"), (bound.key_id, "/identity_id")):
        refused = house.refusal(lambda k=key_id: house.rotate(k, 0, maker))
        assert (refused.code, pointers(refused)) == ("FORBIDDEN", [pointer])
    assert house.rotate(maker.key_id, 0, maker).scopes == ("keys:admin", "state:read")


def test_an_ended_key_is_not_rotated(house: House) -> None:
    revoked, expired = house.key(), house.key(expires_at_ms=START_MS + HOUR_MS)
    house.revoke_key(revoked.key_id)
    house.later(HOUR_MS)

    for made in (revoked, expired):
        refused = house.refusal(lambda m=made: house.rotate(m.key_id, 0))
        assert refused.code == "REQUEST_INVALID"


def test_an_overlap_never_lengthens_a_key(house: House) -> None:
    old = house.key(expires_at_ms=START_MS + 1_000)

    new = house.rotate(old.key_id, overlap_ms=HOUR_MS)

    assert house.row(old.key_id)["expires_at_ms"] == new.expires_at_ms == START_MS + 1_000


# Lists, use, audit


def listed(house: House, by: Caller, **more: Any) -> list[str]:
    found: list[str] = []
    after = None
    while True:
        page = house.ask(keys.page, by, PageAsk(after=after, **more))
        assert len(page.items) <= more.get("limit", 50)
        found += [key.key_id for key in page.items]
        if page.after is None:
            return found
        after = page.after


def test_a_list_shows_newest_first_each_once_and_only_keys_wholly_ones_own(house: House) -> None:
    maker = admin(house)
    mine = [maker.key_id]
    for _ in range(7):
        house.later(1)
        mine.append(house.key(scopes=[]).key_id)
        house.key(tenants=["other"])
        house.key(tenants=["acme", "other"])
    house.revoke_key(mine[3])

    for limit in (1, 2, 3, 8, 500):
        assert listed(house, maker, limit=limit) == mine[::-1]
    # A page that happens to end with the list says so.
    assert house.ask(keys.page, maker, PageAsk(limit=8)).after is None
    assert len(listed(house, LOCAL)) == 22
    assert len(listed(house, LOCAL, tenant_id="other")) == 14


def test_a_list_needs_its_scope_and_shows_no_secret(house: House) -> None:
    made = house.key()
    page = house.ask(keys.page, LOCAL, PageAsk())

    assert made.secret not in repr(page)
    assert house.refusal(lambda: listed(house, house.bearer_of(made))).code == "FORBIDDEN"


def test_the_minute_a_key_was_last_used_in_never_goes_back(house: House) -> None:
    made = house.key()
    for at_ms, shown in ((60_000, 60_000), (180_000, 180_000), (120_000, 180_000)):
        house.do(lambda tx, now, at=at_ms: keys.note_used(tx, [(made.key_id, at)], now))
        assert house.row(made.key_id)["last_used_at_ms"] == shown


def test_each_deed_is_an_audit_row_with_its_actor(house: House) -> None:
    maker = admin(house)
    made = house.key(maker, scopes=[])
    house.rotate(made.key_id, HOUR_MS, maker)
    house.revoke_key(made.key_id, maker)

    acts = [tuple(row) for row in house.rows("SELECT actor, action, subject FROM audit")][1:]

    actor = f"service:{maker.key_id}"
    assert acts == [
        ("service:local", "create_key", maker.key_id),
        (actor, "create_key", made.key_id),
        (actor, "rotate_key", made.key_id),
        (actor, "revoke_key", made.key_id),
    ]


def test_no_secret_is_in_the_file(tmp_path: Path) -> None:
    """BC-092, I21: neither bearer, nor its random part, nor a token; also not in the WAL."""
    path = tmp_path / "feltd.db"
    conn = connect.open_local(path, read_only=False)
    migrate.apply(conn)
    now = Now(START_MS, START_MS)
    conn.execute("BEGIN IMMEDIATE")
    tx = Tx(conn)
    ledger.begin(tx, "instance_1", now)
    body = CreateKey(name="canary", scopes=("*",), tenants=("*",))
    material = "0123456789ab" + "CANARY" * 7 + "X"
    made = keys.create(tx, Ask(caller=LOCAL, body=body, fresh=material), now)
    again = "ba9876543210" + "canary" * 7 + "x"
    ask = Ask(caller=LOCAL, body=RotateKey(overlap_ms=0), id=made.key_id, fresh=again)
    rotated = keys.rotate(tx, ask, now)
    conn.execute("COMMIT")

    written = b"".join(it.read_bytes() for it in tmp_path.iterdir())
    conn.close()

    assert made.key_id.encode() in written
    for secret in (made.secret, rotated.secret, "CANARY", "canary" * 2):
        assert secret.encode() not in written


def test_presets_name_scopes_that_exist_and_leave_out_the_power_to_make_keys() -> None:
    known = set(Scope.__args__)  # type: ignore[attr-defined]

    assert set(presets.PRESETS) == {
        "submitter",
        "registrar",
        "operator",
        "viewer",
        "metrics",
        "backup",
        "sink",
    }
    for scopes in presets.PRESETS.values():
        assert set(scopes) <= known - {"*", "keys:admin", "grants:issue", "users:admin"}


def test_who_am_i(house: House) -> None:
    grant = house.grant("registrar")
    made = house.key(scopes=["workers:register"], identity_id="registrar", grant_id=grant.id)

    me = house.ask(keys.me, house.bearer_of(made))

    assert me.principal.key_id == made.key_id
    assert me.subject == Subject(kind="service", id="registrar")
    assert me.grant is not None
    assert (me.grant.id, me.grant.capabilities) == (grant.id, grant.capabilities)
    assert house.ask(keys.me, LOCAL).principal.tenants == ("*",)
