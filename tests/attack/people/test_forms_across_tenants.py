"""Somebody who is an admin in one tenant and a viewer in another sends that one's forms."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from feltd import console
from tests.console.town import PASSWORD, Town

#: Whose rows the town's are, and where Mallory is an admin.
THEIRS, HIS = "t", "his"
#: What the acts of a page ask for; each form is sent only what it takes.
FIELDS = {
    "reason": "because", "tenant_id": THEIRS, "scope": "tenant", "value": THEIRS, "to": "READY",
    "priority": "9", "tenant": THEIRS, "role": "admin", "days": "7", "pool_id": "gpu",
    "name": "mine", "action": "cancel", "confirmed": "yes", "application_id": "invoices",
}  # fmt: skip
READINGS = {
    "workloads": "SELECT * FROM workloads",
    "claims": "SELECT * FROM claims",
    "workers": "SELECT * FROM workers",
    "holds": "SELECT * FROM holds",
    "pools": "SELECT * FROM pools",
    "triggers": "SELECT * FROM triggers",
    "grants": "SELECT * FROM grants",
    "keys": "SELECT * FROM keys",
    "users": "SELECT * FROM users",
}
#: What the daemon, or a worker, changes by itself.
MOVING = ("last_", "reported", "health", "clock_skew", "progress", "used")


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    made = Town(tmp_path_factory.mktemp("town"))
    try:
        made.fill()
        roles = {HIS: "admin", THEIRS: "viewer"}
        body = {"username": "mallory", "password": PASSWORD, "roles": roles}
        made.daemon.post("/v1/users", body)
        victim = {"username": "victim", "password": PASSWORD, "roles": {THEIRS: "operator"}}
        made.daemon.post("/v1/users", victim)
        yield made
    finally:
        made.close()


def rows(town: Town) -> dict[str, list[Any]]:
    """Everything of theirs; what the daemon does by itself is left out."""
    found = {}
    with closing(sqlite3.connect(f"file:{town.daemon.data}?mode=ro", uri=True)) as reading:
        for table, statement in READINGS.items():
            cursor = reading.execute(statement)
            names = [column[0] for column in cursor.description]
            found[table] = sorted(
                str({n: v for n, v in zip(names, row, strict=True) if not n.startswith(MOVING)})
                for row in cursor
            )
    return found


def ids(town: Town) -> dict[str, str]:
    get = town.daemon.get
    return {
        "workloads": get("/v1/workloads")["items"][0]["workload_id"],
        "claims": (get("/v1/claims")["items"] or [{"claim_id": "none"}])[0]["claim_id"],
        "workers": get("/v1/workers")["items"][0]["worker_id"],
        "holds": get("/v1/holds")["items"][0]["hold_id"],
        "pools": "gpu",
        "triggers": "nightly",
        "grants": get("/v1/grants")["items"][0]["id"],
        "keys": get("/v1/keys")["items"][0]["key_id"],
        "users": "victim",
        "bulk": "none",
    }


def send(town: Town, path: str, fields: dict[str, str], **headers: str) -> int:
    address = urlsplit(town.url)
    sent = {
        "Authorization": f"Bearer {town.login('mallory')}",
        "Content-Type": "application/x-www-form-urlencoded",
    } | {name.replace("_", "-"): text for name, text in headers.items()}
    with closing(HTTPConnection(address.hostname or "", address.port, timeout=30)) as talk:
        talk.request("POST", path, urlencode(fields), sent)
        answer = talk.getresponse()
        answer.read()
        return answer.status


def takes(town: Town, path: str, **headers: str) -> list[int]:
    """What a form is answered, sent with all fields, less and less until it takes them."""
    fields, told = dict(FIELDS), []
    told.append(send(town, path, {}, **headers))
    for name in FIELDS:
        told.append(send(town, path, {"reason": "x", name: FIELDS[name]}, **headers))
        told.append(send(town, path, {"tenant_id": THEIRS, name: FIELDS[name]}, **headers))
    told.append(send(town, path, fields, **headers))
    role = {"tenant": THEIRS, "role": "admin"}
    hold = {"scope": "tenant", "value": THEIRS, "reason": "x", "tenant_id": THEIRS}
    pool = {"pool_id": "mine", "name": "mine", "tenant_id": THEIRS}
    told += [send(town, path, one, **headers) for one in (role, hold, pool)]
    return told


FORMS = sorted(
    route.path for route in console.ROUTES if route.method == "POST" and route.auth == "scope"
)


def test_no_form_of_the_console_reaches_into_a_tenant_where_its_sender_only_looks(
    town: Town,
) -> None:
    """BC-093."""
    named, before = ids(town), rows(town)
    assert len(FORMS) > 15

    for path in FORMS:
        noun = path.split("/")[2]
        at = path.replace("{id}", named.get(noun, "none"))
        for query, headers in (
            ("", {}),
            (f"?tenant_id={THEIRS}", {}),
            (f"?tenant_id={HIS}", {}),
            ("", {"X_Feltd_Tenant": THEIRS}),
            ("", {"X_Feltd_Tenant": HIS}),
        ):
            told = takes(town, at + query, **headers)
            assert max(told) < 500, (at, query, told)

    after = rows(town)
    theirs = {table: [row for row in found if HIS not in row] for table, found in after.items()}
    assert theirs == {
        table: [row for row in found if HIS not in row] for table, found in before.items()
    }
