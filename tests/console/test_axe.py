"""Every page can be used by everybody: axe finds nothing serious, and a phone shows it whole.

axe-core is kept beside with its licence; a page that a route adds has to be given an address here.
"""

import hashlib
from pathlib import Path

import pytest
from playwright.async_api import Page

from feltd import console
from tests.console.browser import DESK, PHONE, Browser, person, watch
from tests.console.town import HOSTILE_ID, Town

pytestmark = [pytest.mark.anyio, pytest.mark.needs("chromium")]

VENDORED = Path(__file__).with_name("vendored")
#: As its authors published it: axe-core 4.14.1, from the npm registry.
AXE_SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
SERIOUS = {"serious", "critical"}
RUN = """async (rules) => {
  const options = { resultTypes: ["violations"], ...(rules.length ? { runOnly: rules } : {}) };
  const { violations } = await axe.run(document, options);
  return violations.map(({ id, impact, help, nodes }) =>
    ({ id, impact, help, nodes: nodes.slice(0, 5).map((one) => one.html.slice(0, 300)) }));
}"""
#: What is no page for people to read.
NO_PAGES = {"/console/static/{name}", "/console/stream", "/console/samples"}
#: The API page whole takes axe a minute; a part of it is made by the same template.
INSTEAD = {"/docs": "/docs?q=worker"}


def addresses(town: Town) -> dict[str, str]:
    """Where each page of a route is to be found in the town."""
    edge = town.crew.worker("edge-1")["worker_id"]
    dead = town.daemon.get("/v1/dead-letters")["items"][0]["newest_workload_id"]
    begun = town.form("/console/workloads/bulk", action="reprioritise", priority="1",
                      state="DEAD_LETTERED")  # fmt: skip
    named = {
        "/console/workers/{id}": f"/console/workers/{edge}",
        "/console/pools/{id}": "/console/pools/gpu?tenant_id=t",
        "/console/triggers/{id}": f"/console/triggers/{HOSTILE_ID}?tenant_id=t",
        "/console/schedules/{id}": "/console/schedules/nightly?tenant_id=t",
        "/console/grants/{id}": f"/console/grants/{town.crew.grant_id}",
        "/console/workloads/{id}": f"/console/workloads/{dead}",
        "/console/workloads/bulk": "/console/workloads/bulk?action=cancel&state=READY",
        "/console/workloads/bulk/{id}": begun.headers["location"],
    }
    found = {"a refusal": "/console/nowhere"}
    for route in console.ROUTES:
        for path in (route.path, *route.also):
            if route.method == "GET" and path not in NO_PAGES:
                found[path] = named.get(path) or INSTEAD.get(path) or path
    return found


def axe() -> str:
    text = (VENDORED / "axe.min.js").read_bytes()
    assert hashlib.sha256(text).hexdigest() == AXE_SHA256
    assert "Mozilla Public License" in (VENDORED / "axe.LICENSE.txt").read_text()
    return text.decode()


async def serious(page: Page, *rules: str) -> list[str]:
    """What axe finds that keeps somebody out; by these rules alone if some are named."""
    found = await page.evaluate(RUN, list(rules))
    return [
        f"{one['id']}, {one['help']}: {one['nodes']}" for one in found if one["impact"] in SERIOUS
    ]


async def test_each_page_is_for_everybody_by_day_by_night_and_on_a_phone(
    town: Town, browser: Browser
) -> None:
    source, wrong = axe(), []
    async with person(browser, town, "ada") as page:
        for path, address in addresses(town).items():
            assert "{" not in address, f"{path}: name a thing it shows"
            await page.emulate_media(color_scheme="light")
            await page.set_viewport_size(DESK)
            await page.goto(town.url + address)
            # What may be done stands open, so that it is looked at too.
            await page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
            await page.evaluate(source)
            wrong += [f"{path}: {one}" for one in await serious(page)]
            await page.emulate_media(color_scheme="dark")
            wrong += [f"{path}, dark: {one}" for one in await serious(page, "color-contrast")]
            # What is wide scrolls within its own box, never the page.
            await page.set_viewport_size(PHONE)
            width = await page.evaluate("document.documentElement.scrollWidth")
            if width > PHONE["width"]:
                wrong.append(f"{path}: {width} wide on a phone")
    assert not wrong, "\n".join(wrong)


async def test_the_login_is_for_everybody_too(town: Town, browser: Browser) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    seen = watch(page, town.url)
    await page.goto(f"{town.url}/console/login")
    await page.evaluate(axe())
    wrong = await serious(page)
    await context.close()
    assert not wrong
    assert not seen
