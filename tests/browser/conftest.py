"""A Chromium for the tests of pages, where it is installed."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.browsers import PERSON, chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # The beacon of a page that is closing does not have the user agent of its context.
    flag, kept = f"--user-agent={PERSON}", ["--disable-back-forward-cache"]
    with chromium(flag, ignore_default_args=kept) as browser:
        yield browser
