"""Servers that a test has for itself, and processes of a site on them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.backends import Server
from tests.support.faults import Place, at_a_place
from tests.support.process import Process


@pytest.fixture
def client(own: Server) -> Iterator[Any]:
    """A client of that server."""
    with redis.Redis.from_url(own.url) as client:
        yield client


@pytest.fixture
def place(tmp_path: Path, valkey: Server) -> Iterator[Place]:
    """A server behind a proxy."""
    with at_a_place(valkey.binary, tmp_path) as place:
        yield place


@pytest.fixture
def start(prefix: str) -> Iterator[Callable[..., Process]]:
    """Starts processes of a site at a URL, which end with the test."""
    with ExitStack() as stack:

        def start(url: str, **given: Any) -> Process:
            process = Process(url, prefix, **given)
            stack.callback(process.recorder.close)
            return process

        yield start
