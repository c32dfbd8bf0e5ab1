"""The pages of `presence demo` in a real browser: Chromium, where it is installed."""

import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.backends import wait_until
from tests.support.browsers import chromium, needs_chromium
from tests.support.demo import Demo

AGENT = "Mozilla/5.0 (X11; Linux x86_64; rv:{}) Gecko/20100101 Firefox/140.0"
SECONDS = 20_000  # milliseconds until something is seen, on a busy machine

pytestmark = [
    needs_chromium,
    pytest.mark.timeout(180),
]

Opened = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Opened]:
    """Opens a page of a demo in a browser of its own; in the end, none may have had an error."""
    errors: list[str] = []
    numbers = itertools.count()

    def opened(demo: Demo, path: str) -> Page:
        context = browser.new_context(user_agent=AGENT.format(next(numbers)), locale="en-GB")
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if _is_error(line) else None)
        page.goto(f"{demo.url}{path}")
        return page

    yield opened
    close_all(browser)
    assert errors == []


def close_all(browser: Browser) -> None:
    """Close all pages, before their demo ends in the middle of an answer."""
    for context in browser.contexts:
        context.close()


def _is_error(line: Any) -> bool:
    return line.type == "error" and "favicon" not in str(line.location)


@pytest.mark.slow
def test_a_page_shows_who_comes_and_goes(
    browser: Browser, open_page: Opened, tmp_path: Path
) -> None:
    with Demo(tmp_path, PRESENCE_WINDOW="9s") as demo:
        page = open_page(demo, "/t/tea")
        here = page.locator("#here")
        expect(here).to_have_text("1 person on this page")
        other = open_page(demo, "/t/tea")
        expect(here).to_have_text("2 people on this page", timeout=SECONDS)
        other.goto(f"{demo.url}/t/stars")
        expect(here).to_have_text("1 person on this page", timeout=SECONDS)
        expect(page.locator("[data-page='/t/stars']")).to_have_text("1 person", timeout=SECONDS)

        other.get_by_label("your name").fill("Ada")
        other.get_by_role("button", name="log in").click()
        expect(other).to_have_url(f"{demo.url}/t/stars")
        expect(other.locator("#status")).to_contain_text("you are user Ada", timeout=SECONDS)
        wait_until(lambda: demo.state()["counts"]["user"] == 1)
        wait_until(partial(is_online_until, demo, time.monotonic() + 10))
        expect(here).to_have_text("1 person on this page")
        other.close()
        expect(page.locator("[data-page='/t/stars']")).to_have_text("0 people", timeout=SECONDS)
        close_all(browser)


def is_online_until(demo: Demo, moment: float) -> bool:
    """The pulse keeps a reader online beyond the window, at every moment."""
    assert demo.state()["counts"]["user"] == 1
    return time.monotonic() > moment
