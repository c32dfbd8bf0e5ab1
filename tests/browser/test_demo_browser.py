"""The pages of `presence demo` in a real browser: Chromium, where it is installed."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import NewContext
from tests.support.demo import Demo

AGENT = "Mozilla/5.0 (X11; Linux x86_64; rv:{}) Gecko/20100101 Firefox/140.0"
SECONDS = 20_000  # milliseconds until something is seen, on a busy machine

pytestmark = pytest.mark.timeout(180)


@pytest.mark.slow
def test_a_page_shows_who_comes_and_goes(new_context: NewContext, tmp_path: Path) -> None:
    with Demo(tmp_path, PRESENCE_WINDOW="9s") as demo:
        phone = {"width": 360, "height": 640}
        contexts = [new_context(user_agent=AGENT.format(n), viewport=phone) for n in range(2)]
        page, other = (context.new_page() for context in contexts)
        for each in (page, other):
            each.goto(f"{demo.url}/t/tea")
        here = page.locator("#here")
        expect(here).to_have_text("2 people on this page", timeout=SECONDS)
        other.goto(f"{demo.url}/t/stars")
        expect(here).to_have_text("1 person on this page", timeout=SECONDS)
        expect(page.locator("[data-page='/t/stars']")).to_have_text("1 person", timeout=SECONDS)

        ada = "Ada" * 13
        other.get_by_label("your name").fill(ada)
        other.get_by_role("button", name="log in").click()
        expect(other).to_have_url(f"{demo.url}/t/stars")
        expect(other.locator("#status")).to_contain_text(f"you are user {ada}", timeout=SECONDS)
        assert other.evaluate("document.documentElement.scrollWidth") == phone["width"]
        expect(other.locator("[aria-live]")).to_have_count(0)  # all is replaced every two seconds
        page.wait_for_timeout(10_000)  # longer than the window
        assert demo.state()["counts"]["user"] == 1, "the pulse keeps a reader online"
        other.close()
        expect(page.locator("[data-page='/t/stars']")).to_have_text("0 people", timeout=SECONDS)
        for context in contexts:
            context.close()
