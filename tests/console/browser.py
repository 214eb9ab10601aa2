"""Real Chromium on a real daemon: pages as people see them, and what they must never hold."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from tests.console.town import PASSWORD, Town

EXECUTABLE = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
#: On a busy machine a page may take its time; nothing here measures it.
PATIENCE_MS = 30_000
DESK = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """One browser."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=EXECUTABLE, args=ARGUMENTS)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def person(browser: Browser, town: Town, name: str, **how: Any) -> AsyncIterator[Page]:
    """A page of somebody who has logged in by the form; it ends unless the page was clean.

    Clean: no script threw, the policy blocked nothing, nothing was loaded from elsewhere.
    """
    context = await browser.new_context(viewport=how.pop("viewport", DESK), **how)
    context.set_default_timeout(PATIENCE_MS)
    try:
        page = await context.new_page()
        wrong = watch(page, town.url)
        await log_in(page, town, name)
        yield page
        assert not wrong, "\n".join(wrong)
    finally:
        await context.close()


async def log_in(page: Page, town: Town, name: str) -> None:
    """By the form, as people do."""
    await page.goto(f"{town.url}/console")
    await page.get_by_label("Name").fill(name)
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url(f"{town.url}/console")


def watch(page: Page, url: str) -> list[str]:
    """What goes wrong in a page, gathered from now on."""
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
    page.on("dialog", lambda dialog: wrong.append(f"{page.url}: a dialog: {dialog.message}"))

    def requested(request: Any) -> None:
        if not request.url.startswith((url, "data:")):
            wrong.append(f"{page.url}: loads {request.url}")

    def said(message: Any) -> None:
        if message.type == "error" and "Content Security Policy" in message.text:
            wrong.append(f"{page.url}: {message.text}")

    page.on("request", requested)
    page.on("console", said)
    return wrong


__all__ = ["DESK", "PHONE", "Browser", "BrowserContext", "Page", "chromium", "person", "watch"]
