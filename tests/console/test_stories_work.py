"""Work as an operator handles it in a browser: found, called off, taken away, seen live."""

import re
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from tests.console.browser import PATIENCE_MS, person
from tests.console.test_work_pages import make
from tests.console.town import PASSWORD, Town

pytestmark = [pytest.mark.anyio, pytest.mark.needs("chromium")]

expect.set_options(timeout=PATIENCE_MS)
MANY = 5_000


class Hung:
    """A worker that took work and went silent; by hand, so that nothing renews what it holds."""

    def __init__(self, town: Town, name: str) -> None:
        self._town = town
        registered = town.daemon.post("/v1/workers", {
            "name": name, "runtime": "process", "version": "1", "capacity": {"concurrency": 1},
            "tenant_id": "t", "application_id": town.crew.application,
            "capabilities": ["extract"], "issue_key": True, "heartbeat_timeout_ms": 600_000,
        }, key=town.crew.key)  # fmt: skip
        self.worker, self.key = registered["worker"], registered["worker_key"]
        self.id = self.worker["worker_id"]
        self._post("heartbeat", {
            "worker_id": self.id, "version": "1", "health": "HEALTHY",
            "capability_version": self.worker["capability_version"],
            "capacity": {"concurrency": 1},
        })  # fmt: skip
        [self.claim] = self._post("claims", {"max": 1, "lease_ms": 600_000, "start": True})[
            "claims"
        ]

    def complete(self) -> Any:
        """What it is answered that comes back to life and wants to say how it ended."""
        fence = {name: self.claim[name] for name in ("claim_id", "worker_id", "fencing_token")}
        path = f"/v1/workloads/{self.claim['workload_id']}/complete"
        return self._town.daemon.call("POST", path, fence | {"output": 1}, key=self.key)

    def _post(self, verb: str, body: object) -> Any:
        return self._town.daemon.post(f"/v1/workers/{self.id}/{verb}", body, key=self.key)


async def test_work_is_found_by_the_filter_and_all_that_match_is_called_off(
    town: Town, browser: Browser
) -> None:
    make(town, MANY, definition_id="flood")
    make(town, 3, definition_id="bystander")
    async with person(browser, town, "olga") as page:
        await page.get_by_role("link", name="Workloads").first.click()
        await page.get_by_label("Definition").fill("flood")
        await page.get_by_role("combobox", name="State").select_option("READY")
        await page.get_by_role("button", name="Show").click()
        assert "definition_id=flood" in page.url
        await expect(page.locator("#rows tbody tr")).to_have_count(50)

        await page.get_by_role("link", name="Cancel…").click()
        await expect(page.locator("#count")).to_contain_text("5,000 workloads would be cancelled")
        await page.get_by_role("button", name="Cancel 5,000 now").click()
        # Nobody reloads: the page hears of it.
        await expect(page.locator("#run")).to_contain_text("Done.")
        await expect(page.locator("#run")).to_contain_text("5,000 / 5,000")

    filter_ = {"definition_id": "flood", "state": "READY"}
    left = town.daemon.post(
        "/v1/workloads/bulk", {"action": "cancel", "filter": filter_, "dry_run": True}
    )
    assert left["matched"] == 0
    found = town.daemon.get("/v1/workloads?definition_id=bystander&state=READY")
    assert len(found["items"]) == 3


async def test_a_hung_claim_is_taken_away_and_its_late_word_is_seen_at_once(
    town: Town, browser: Browser
) -> None:
    workload_id = town.crew.work("survey", {"file": "b.pdf"})
    hung = Hung(town, "hung")
    assert hung.claim["workload_id"] == workload_id
    async with person(browser, town, "olga") as page, person(browser, town, "ada") as overview:
        await expect(overview.locator("#live")).to_have_text("live")
        await expect(overview.locator("#fences")).to_contain_text("None")
        await page.goto(f"{town.url}/console/workloads/{workload_id}")
        now = page.locator("#now")
        await expect(now).to_contain_text(f"token {hung.claim['fencing_token']}")
        await expect(now).to_contain_text(re.compile(r"the lease ends\s+in \d"))

        await page.locator("details.act > summary", has_text="Evict its claim").click()
        await page.get_by_label("Reason").last.fill("it does not answer")
        await page.get_by_role("button", name="Evict its claim now").click()
        await expect(page.get_by_role("status").last).to_contain_text("The claim is taken away")
        await expect(now).to_contain_text("evict")
        await expect(now.locator(".state").first).to_have_text("ready")

        late = hung.complete()
        assert (late.status, late.body["code"]) == (409, "WORKLOAD_STALE_FENCE")
        await expect(overview.locator("#fences")).to_contain_text("WORKLOAD_STALE_FENCE")


async def test_the_basics_work_without_javascript(town: Town, browser: Browser) -> None:
    [workload_id] = make(town, 1, definition_id="plain")
    async with person(browser, town, "olga", java_script_enabled=False) as page:
        await page.goto(f"{town.url}/console/workloads?definition_id=plain")
        await page.locator(f'a[href="/console/workloads/{workload_id}"]').click()
        await page.locator("details.act > summary", has_text="Cancel").click()
        await page.get_by_label("Reason").fill("not needed")
        await page.get_by_role("button", name="Cancel now").click()
        await expect(page.get_by_text("It is cancelled.")).to_be_visible()
        await page.get_by_role("button", name="Log out").click()
        await expect(page).to_have_url(f"{town.url}/console/login")

    assert town.daemon.get(f"/v1/workloads/{workload_id}")["state"] == "CANCELLED"


async def test_a_form_that_is_being_filled_in_is_left_alone(town: Town, browser: Browser) -> None:
    [workload_id] = make(town, 1, definition_id="typed")
    async with person(browser, town, "olga") as page:
        await page.goto(f"{town.url}/console/workloads/{workload_id}")
        await expect(page.locator("#live")).to_have_text("live")
        await page.locator("details.act > summary", has_text="Cancel").click()
        await page.get_by_label("Reason").fill("half of a sen")
        # The page hears of something, and shows it beside the form.
        town.form(f"/console/workloads/{workload_id}/edit", priority="77")
        await expect(page.locator("#now")).to_contain_text("77")
        await expect(page.get_by_label("Reason")).to_have_value("half of a sen")


async def test_an_open_page_of_an_ended_session_is_led_to_the_login(
    town: Town, browser: Browser
) -> None:
    body = {"username": "zoe", "password": PASSWORD, "roles": {"*": "viewer"}}
    town.daemon.post("/v1/users", body)
    async with person(browser, town, "zoe") as page:
        await page.goto(f"{town.url}/console/backlog?definition_id=x")
        await expect(page.locator("#live")).to_have_text("live")
        town.daemon.post("/v1/users/zoe/disable", {})
        # Nobody touches it: its next part is refused, and it loads again.
        await page.wait_for_url("**/console/login?next=%2Fconsole%2Fbacklog%3Fdefinition_id%3Dx")
