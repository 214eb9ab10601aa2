"""A bulk change over more than one look finds: the page is there at once, its count comes after."""

import re
from collections.abc import Iterator
from html import unescape

import pytest
from playwright.async_api import expect

from feltd.mesh.listing import READ_ROWS_MAX
from tests.console.browser import Browser, watch
from tests.daemon.running import Daemon

PLACE = "/console/workloads/bulk?action=cancel&state=READY&definition_id=seldom"


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A few of one kind, and behind them more of another than one look reads."""
    daemon = Daemon(tmp_path_factory.mktemp("bulk") / "feltd.db", "--no-auth").init().start()
    made = ["seldom"] * 7 + ["often"] * (READ_ROWS_MAX + 10)
    for begin in range(0, len(made), 1_000):
        asked = [
            {"definition_id": name, "idempotency_key": f"k{begin + place}", "input": 1}
            for place, name in enumerate(made[begin : begin + 1_000])
        ]
        daemon.post("/v1/workloads/batch", {"workloads": asked, "atomic": True})
    yield daemon
    daemon.close()


def test_what_one_look_does_not_count_is_counted_to_the_end_when_asked(crowded: Daemon) -> None:
    page = crowded.get(PLACE)
    assert "Counting: there is more than one look reads." in page
    assert "now</button>" not in page
    [more] = set(re.findall(r'<a href="([^"]*counted=true[^"]*)"', page))
    whole = crowded.get(unescape(more))
    assert '<p id="count"><strong>7</strong> workloads would be cancelled' in whole
    part = crowded.get(unescape(more) + "&part=count")
    assert part.lstrip().startswith('<section class="panel" id="counting">')


@pytest.mark.anyio
@pytest.mark.needs("chromium")
async def test_the_count_comes_by_itself_in_a_browser(crowded: Daemon, browser: Browser) -> None:
    page = await browser.new_page()
    wrong = watch(page, crowded.url)
    await page.goto(crowded.url + PLACE)
    await expect(page.locator("#count")).to_contain_text("7 workloads", timeout=30_000)
    await expect(page.get_by_role("button", name="Cancel 7 now")).to_be_visible()
    await page.close()
    assert not wrong
