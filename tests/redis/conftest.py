"""Processes of a site that end with their test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.process import Process


@pytest.fixture
def start(prefix: str) -> Iterator[Callable[..., Process]]:
    """Starts processes of a site at a URL, which end with the test."""
    with ExitStack() as stack:

        def start(url: str, **given: Any) -> Process:
            process = Process(url, prefix, **given)
            stack.callback(process.recorder.close)
            return process

        yield start
