"""Requests a second of whole servers, with the middleware and without, in one run.

    python -m tests.benchmarks.whole_server [--rounds 12] [--seconds 0.5] [--only TEXT]

uvicorn with Starlette and gunicorn with Flask, one worker each, under load from another process:
the bare site, the wrapped one with default settings, and one that sends a ZADD with each request.
They take turns, round by round, and the median ratio of the rounds is printed: of the requests a
second, and of what a request takes of the processor in the server, which other work on the machine
disturbs less.
"""

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.support.servers import ROOT, Command, WebServer

from .load import requests_per_second
from .machine import processor_seconds, server

APPS = ("bare", "wrapped", "zadd")
WARM_UP = 0.5  # seconds


class Measured(NamedTuple):
    """One site in one round."""

    requests: float
    """A second."""
    processor: float
    """Seconds of it a request."""


Round = dict[str, Measured]


def starlette(app: str, *options: str) -> Command:
    name = f"tests.benchmarks.sites:starlette_{app}"
    quiet = ("--no-access-log", "--log-level=warning")
    return lambda port: ["uvicorn", "--factory", name, f"--port={port}", *quiet, *options]


def flask(app: str, *options: str) -> Command:
    name = f"tests.benchmarks.sites:flask_{app}()"
    return lambda port: ["gunicorn", name, f"--bind=127.0.0.1:{port}", *options]


STACKS = {
    "uvicorn + Starlette": (starlette, ()),
    "gunicorn + Flask": (flask, ()),
    "gunicorn + Flask, kept alive": (flask, ("--worker-class=gthread", "--threads=4")),
}


def measure(site: WebServer, seconds: float) -> Measured:
    before = processor_seconds(site.process.pid)
    requests = requests_per_second(site.port, seconds)
    taken = processor_seconds(site.process.pid) - before
    return Measured(requests, taken / (requests * seconds))


def rounds_of(stack: str, url: str, rounds: int, seconds: float) -> list[Round]:
    """All sites of a stack in turn, another one first each round."""
    command, options = STACKS[stack]
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        sites = {}
        for app in APPS:
            site = WebServer(command(app, *options), ROOT, folder / app, PRESENCE_REDIS_URL=url)
            sites[app] = opened.enter_context(site)
            site.client("curl").get("/")  # gunicorn listens before its worker is there
            measure(site, WARM_UP)
        turns = [APPS[turn % 3 :] + APPS[: turn % 3] for turn in range(rounds)]
        return [{app: measure(sites[app], seconds) for app in turn} for turn in turns]


def report(stack: str, rounds: list[Round]) -> None:
    bare = statistics.median(each["bare"].requests for each in rounds)
    print(f"{stack}: {bare:.0f} requests a second bare")
    for beside, aim in (("bare", 0.95), ("zadd", 2.0)):
        pairs = [(each["wrapped"], each[beside]) for each in rounds]
        requests = statistics.median(ours.requests / theirs.requests for ours, theirs in pairs)
        work = statistics.median(theirs.processor / ours.processor for ours, theirs in pairs)
        print(f"  wrapped / {beside}: {requests:.3f} (aim {aim}); by processor time {work:.3f}")
    most = statistics.median(each["bare"].requests / each["zadd"].requests for each in rounds)
    print(f"  bare / zadd: {most:.3f}, which no wrapper can exceed")
    added = statistics.median(each["wrapped"].processor - each["bare"].processor for each in rounds)
    print(f"  added to a request: {added * 1e6:.1f} µs of the processor", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each site in each round")
    parser.add_argument("--only", default="", help="those stacks whose name has this in it")
    given = parser.parse_args()
    with server() as url:
        for stack in STACKS:
            if given.only in stack:
                report(stack, rounds_of(stack, url, given.rounds, given.seconds))


if __name__ == "__main__":
    main()
