"""A crowd comes while a hundred streams are open: other pages of the worker do not wait."""

from pathlib import Path

import pytest

from tests.benchmarks.streams import receive_crowds
from tests.support.backends import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_other_pages_do_not_wait_while_a_hundred_streams_receive_a_crowd(
    own: Server, tmp_path: Path
) -> None:
    for crowd in receive_crowds(own.url, tmp_path, streams=100, joins=10_000, rounds=3):
        # What the machine does meanwhile does not count: this is the work between two pages.
        assert crowd.worked < 0.05, crowd
        assert crowd.last < 10, "seconds; without other load less than two"
