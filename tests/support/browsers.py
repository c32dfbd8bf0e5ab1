"""Chromium for the tests of pages, where it is installed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PERSON = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"  # no crawler
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@contextmanager
def chromium(*flags: str, **options: Any) -> Iterator[Browser]:
    """Run Chromium with further `flags`, and with `options` of Playwright."""
    args = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", *flags]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=args, **options)
        yield browser
        browser.close()
