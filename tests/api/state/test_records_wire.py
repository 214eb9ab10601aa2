"""Records over the wire: statuses, ETags, headers and limits, at a real daemon, by real keys."""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.api.state.conftest import Tenant
from tests.daemon.running import Answer, Daemon, create, people


def raw(tenant: Tenant, method: str, path: str, body: bytes, **headers: str) -> Answer:
    """A call whose body is these bytes."""
    address = urlsplit(tenant.daemon.url)
    line = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    sent = {"Authorization": f"Bearer {tenant.key}", "Content-Type": "application/json"}
    try:
        line.request(method, path, body, sent | headers)
        got = line.getresponse()
        text = got.read()
        told = {name.lower(): one for name, one in got.headers.items()}
        return Answer(got.status, json.loads(text) if text else None, told)
    finally:
        line.close()


def code(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.body["code"]


# -- one record ----------------------------------------------------------------------------------


def test_a_record_lives_by_its_versions(acme: Tenant) -> None:
    made = acme.put("life/o-1", {"status": "new", "n": 1})
    same = acme.put("life/o-1", {"n": 1, "status": "new"})
    changed = acme.patch("life/o-1", {"status": "paid", "n": None})
    read = acme.call("GET", acme.at("life/o-1"))
    gone = acme.delete("life/o-1", If_Match='"2"')

    assert [(one.status, one.headers.get("etag")) for one in (made, same, changed, read)] == [
        (201, '"1"'),
        (200, '"1"'),
        (200, '"2"'),
        (200, '"2"'),
    ]
    assert made.body == same.body
    assert read.body == changed.body
    assert read.body == {
        "collection": "life",
        "id": "o-1",
        "version": 2,
        "value": {"status": "paid"},
        "created_at_ms": made.body["created_at_ms"],
        "updated_at_ms": changed.body["updated_at_ms"],
        "change_seq": made.body["change_seq"] + 1,
    }
    assert (gone.status, gone.body) == (204, "")
    for call in (acme.delete("life/o-1"), acme.call("GET", acme.at("life/o-1"))):
        assert code(call) == (404, "RECORD_NOT_FOUND")
    assert acme.put("life/o-1", 1).headers["etag"] == '"4"'


@pytest.mark.parametrize(
    ("header", "text", "status"),
    [
        ("If_Match", '"1"', 200),
        ("If_Match", "*", 200),
        ("If_Match", '"2"', 412),
        ("If_None_Match", "*", 412),
        ("If_Match", "1", 422),
        ("If_Match", 'W/"1"', 422),
        ("If_Match", '"1", "2"', 422),
        ("If_Match", '""', 422),
        ("If_Match", '"0"', 422),
        ("If_Match", '"-1"', 422),
        ("If_Match", '"99999999999999999999"', 422),
        ("If_None_Match", '"1"', 422),
    ],
)
def test_what_a_write_may_expect(acme: Tenant, header: str, text: str, status: int) -> None:
    acme.put("expect/o-1", 0)
    if acme.get(acme.at("expect/o-1"))["version"] != 1:
        pytest.fail("each of them meets the record at its first version")

    answer = acme.put("expect/o-1", 0, **{header: text})

    assert answer.status == status, answer
    if status == 412:
        assert answer.body["code"] == "RECORD_CONFLICT"
        assert answer.body["version"] == 1
        assert answer.body["next"] == "fix_request"
    if status == 422:
        (error,) = answer.body["errors"]
        assert error["pointer"] == "/" + header.replace("_", "-")
    both = acme.put("expect/o-1", 0, If_Match='"1"', If_None_Match="*")
    assert code(both) == (422, "RECORD_INVALID")


def test_a_lost_reply_is_no_conflict(daemon: Daemon, acme: Tenant) -> None:
    acme.put("lost/o-1", {"n": 1})
    first = acme.put("lost/o-1", {"n": 2}, If_Match='"1"')
    again = acme.put("lost/o-1", {"n": 2}, If_Match='"1"')
    colleague = Tenant(daemon, "acme")

    assert (first.status, again.status) == (200, 200)
    assert again.body == first.body
    theirs = colleague.put("lost/o-1", {"n": 2}, If_Match='"1"')
    assert code(theirs) == (412, "RECORD_CONFLICT")
    made = acme.put("lost/o-2", 1, If_None_Match="*")
    assert made.status == 201
    assert code(acme.put("lost/o-2", 1, If_None_Match="*")) == (412, "RECORD_CONFLICT")


def test_null_is_a_value_and_nothing_is_none(acme: Tenant) -> None:
    path = acme.at("odd/o-1")
    assert raw(acme, "PUT", path, b"null").status == 201
    assert acme.get(path)["value"] is None
    assert code(raw(acme, "PUT", path, b"")) == (400, "REQUEST_MALFORMED")
    assert code(raw(acme, "PUT", path, b"{")) == (400, "REQUEST_MALFORMED")


def test_a_merge_patch_may_say_that_it_is_one(acme: Tenant) -> None:
    acme.put("odd/merge", {"a": 1})
    media = {"Content-Type": "application/merge-patch+json"}

    answer = raw(acme, "PATCH", acme.at("odd/merge"), b'{"a": null, "b": 2}', **media)

    assert (answer.status, answer.body["value"]) == (200, {"b": 2})


@pytest.mark.parametrize(
    "body",
    [
        b'"\\u0000"',
        b'{"\\u0000": 1}',
        b"9007199254740992",
        b"[" * 33 + b"]" * 33,
        b'"' + b"x" * 262_143 + b'"',
    ],
)
def test_a_value_that_others_could_not_read_is_refused(acme: Tenant, body: bytes) -> None:
    assert code(raw(acme, "PUT", acme.at("odd/o-2"), body)) == (422, "RECORD_INVALID")
    assert acme.call("GET", acme.at("odd/o-2")).status == 404


def test_the_largest_values_fit(acme: Tenant) -> None:
    assert acme.put("large/o-1", "x" * (256 * 1024 - 2)).status == 201
    assert acme.put("_flow_capabilities/p-1", "x" * (1024 * 1024 - 2)).status == 201
    beyond = raw(acme, "PUT", acme.at("_flow_capabilities/p-1"), b'"' + b"x" * 1_048_576 + b'"')
    assert code(beyond) == (413, "REQUEST_TOO_LARGE")


@pytest.mark.parametrize("name", ["a%2Fb", "a%20b", "%2e%2e", "x" * 129, "%C3%A9", "%00"])
def test_a_name_that_is_none_is_refused(acme: Tenant, name: str) -> None:
    for path in (f"/v1/collections/{name}/records/a", f"/v1/collections/a/records/{name}"):
        for method, body in (("GET", None), ("PUT", 1), ("PATCH", {}), ("DELETE", None)):
            assert acme.call(method, path, body).status == 422, (method, path)


# -- who may -------------------------------------------------------------------------------------


def test_each_scope_opens_what_it_is_for(daemon: Daemon, acme: Tenant) -> None:
    reader = Tenant(daemon, "acme", "state:read")
    clerk = Tenant(daemon, "acme", "state:write")
    programmer = Tenant(daemon, "acme", "capabilities:write")
    put = {"op": "put", "collection": "scopes", "id": "a", "value": 1}
    program = {**put, "collection": "_flow_capabilities"}

    assert acme.put("scopes/a", 1).status == 201
    assert clerk.put("scopes/b", 1).status == 201
    assert programmer.put("_flow_capabilities/b", {}).status == 201
    assert clerk.transact(put).status == 200
    assert programmer.transact(program).status == 200
    for call in (
        reader.put("scopes/a", 2),
        reader.patch("scopes/a", 2),
        reader.delete("scopes/a"),
        reader.transact(put),
        clerk.call("GET", clerk.at("scopes/a")),
        clerk.put("_flow_capabilities/b", 1),
        clerk.transact(put, program),
        programmer.put("scopes/a", 2),
        programmer.transact(program, put),
    ):
        assert code(call) == (403, "FORBIDDEN")
    assert acme.get(acme.at("scopes/a"))["version"] == 1


def test_tenants_see_nothing_of_each_other(daemon: Daemon, acme: Tenant, other: Tenant) -> None:
    acme.put("mine/a", "ours")
    other.put("mine/a", "theirs")
    both = daemon.post(
        "/v1/keys", {"name": "both", "scopes": ["state:read"], "tenants": ["acme", "other"]}
    )["secret"]

    assert other.get(other.at("mine/a"))["value"] == "theirs"
    acme.put("mine/b", 1)
    made_up, foreign = other.call("GET", other.at("mine/c")), other.call("GET", other.at("mine/b"))
    for answer in (made_up, foreign):
        del answer.body["request_id"]
    assert made_up[:2] == foreign[:2]
    assert code(other.call("GET", "/v1/collections?tenant_id=acme")) == (403, "FORBIDDEN")
    asked = {"X_Feltd_Tenant": "other"}
    assert daemon.get(acme.at("mine/a"), key=both, **asked)["value"] == "theirs"
    assert daemon.get(acme.at("mine/a") + "?tenant_id=acme", key=both)["value"] == "ours"
    unsaid = daemon.call("GET", acme.at("mine/a"), key=both)
    assert code(unsaid) == (422, "RECORD_INVALID")
    differ = daemon.call("GET", acme.at("mine/a") + "?tenant_id=acme", key=both, **asked)
    assert code(differ) == (422, "RECORD_INVALID")


def test_a_revoked_key_writes_nothing_more(daemon: Daemon) -> None:
    gone = Tenant(daemon, "acme")
    gone.put("revoked/a", 1)
    assert daemon.call("DELETE", f"/v1/keys/{gone.key_id}").status == 204

    assert code(gone.put("revoked/a", 2)) == (401, "UNAUTHENTICATED")


# -- lists and search ----------------------------------------------------------------------------


def test_lists_go_on_by_cursor(acme: Tenant, other: Tenant) -> None:
    for number in range(7):
        acme.put(f"listed/r{number}", number)
    path = "/v1/collections/listed/records"

    found, cursor = [], ""
    while True:
        page = acme.get(f"{path}?limit=3{cursor}")
        found += [one["id"] for one in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert found == [f"r{number}" for number in range(6, -1, -1)]
    by_id = acme.get(f"{path}?prefix=r&limit=2")
    assert [one["id"] for one in by_id["items"]] == ["r0", "r1"]
    rest = acme.get(f"{path}?prefix=r&cursor={by_id['next_cursor']}")
    assert [one["id"] for one in rest["items"]] == ["r2", "r3", "r4", "r5", "r6"]

    for who, asked in (
        (acme, f"{path}?cursor={by_id['next_cursor']}"),
        (acme, f"/v1/collections/mine/records?prefix=r&cursor={by_id['next_cursor']}"),
        (other, f"{path}?prefix=r&cursor={by_id['next_cursor']}"),
        (acme, f"{path}?cursor=x"),
    ):
        assert code(who.call("GET", asked)) == (400, "REQUEST_MALFORMED")
    assert code(acme.call("GET", f"{path}?prefix=a%20b")) == (422, "REQUEST_INVALID")
    names = [one["collection"] for one in acme.get("/v1/collections?limit=500")["items"]]
    assert names == sorted(names)
    assert "listed" in names


def test_search_says_how_far_it_came(acme: Tenant) -> None:
    # What fits into one slice is looked through whatever time it takes.
    acme.transact(
        *(
            {"op": "put", "collection": "sought", "id": f"r{n}", "value": {"N": n % 2}}
            for n in range(60)
        )
    )
    path = "/v1/collections/sought/search"

    whole = acme.call("POST", path, {"query": '"n":1', "limit": 500}).body
    assert (len(whole["items"]), whole["scanned"], whole["complete"]) == (30, 60, True)
    assert whole["next_cursor"] is None

    body: dict[str, Any] = {"query": '"N":1'}
    part = acme.call("POST", path, body).body
    assert (len(part["items"]), part["complete"]) == (20, False)
    rest = acme.call("POST", path, {**body, "limit": 500, "cursor": part["next_cursor"]}).body
    assert part["items"] + rest["items"] == whole["items"]
    for odd in ({}, {"query": ""}, {"query": "x" * 257}, {"query": "x", "limit": 0}, {"q": 1}):
        assert code(acme.call("POST", path, odd)) == (422, "RECORD_INVALID")
    nothing = acme.call("POST", "/v1/collections/none/search", {"query": "x"}).body
    assert (nothing["items"], nothing["complete"]) == ([], True)


def test_a_search_through_many_ends_and_goes_on_where_it_ended(acme: Tenant) -> None:
    """However long each takes, it looks at 10,000 at most, and together they look at all."""
    for thousand in range(11):
        put = {"op": "put", "collection": "many", "value": "straw"}
        acme.transact(*({**put, "id": f"r{thousand}-{n}"} for n in range(1_000)))
    acme.put("many/r0-0", "needle")

    path, cursor, scanned, found = "/v1/collections/many/search", None, [], []
    while True:
        body = {"query": "Needle"} | ({"cursor": cursor} if cursor else {})
        one = acme.call("POST", path, body).body
        scanned.append(one["scanned"])
        found += [record["id"] for record in one["items"]]
        cursor = one["next_cursor"]
        assert one["complete"] == (cursor is None)
        if cursor is None:
            break
    assert max(scanned) <= 10_000
    assert min(scanned) > 0
    assert (sum(scanned), found) == (11_000, ["r0-0"])


def test_provenance_names_the_key_s_owner_and_the_cause(daemon: Daemon, acme: Tenant) -> None:
    mesh = people(daemon)
    job = create(daemon, mesh, "cause")["workload_id"]
    crew = Tenant(daemon, "t")
    for number in range(3):
        crew.put("told/a", number, X_Feltd_Cause=job)

    told = crew.get(crew.at("told/a") + "/provenance?limit=2")
    rest = crew.get(crew.at("told/a") + f"/provenance?cursor={told['next_cursor']}")

    me = f"service:{crew.key_id}"
    assert (told["created_by"], told["updated_by"], told["oldest"]) == (me, me, 1)
    assert [one["kind"] for one in told["items"]] == ["created", "updated"]
    assert [(one["seq"], one["cause"]) for one in rest["items"]] == [(3, job)]
    for cause in (job, "wl_made_up", "", "a b", "\x7f"):
        answer = acme.put("told/b", 1, X_Feltd_Cause=cause)
        assert code(answer) == (422, "RECORD_INVALID")
    assert code(acme.call("GET", acme.at("told/c") + "/provenance")) == (404, "RECORD_NOT_FOUND")


# -- transactions --------------------------------------------------------------------------------


def one(op: str, record_id: str, **members: Any) -> dict[str, Any]:
    return {"op": op, "collection": "together", "id": record_id, **members}


def test_a_transaction_is_all_or_nothing(acme: Tenant) -> None:
    before = acme.head()
    done = acme.transact(
        one("put", "a", value={"n": 1}, if_version=None),
        one("patch", "a", value={"m": 2}, if_version=1),
        one("put", "b", value=None),
        one("delete", "b"),
    )

    assert done.status == 200
    assert done.body["sequence"] == before + 4
    assert done.body["records"][1]["value"] == {"n": 1, "m": 2}
    assert done.body["records"][2]["value"] is None
    assert done.body["records"][3] == {
        "collection": "together",
        "id": "b",
        "version": 2,
        "deleted": True,
    }
    refused = acme.transact(one("put", "c", value=1), one("put", "a", value=1, if_version=1))
    assert code(refused) == (412, "RECORD_CONFLICT")
    assert refused.body["errors"][0]["pointer"] == "/mutations/1/if_version"
    assert refused.body["version"] == 2
    missing = acme.transact(one("put", "c", value=1), one("delete", "d"))
    assert code(missing) == (404, "RECORD_NOT_FOUND")
    assert acme.head() == before + 4


@pytest.mark.parametrize(
    ("mutation", "pointer"),
    [
        (one("put", "a"), "/mutations/0/value"),
        (one("patch", "a"), "/mutations/0/value"),
        (one("delete", "a", value=1), "/mutations/0/value"),
        (one("put", "a", value="\0"), "/mutations/0/value"),
        (one("put", "a", value=2**53), "/mutations/0/value"),
        (one("put", "a", value="x" * 300_000), "/mutations/0/value"),
        (one("put", "a b", value=1), "/mutations/0/id"),
        (one("post", "a", value=1), "/mutations/0/op"),
        (one("put", "a", value=1, if_version=0), "/mutations/0/if_version"),
        (one("put", "a", value=1, other=1), "/mutations/0/other"),
    ],
)
def test_a_mutation_that_does_not_fit_is_pointed_at(
    acme: Tenant, mutation: dict[str, Any], pointer: str
) -> None:
    answer = acme.transact(mutation)

    assert code(answer) == (422, "RECORD_INVALID")
    assert answer.body["errors"][0]["pointer"].startswith(pointer)
    for size in (0, 1_001):
        many = acme.transact(*[one("put", "a", value=1)] * size)
        assert code(many) == (422, "RECORD_INVALID")


def test_a_transaction_by_name_is_done_once(daemon: Daemon, acme: Tenant, other: Tenant) -> None:
    mutations = (one("put", "named", value=1, if_version=None),)
    first = acme.transact(*mutations, request_id="r-1")
    acme.put("together/named", 2)

    assert acme.transact(*mutations, request_id="r-1").body == first.body
    assert acme.get(acme.at("together/named"))["value"] == 2
    another = acme.transact(one("put", "named", value=3), request_id="r-1")
    assert code(another) == (422, "REQUEST_INVALID")
    assert other.transact(*mutations, request_id="r-1").status == 200
    boss = {"X_Feltd_Tenant": "third"}
    body = {"mutations": list(mutations), "request_id": "r-2"}
    for tenant_id in ("third", "fourth"):
        answer = daemon.call("POST", "/v1/transactions", body, X_Feltd_Tenant=tenant_id)
        assert (answer.status, answer.body["sequence"]) == (200, 1), boss


def test_a_thousand_records_are_one_transaction(acme: Tenant) -> None:
    before = acme.head()
    done = acme.transact(*(one("put", f"many-{n}", value={"n": n}) for n in range(1_000)))

    assert done.status == 200
    assert done.body["sequence"] == before + 1_000


def test_every_answer_agrees_with_the_file(daemon: Daemon) -> None:
    checked = daemon.check()
    assert checked.returncode == 0, checked.stdout
