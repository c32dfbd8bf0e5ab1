"""A Chromium for the tests of pages, where it is installed."""

import shutil
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from tests.support.statuses import FIREFOX

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# The beacon of a page that is closing does not have the user agent of its context.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
FLAGS += [f"--user-agent={FIREFOX}"]
NewContext = Callable[..., BrowserContext]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=FLAGS,
            ignore_default_args=["--disable-back-forward-cache"],
        )
        yield browser
        browser.close()


@pytest.fixture
def new_context(browser: Browser) -> Iterator[NewContext]:
    """Gives a browser to somebody; in the end, no page may have met with an error."""
    errors: list[str] = []
    contexts: list[BrowserContext] = []

    def note(said: ConsoleMessage) -> None:
        if said.type in ("error", "warning") and "Failed to load resource" not in said.text:
            errors.append(said.text)

    def made(**looks: object) -> BrowserContext:
        somebody = {"locale": "en-GB", "timezone_id": "Europe/Berlin", **looks}
        context = browser.new_context(**somebody)  # type: ignore[arg-type]
        contexts.append(context)
        context.on("weberror", lambda error: errors.append(str(error.error)))
        context.on("console", note)
        return context

    yield made
    for context in contexts:
        context.close()
    assert errors == []


HIDDEN = "Object.defineProperty(document, 'hidden', {{ value: {}, configurable: true }});"
CHANGED = "document.dispatchEvent(new Event('visibilitychange'))"


def hide(page: Page, *, with_event: bool = True) -> None:
    page.evaluate(HIDDEN.format("true") + CHANGED * with_event)


def show(page: Page) -> None:
    page.evaluate(HIDDEN.format("false") + CHANGED)


def unlock(board: Page, token: str) -> None:
    board.get_by_label("Token of the board").fill(token)
    board.get_by_role("button", name="Show names").click()
