"""What a line costs a replay: reading and parsing it, against all that follows from it.

    python -m tests.benchmarks.replay [log] [rounds]

What follows is the address, the exclusions, the chain, the quota and who is online at each minute.
The log is replayed over and over, its clock going on: the lowest of the rounds is printed. A
User-Agent that is new is looked up in the list of crawlers once, whatever the number of its lines:
the first round has all of these, and is printed apart.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from presence_middleware import Settings
from presence_middleware.replay import Logs, Replay, Summary
from presence_middleware.replay.combined import Line

LOG = Path(__file__).parents[3] / "shared" / "data" / "apache_access.log"
ROUNDS = 30
LATER = 42 * 3600  # seconds from a round to the next: the log is of 41 hours
BUSY = 50  # lines a minute of a busier site


class Round(NamedTuple):
    """Seconds for all lines."""

    parsing: float
    following: float


def measured(log: str, rounds: int, busy: bool) -> Iterator[Round]:
    """The log as it is; or as that of a busy site, its lines coming one after the other."""
    settings = Settings.from_env({})
    summary = Summary(settings.kinds)
    site = Replay(settings, summary.add)
    for number in range(rounds):
        began = time.process_time()
        parsed = list(Logs([log]))
        read = time.process_time()
        lines = moved(parsed, number * LATER, busy)
        start = time.process_time()
        for line in lines:
            site.add(line)
        yield Round(read - began, time.process_time() - start)


def moved(lines: list[Line], later: int, busy: bool) -> list[Line]:
    """Return the lines of a log with their clock set later."""
    start = lines[0].at
    return [
        line._replace(at=later + (start + number * 60 // BUSY if busy else line.at))
        for number, line in enumerate(lines)
    ]


def main(log: str, rounds: int) -> None:
    lines = len(list(Logs([log])))
    agents = len({request.request.user_agent for request in Logs([log])})
    for name, busy in (("as it is", False), (f"{BUSY} lines a minute", True)):
        first, *others = measured(log, rounds, busy)
        parsing, following = (min(column) / lines * 1e6 for column in zip(*others, strict=True))
        ratio = statistics.median(each.following / each.parsing for each in others)
        new = (first.following / lines * 1e6 - following) * lines / agents
        print(f"{lines} lines, {name}:")
        print(
            f"  a line: {parsing:.2f} µs reading and parsing, {following:.2f} µs all that follows"
        )
        print(f"  ratio {ratio:.2f} (median of {len(others)} rounds)")
        print(f"  a new User-Agent: {new:.0f} µs, once; there are {agents}")


if __name__ == "__main__":
    main(
        sys.argv[1] if len(sys.argv) > 1 else str(LOG),
        int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS,
    )
