"""People at their browsers: real Chromium, a real daemon, live worker processes."""

from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.console.browser import Browser, person
from tests.console.town import Town

pytestmark = [pytest.mark.anyio, pytest.mark.needs("chromium")]

#: What comes live comes within this on a machine that has other things to do.
SOON_MS = 30_000
expect.set_options(timeout=SOON_MS)


@pytest.fixture
def mended(town: Town) -> Any:
    """Whoever mends what the handler fails on; it is broken again afterwards."""
    mark = town.folder / "mended"
    yield mark
    mark.unlink(missing_ok=True)


def state(page: Page, word: str) -> Any:
    """The word of a state in the panel that says how a thing stands."""
    return page.locator(".panel .state").filter(has_text=word).first


async def act(page: Page, label: str, **fields: str) -> None:
    """Open the step that asks again, fill it in and do it."""
    summary = page.locator("summary.button", has_text=label).first
    await summary.click()
    box = page.locator("details.act[open]").first
    for field, text in fields.items():
        await box.locator(f"[name={field}]").fill(text)
    await box.get_by_role("button").click()


async def test_a_dead_letter_is_brought_back_and_seen_to_finish(
    town: Town, browser: Browser, mended: Any
) -> None:
    workload_id = town.dead()
    async with person(browser, town, "olga") as page:
        await page.get_by_role("link", name="Dead letters").first.click()
        row = page.get_by_role("row").filter(has_text="extract")
        await expect(row).to_contain_text("the parser lost page 3")
        await row.get_by_role("link", name="ago").click()
        await expect(page).to_have_url(f"{town.url}/console/workloads/{workload_id}")
        await expect(state(page, "dead lettered")).to_be_visible()

        mended.touch()
        await act(page, "Requeue")
        # From here on nobody reloads: what happens is told to the page.
        await expect(page.locator(".said")).to_be_visible()
        await page.evaluate("window.sameDocument = true")
        await expect(state(page, "completed")).to_be_visible()
        assert await page.evaluate("window.sameDocument")
    assert town.crew.ends(workload_id)[-1] == "completed"


async def test_a_worker_is_drained_until_it_is_safe_to_stop_and_resumed(
    town: Town, browser: Browser
) -> None:
    town.worker("edge-7", "--on-drain", "park", "--label", "pin=edge-7")
    held = town.crew.work("hold", placement={"required_labels": {"pin": "edge-7"}})
    town.crew.until(lambda: town.crew.state(held) == "RUNNING", "it runs")
    async with person(browser, town, "olga") as page:
        await page.get_by_role("link", name="Workers").first.click()
        await page.get_by_role("link", name="edge-7").click()
        await expect(page.locator("[data-safe=no]")).to_contain_text("it holds 1 claim")

        await act(page, "Drain", reason="a new kernel")
        await expect(page.locator(".said")).to_contain_text("is draining")
        await expect(page.locator("#standing")).to_contain_text("a new kernel")
        await expect(page.locator("[data-safe=no]")).to_be_visible()

        await page.evaluate("window.sameDocument = true")
        (town.folder / "finish").touch()
        await expect(page.locator("[data-safe=yes]")).to_be_visible()
        await expect(state(page, "offline")).to_be_visible()
        assert await page.evaluate("window.sameDocument")

        await act(page, "Resume")
        await expect(state(page, "ready")).to_be_visible()
    assert town.crew.ends(held) == ["completed"]
    (town.folder / "finish").unlink()


async def test_work_is_held_waits_and_goes_on_when_the_hold_is_lifted(
    town: Town, browser: Browser, mended: Any
) -> None:
    mended.touch()
    async with person(browser, town, "olga") as page:
        await page.get_by_role("link", name="Holds").first.click()
        await act(page, "New hold", value="extract", tenant_id="t", reason="a new release comes")
        await expect(page.get_by_role("row").filter(has_text="a new release")).to_be_visible()

        workload_id = town.crew.work("extract", {"file": "b.pdf"})
        await page.goto(f"{town.url}/console/workloads/{workload_id}")
        await expect(page.locator("#now")).to_contain_text("HELD")
        await expect(state(page, "ready")).to_be_visible()

        await page.goto(f"{town.url}/console/holds")
        row = page.get_by_role("row").filter(has_text="a new release")
        await row.locator("summary").click()
        await row.get_by_role("button", name="Lift now").click()
        await expect(page.locator(".said")).to_contain_text("lifted")
        await expect(page.get_by_role("row").filter(has_text="a new release")).to_have_count(0)

        await page.goto(f"{town.url}/console/workloads/{workload_id}")
        await expect(state(page, "completed")).to_be_visible()


async def test_a_viewer_is_refused_on_the_page_and_at_the_endpoint(
    town: Town, browser: Browser
) -> None:
    edge = town.crew.worker("edge-1")["worker_id"]
    async with person(browser, town, "vic") as page:
        menu = page.get_by_role("navigation", name="Console").first
        await expect(menu.get_by_role("link", name="Workers")).to_be_visible()
        for place in ("Holds", "Keys", "Grants", "Users"):
            await expect(menu.get_by_role("link", name=place)).to_have_count(0)
        await page.goto(f"{town.url}/console/holds")
        await expect(page.get_by_role("alert")).to_contain_text("FORBIDDEN")
        await page.goto(f"{town.url}/console/workers/{edge}")
        await expect(page.locator("summary.button")).to_have_count(0)

        # A form of his own making, with all that a page of his holds.
        status = await page.evaluate(
            """async (path) => {
              const token = document.querySelector("input[name=form_token]").value;
              const body = new URLSearchParams({ form_token: token, reason: "because" });
              return (await fetch(path, { method: "POST", body })).status;
            }""",
            f"/console/workers/{edge}/drain",
        )
        assert status == 403
    assert "drain" not in town.daemon.get(f"/v1/workers/{edge}")


async def test_a_form_without_its_token_is_refused(town: Town, browser: Browser) -> None:
    edge = town.crew.worker("edge-1")["worker_id"]
    async with person(browser, town, "olga") as page:
        status = await page.evaluate(
            """async (path) => {
              const body = new URLSearchParams({ reason: "because" });
              return (await fetch(path, { method: "POST", body })).status;
            }""",
            f"/console/workers/{edge}/drain",
        )
        assert status == 403
    assert "drain" not in town.daemon.get(f"/v1/workers/{edge}")


async def test_events_come_by_themselves_until_they_are_paused(
    town: Town, browser: Browser
) -> None:
    async with person(browser, town, "olga") as page:
        await page.goto(f"{town.url}/console/events?kind=create&limit=25")
        await page.evaluate("window.sameDocument = true")
        first = town.crew.work("held")
        link = page.locator(f"a[href='/console/workloads/{first}']")
        await expect(link).to_be_visible()
        assert await page.evaluate("window.sameDocument")

        await page.get_by_role("link", name="Pause").click()
        await expect(page).to_have_url(
            f"{town.url}/console/events?kind=create&limit=25&paused=true"
        )
        second = town.crew.work("held")
        await page.wait_for_timeout(2_500)
        await expect(page.locator(f"a[href='/console/workloads/{second}']")).to_have_count(0)

        await page.get_by_role("link", name="Follow").click()
        await expect(page.locator(f"a[href='/console/workloads/{second}']")).to_be_visible()


async def test_the_basics_need_no_script(town: Town, browser: Browser) -> None:
    async with person(browser, town, "olga", java_script_enabled=False) as page:
        await page.get_by_role("link", name="Workers").first.click()
        await page.get_by_role("link", name="edge-1").click()
        await act(page, "Quarantine", reason="its disk fails")
        await expect(state(page, "quarantined")).to_be_visible()
        await act(page, "End quarantine")
        await expect(state(page, "quarantined")).to_have_count(0)
        await page.goto(f"{town.url}/console/events?kind=quarantine")
        await expect(page.get_by_role("row").filter(has_text="human:olga").first).to_be_visible()
