"""What a request takes of a whole server's processor, with the middleware and without.

uvicorn (uvloop, httptools) with Starlette, and gunicorn (gthread) with Flask, one worker each. The
load comes from another process, which never sleeps: to wake it would be work of the server. The
bare site, the wrapped one, and the wrapped one with `PRESENCE_ENABLED=0` take turns, round by
round, and the least of all rounds counts. A round of a second has a flush in it.
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.support.servers import ROOT, Command, WebServer, gunicorn, uvicorn

from .load import requests_per_second
from .machine import Row, processor_seconds, server

PEOPLE = 3000
WARM_UP = 0.6  # seconds: more than the first thousand requests


def starlette(app: str) -> Command:
    options = ("--factory", "--loop=uvloop", "--no-access-log", "--log-level=warning")
    return uvicorn(f"tests.benchmarks.sites:starlette_{app}", 1, *options)


def flask(app: str) -> Command:
    options = ("--worker-class=gthread", "--threads=4")
    return gunicorn(f"tests.benchmarks.sites:flask_{app}()", 1, *options)


STACKS = {
    "uvicorn + Starlette": (starlette, 0.85),
    "gunicorn gthread + Flask": (flask, 0.96),
}
"""The command for an app, and the goal for bare/wrapped."""
OFF_GOAL = 0.97
SITES: dict[str, tuple[str, dict[str, str]]] = {
    "bare": ("bare", {}),
    "wrapped": ("wrapped", {}),
    "off": ("wrapped", {"PRESENCE_ENABLED": "0"}),
}


def measure(site: WebServer, seconds: float) -> float:
    """Seconds of the server's processor a request."""
    before = processor_seconds(site.process.pid)
    requests = requests_per_second(site.port, seconds, PEOPLE)
    return (processor_seconds(site.process.pid) - before) / (requests * seconds)


def rows(rounds: int, seconds: float) -> Iterator[Row]:
    """Return bare/wrapped and bare/off for each stack."""
    for stack, (command, goal) in STACKS.items():
        with ExitStack() as opened:
            url = opened.enter_context(server())
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
            sites = {}
            for name, (app, variables) in SITES.items():
                given = {"PRESENCE_REDIS_URL": url, **variables}
                site = WebServer(command(app), ROOT, folder / name, **given)
                sites[name] = opened.enter_context(site)
                site.client("curl").get("/")  # gunicorn listens before its worker is there
                measure(site, WARM_UP)
            taken = [
                {name: measure(site, seconds) for name, site in sites.items()}
                for _ in range(rounds)
            ]
        least = {name: min(each[name] for each in taken) for name in sites}
        for name, aim in (("wrapped", goal), ("off", OFF_GOAL)):
            yield Row(
                f"{stack}: bare/{'wrapped' if name == 'wrapped' else 'switched off'}",
                least["bare"] / least[name],
                aim,
                "",
                f"{least['bare'] * 1e6:.1f} and {least[name] * 1e6:.1f} µs a request",
                at_least=True,
            )
