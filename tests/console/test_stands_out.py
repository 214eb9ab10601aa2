"""What an operator sees at once, and is led to: what stands out, who ends, where the console is."""

import pytest
from markupsafe import Markup

from feltd.console import words
from tests.console.browser import PHONE, Browser, person
from tests.console.town import PASSWORD, Town


@pytest.fixture
def quiet(own: Town) -> Town:
    """A town where one worker beats and nothing else is."""
    own.worker("edge-1")
    return own


def overview(town: Town, by: str = "ada") -> str:
    return " ".join(town.page("/console?part=notable", by=by).body.split())


def test_the_overview_names_what_somebody_may_have_forgotten(quiet: Town) -> None:
    assert overview(quiet) == ""
    edge = quiet.crew.worker("edge-1")["worker_id"]
    post = quiet.daemon.post
    post("/v1/holds", {"scope": "definition", "value": "x", "tenant_id": "t", "reason": "a look"})
    quiet.form(f"/console/workers/{edge}/quarantine", reason="it makes noises")
    quiet.form(f"/console/workers/{edge}/drain")
    post("/v1/triggers", {
        "tenant_id": "t", "trigger_id": "nightly", "kind": "schedule", "cron": "30 2 * * *",
        "target_capability": "extract", "authorization_grant": quiet.crew.submitting(),
    })  # fmt: skip
    quiet.form("/console/triggers/nightly/disable", tenant_id="t")

    told = overview(quiet)
    assert '<a href="/console/holds">1 hold stands</a>' in told
    assert "1 worker is quarantined" in told
    assert "1 trigger or schedule is disabled" in told
    # A viewer is led to no page that he may not open; who is of another tenant is told nothing.
    assert "1 hold stands" in overview(quiet, "vic")
    assert "/console/holds" not in overview(quiet, "vic")
    post("/v1/users", {"username": "eve", "password": PASSWORD, "roles": {"other": "admin"}})
    assert overview(quiet, "eve") == ""


def test_a_grant_is_extended_and_never_shortened_by_the_page(own: Town) -> None:
    own.worker("edge-1")
    grant_id = own.crew.grant_id
    before = own.daemon.get(f"/v1/grants/{grant_id}")["grant"]

    answer = own.form(f"/console/grants/{grant_id}/extend", lasts="365d")
    after = own.daemon.get(f"/v1/grants/{grant_id}")["grant"]
    assert answer.status == 303
    assert after["expires_at_ms"] > before["expires_at_ms"]
    assert after["capabilities"] == before["capabilities"]
    assert "earlier" in own.form(f"/console/grants/{grant_id}/extend", lasts="30d").body
    assert own.form(f"/console/grants/{grant_id}/extend", by="olga", lasts="365d").status == 403


def test_who_types_the_address_of_the_daemon_finds_the_console(town: Town) -> None:
    answer = town.daemon.call("GET", "/", key="")
    assert (answer.status, answer.headers["location"]) == (303, "/console")


def test_ids_in_a_sentence_are_links_and_nothing_else_is() -> None:
    text = '<b> workload_01a22d60ef464eaf4e8de1466f20637f "of" worker_1 hold_at_start'
    told = words.linked(text, lambda scope: True)
    assert told == (
        '&lt;b&gt; <a href="/console/workloads/workload_01a22d60ef464eaf4e8de1466f20637f"'
        ' title="workload_01a22d60ef464eaf4e8de1466f20637f">workload_…6f20637f</a>'
        ' &#34;of&#34; worker_1 <a href="/console/holds#hold_at_start" title="hold_at_start">'
        "hold_at_start</a>"
    )
    assert "<a" not in words.linked(text, lambda scope: False)


def test_cells_carry_their_heads_for_a_narrow_screen_and_no_words_of_others_open_one() -> None:
    rows = Markup('<tr>\n<th scope="row">a</th><td class="x">{}</td><td></td><td>act</td></tr>')
    told = words.labelled(rows.format("<td>no cell</td>"), ["Name", 'It "said"', "When", ""])
    assert told == (
        '<tr>\n<th scope="row">a</th><td data-label="It &#34;said&#34;" class="x">'
        '&lt;td&gt;no cell&lt;/td&gt;</td><td data-label="When"></td><td>act</td></tr>'
    )


@pytest.mark.anyio
@pytest.mark.needs("chromium")
async def test_on_a_phone_every_act_of_a_row_is_on_the_screen(town: Town, browser: Browser) -> None:
    async with person(browser, town, "ada", viewport=PHONE) as page:
        for place in ("holds", "dead-letters", "keys", "users"):
            await page.goto(f"{town.url}/console/{place}")
            for act in await page.locator(".scroll summary.button").all():
                box = await act.bounding_box()
                assert box is not None, place
                assert box["x"] + box["width"] <= PHONE["width"], place
