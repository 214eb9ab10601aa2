"""Whatever a worker, a submitter or the author of a trigger calls things: a page shows it as text.

Every page that the console links to is fetched and read as a browser reads it.
"""

import time
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest

from tests.console.town import Town

#: Ends an attribute of either kind, a tag, a text area, a script and a style; then does something.
EVIL = (
    "\"'></textarea></title></script></style><script id=evil>x</script>"
    "<img src=x onerror=evil()><a href=javascript:evil()>{{7*7}}{% evil %}&lt;svg onload=evil()&gt;"
)
#: What names of things may hold of it, in a pattern of printable characters.
SHORT = "\"'><img src=x onerror=evil()>"
PAGES_MAX = 150
PLACES = ("href", "src", "action", "formaction", "data-hx-get", "data-plot")
LEAVES = ("/console/logout", "/console/stream")


class Read(HTMLParser):
    """One page: where it leads, and what in it nobody of feltd wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.leads: list[str] = []
        self.evil: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        if tag in ("svg", "iframe", "object", "style") or (tag == "script" and "src" not in named):
            self.evil.append(f"<{tag} {named}>")
        for name, value in named.items():
            if name.startswith("on") or "evil" in name or name.startswith(("hx-", "data-hx-on")):
                self.evil.append(f"<{tag} {name}={value!r}>")
            elsewhere = not value.startswith(("/", "?", "#")) or value.startswith("//")
            if elsewhere and name in PLACES:
                self.evil.append(f"<{tag} {name}={value!r}>")
            if name == "class" and not value.replace("-", "").replace(" ", "").isalnum() and value:
                self.evil.append(f"<{tag} class={value!r}>")
        if tag == "a":
            self.leads.append(named.get("href", ""))


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    made = Town(tmp_path_factory.mktemp("hostile"))
    try:
        fill(made)
        yield made
    finally:
        made.close()


def send(town: Town, path: str, body: Any, key: str | None = None) -> Any:
    """The answer to a POST; a member that may hold no such text holds a harmless one instead."""
    for _ in range(20):
        answer = town.daemon.call("POST", path, body, key=key)
        if not answer.body.get("errors"):
            break
        *at, last = answer.body["errors"][0]["pointer"].lstrip("/").split("/")
        inner = body
        for step in at:
            inner = inner[step]
        assert inner[last] != "harmless", answer
        inner[last] = "harmless"
    assert answer.status < 300, (path, answer)
    return answer.body


def fill(town: Town) -> None:
    """Rows of every kind by people who mean no good."""
    app, post = town.crew.application, partial(send, town)
    common = {"tenant_id": "t", "application_id": app}
    grant = post("/v1/grants", common | {
        "subject": {"kind": "service", "id": "crew2"},
        "capabilities": ["worker:register", "worker:capability:extract"],
        "resources": [{"kind": "RESOURCE_PREFIX", "uri": f"flow://{app}/workers/*"}],
        "expires_at_ms": int(time.time() * 1000) + 3_600_000,
    })["grant"]["id"]  # fmt: skip
    key = post("/v1/keys", {
        "name": EVIL[:128], "scopes": ["workers:register", "workloads:create"], "tenants": ["t"],
        "identity_id": "crew2", "grant_id": grant,
    })["secret"]  # fmt: skip
    worker = post("/v1/workers", common | {
        "name": SHORT, "process_id": SHORT, "runtime": "process", "version": SHORT,
        "capabilities": ["extract"], "capacity": {"concurrency": 4}, "issue_key": True,
        "labels": {"a": SHORT},
    }, key=key)  # fmt: skip
    own = worker["worker_key"]
    worker_id = worker["worker"]["worker_id"]
    post(f"/v1/workers/{worker_id}/heartbeat", {
        "worker_id": worker_id, "capability_version": worker["worker"]["capability_version"],
        "health": "HEALTHY", "capacity": {"active": 0, "concurrency": 4}, "version": SHORT,
    }, key=own)  # fmt: skip
    for number in range(3):
        post("/v1/workloads", common | {
            "definition_id": SHORT, "idempotency_key": f"{SHORT}{number}",
            "capability_snapshot": ["extract"], "labels": {"a": SHORT},
            "input": {EVIL: [EVIL]}, "trigger": SHORT, "retry_policy": {"max_attempts": 1},
        }, key=key)  # fmt: skip
    claims = post(f"/v1/workers/{worker_id}/claims", {"max": 2, "request_id": "r"}, key=own)
    dying, held = claims["claims"]
    for claim in (dying, held):
        fence = {
            "worker_id": worker_id, "claim_id": claim["claim_id"],
            "fencing_token": claim["fencing_token"],
        }  # fmt: skip
        at = f"/v1/workloads/{claim['workload_id']}"
        post(f"{at}/start", fence, key=own)
        post(f"{at}/checkpoint", fence | {"data": {EVIL: EVIL}}, key=own)
        post(f"{at}/log", fence | {"lines": [EVIL, "\x1b[31m"]}, key=own)
        if claim is dying:
            post(f"{at}/fail", fence | {"kind": "permanent", "message": EVIL}, key=own)
    post("/v1/pools", common | {
        "pool_id": "p", "name": SHORT, "capabilities": ["extract"], "max_concurrency": 4,
        "required_labels": {"a": SHORT},
    })  # fmt: skip
    post("/v1/holds", {"scope": "definition", "value": SHORT, "tenant_id": "t", "reason": EVIL})
    post("/v1/triggers", common | {
        "trigger_id": "evil", "source_collection": SHORT, "change_kind": "any", "start": 0,
        "target_capability": "extract", "authorization_grant": town.crew.submitting(),
        "predicate": {"op": "eq", "field": "after.status", "value": EVIL},
    })  # fmt: skip
    post(f"/v1/workers/{worker_id}/quarantine", {"reason": EVIL})


def test_every_page_shows_foreign_words_as_text(town: Town) -> None:
    seen: set[str] = set()
    ahead = ["/console"]
    shown = 0
    while ahead and len(seen) < PAGES_MAX:
        path = ahead.pop(0)
        place = urlsplit(path).path
        if path in seen or not place.startswith("/console") or place in LEAVES:
            continue
        seen.add(path)
        answer = town.page(path)
        assert answer.status == 200, (path, answer.status, answer.body[:300])
        read = Read()
        read.feed(answer.body)
        assert read.evil == [], path
        shown += "evil()" in answer.body
        ahead += [urljoin(path, one).partition("#")[0] for one in read.leads]
    assert shown > 10


QUERIES = (
    "state=%22%3E%3Cscript%20id%3Devil%3E", "label=%00", "cursor=%22%3E%3Csvg%20onload=evil()",
    "limit=99999999999999999999", "limit=-1", "tenant_id=%22%3E%3Cimg%20onerror%3Devil()%3E",
    "part=body", "part=__class__", "part=../base", "part=%22%3E", "q=" + "x" * 4_000,
    "created_after_ms=1e999", "a=1&a=2&a=3", "state=READY&state=READY", "%ff=%ff", "=", "&&&",
    "next=//evil.example", "next=https://evil.example", "next=javascript:evil()",
)  # fmt: skip


@pytest.mark.parametrize(
    "page",
    [
        "", "/workloads", "/workers", "/pools", "/holds", "/triggers", "/schedules",
        "/dead-letters", "/events", "/audit", "/keys", "/grants", "/users", "/backlog", "/login",
        "/workloads/bulk",
    ],
)  # fmt: skip
def test_a_hostile_query_is_refused_as_text_and_leads_nowhere(town: Town, page: str) -> None:
    for query in QUERIES:
        answer = town.page(f"/console{page}?{query}")
        assert answer.status in (200, 303, 400, 403, 404, 405, 413, 422), (query, answer)
        to = answer.headers.get("location", "/")
        assert to[:1] == "/" != to[1:2], (query, to)
        if "html" in answer.headers.get("content-type", ""):
            read = Read()
            read.feed(answer.body)
            assert read.evil == [], query
