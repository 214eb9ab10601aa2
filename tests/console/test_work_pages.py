"""Workloads as pages: narrowed by an address, changed all at once by the number that was said."""

import re
import time
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.console.reading import Reading
from tests.console.town import HOSTILE, Town, wait


def make(town: Town, count: int, **body: Any) -> list[str]:
    """Workloads that nobody serves; their ids."""
    common = {
        "tenant_id": "t",
        "application_id": town.crew.application,
        "definition_id": "unserved",
        "authorization_grant": town.crew.submitting(),
        "capability_snapshot": ["extract"],
        "not_before_at_ms": int(time.time() * 1_000) + 3_600_000,
    }
    ids = []
    for begin in range(0, count, 1_000):
        items = [
            common | body | {"idempotency_key": f"{body.get('definition_id')}-{number}"}
            for number in range(begin, min(begin + 1_000, count))
        ]
        made = town.daemon.post("/v1/workloads/batch", {"workloads": items})["items"]
        ids += [one["workload_id"] for one in made]
    return ids


def shown(town: Town, path: str, by: str = "ada") -> list[str]:
    """The workloads that a page links to, in its order."""
    found = re.findall(
        r'href="/console/workloads/(workload_[0-9a-f]+)', town.page(path, by=by).body
    )
    return list(dict.fromkeys(found))


def test_a_list_is_what_its_address_says(town: Town) -> None:
    make(town, 3, definition_id="other")
    red = make(town, 2, definition_id="colours", labels={"hue": "red"})
    make(town, 2, definition_id="colours-blue", labels={"hue": "blue"})

    by_label = shown(town, "/console/workloads?label=hue%3Dred")
    both = shown(
        town, "/console/workloads?definition_id=colours&label=hue%3Dred&label=&state=READY"
    )

    assert sorted(by_label) == sorted(red)
    assert sorted(both) == sorted(red)
    assert shown(town, "/console/workloads?definition_id=colours&state=CANCELLED") == []
    form = Reading(town.page("/console/workloads?label=hue%3Dred").body).forms[0]
    assert sorted(
        shown(town, "/console/workloads?" + urlencode(form.fields | {"label": "hue=red"}))
    ) == sorted(red)


def test_pages_go_on_where_the_last_one_ended(town: Town) -> None:
    """BC-097."""
    made = make(town, 60, definition_id="many")
    seen: list[str] = []
    path = "/console/workloads?definition_id=many&size=25"
    while path:
        page = town.page(path)
        seen += re.findall(r'href="/console/workloads/(workload_[0-9a-f]+)', page.body)
        anchors = [named for tag, named in Reading(page.body).tags if tag == "a"]
        path = next((named["href"] for named in anchors if named.get("rel") == "next"), "")

    assert seen == made[::-1]


@pytest.mark.parametrize(
    "query",
    ["cursor=made-up", "state=LOST", "size=7", "label=nothing", "colour=red", "tenant_id=a%00b"],
)
def test_an_address_that_says_nothing_is_refused_as_a_page(town: Town, query: str) -> None:
    got = town.page(f"/console/workloads?{query}")

    assert got.status in (400, 422)
    assert "<h1>" in got.body


def test_a_bulk_change_is_counted_meant_and_looped_to_the_end(town: Town) -> None:
    made = make(town, 1_234, definition_id="bulky")
    make(town, 2, definition_id="bystander")
    before = town.page("/console/workloads/bulk?action=cancel&definition_id=bulky")
    form = Reading(before.body).acts()[-1]

    begun = town.form(form.action, **form.fields)
    assert begun.status == 303
    address = begun.headers["location"]
    over = wait(lambda: (page := town.page(address)).body.count("Done.") and page, "the run ended")

    assert "<strong>1,234</strong> workloads would be cancelled" in before.body
    assert "1,234 / 1,234" in over.body
    assert (
        len(shown(town, "/console/workloads?definition_id=bulky&state=CANCELLED&size=250")) == 250
    )
    assert shown(town, "/console/workloads?definition_id=bulky&state=READY") == []
    assert len(shown(town, "/console/workloads?definition_id=bystander&state=READY")) == 2
    again = town.page("/console/workloads/bulk?action=cancel&definition_id=bulky")
    assert "Nothing that matches needs this change." in again.body
    assert town.daemon.get(f"/v1/workloads/{made[0]}")["state"] == "CANCELLED"


def test_a_priority_is_asked_for_before_it_is_counted(town: Town) -> None:
    made = make(town, 3, definition_id="ranked")
    path = "/console/workloads/bulk?action=reprioritise&definition_id=ranked"
    asks = Reading(town.page(path).body)
    form = Reading(town.page(path + "&priority=7").body).acts()[-1]

    assert not [act for act in asks.acts() if "bulk" in act.action]
    begun = town.form(form.action, **form.fields)
    wait(lambda: "Done." in town.page(begun.headers["location"]).body, "the run ended")
    assert town.daemon.get(f"/v1/workloads/{made[0]}")["priority"] == 7
    missing = town.form("/console/workloads/bulk", action="reprioritise", definition_id="ranked")
    assert missing.status == 422


def test_a_viewer_is_refused_a_bulk_change_at_its_page_and_its_form(town: Town) -> None:
    page = town.page("/console/workloads/bulk?action=cancel", by="vic")
    form = town.form("/console/workloads/bulk", by="vic", action="cancel")

    assert (page.status, form.status) == (403, 403)
    assert "/workloads/bulk" not in town.page("/console/workloads", by="vic").body


def test_a_workload_shows_everything_and_runs_nothing(town: Town) -> None:
    [workload_id] = make(
        town, 1, definition_id="hostile", input={HOSTILE: [HOSTILE]}, labels={"say": HOSTILE}
    )
    got = town.page(f"/console/workloads/{workload_id}")

    assert got.status == 200
    assert HOSTILE not in got.body
    assert "&lt;script&gt;alert(1)" in got.body
    assert not Reading(got.body).inline
    for part in ("acts", "now", "logs"):
        assert town.page(f"/console/workloads/{workload_id}?part={part}").status == 200


def test_json_is_shown_within_bounds(town: Town) -> None:
    [workload_id] = make(town, 1, definition_id="large", input={"text": "x" * 200_000})
    got = town.page(f"/console/workloads/{workload_id}")

    assert "Cut here" in got.body
    assert len(got.body) < 60_000


def test_a_waiting_workload_is_edited_let_run_and_cancelled(town: Town) -> None:
    [workload_id] = make(town, 1, definition_id="edited")
    base = f"/console/workloads/{workload_id}"

    edited = town.form(f"{base}/edit", priority="9", labels='{"team": "web"}', timeouts="")
    broken = town.form(f"{base}/edit", labels="{no json")
    now = town.form(f"{base}/run-now")
    after = town.daemon.get(f"/v1/workloads/{workload_id}")
    gone = town.form(f"{base}/cancel", reason="no longer needed")

    assert (edited.status, edited.headers["location"]) == (303, base)
    assert broken.status == 400
    assert now.status == 303
    assert (after["priority"], after["labels"]) == (9, {"team": "web"})
    assert after["eligible_at_ms"] < time.time() * 1_000 + 60_000
    assert gone.status == 303
    assert town.daemon.get(f"/v1/workloads/{workload_id}")["state"] == "CANCELLED"


def test_the_backlog_says_what_keeps_each_kind_back(town: Town) -> None:
    make(town, 1, definition_id="later")
    got = town.page("/console/backlog?definition_id=later")

    assert "later" in got.body
    assert "1 not yet due" in got.body


def test_the_house_is_for_who_sees_all_of_it(town: Town) -> None:
    body = {"username": "tia", "password": "a horse, a battery, a staple", "roles": {"t": "viewer"}}
    town.daemon.post("/v1/users", body)

    whole, part = town.page("/console"), town.page("/console", by="tia")

    assert "Write-ahead log" in whole.body
    assert part.status == 200
    assert "Write-ahead log" not in part.body
    assert town.page("/console?part=fences", by="tia").status == 403
    assert town.page("/console/samples", by="tia").status == 403
    samples = town.page("/console/samples").body
    assert len({len(column) for column in samples.values() if isinstance(column, list)}) == 1
