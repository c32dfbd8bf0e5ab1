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

import flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tests.support.servers import ROOT, Command, WebServer, gunicorn, uvicorn

from .load import requests_per_second
from .machine import Row, processor_seconds, server

PEOPLE = 3000
WARM_UP = 0.6  # seconds: more than the first thousand requests


def starlette(app: str) -> Command:
    return uvicorn(app, 1, "--loop=uvloop", "--no-access-log", "--log-level=warning")


def gthread(app: str) -> Command:
    return gunicorn(app, 1, "--worker-class=gthread", "--threads=4")


STACKS = {
    "uvicorn + Starlette": (starlette, "starlette_site", "asgi", 0.85),
    "gunicorn gthread + Flask": (gthread, "flask_site", "wsgi", 0.96),
}
"""The command for an app, the site, its protocol, and the goal for bare/wrapped."""
OFF_GOAL = 0.97
SITES: dict[str, dict[str, str]] = {
    "bare": {},
    "wrapped": {},
    "switched off": {"PRESENCE_ENABLED": "0"},
}

flask_site = flask.Flask(__name__)
flask_site.add_url_rule("/", view_func=lambda: "hello")


async def hello(_: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


starlette_site = Starlette(routes=[Route("/", hello)])


def measure(site: WebServer, seconds: float) -> float:
    """Seconds of the server's processor a request."""
    before = processor_seconds(site.process.pid)
    requests = requests_per_second(site.port, seconds, PEOPLE)
    return (processor_seconds(site.process.pid) - before) / (requests * seconds)


def rows(rounds: int, seconds: float) -> Iterator[Row]:
    """Return bare/wrapped and bare/off for each stack."""
    for name, (command, app, protocol, goal) in STACKS.items():
        bare, wrapped = f"{__name__}:{app}", f"presence_middleware.{protocol}_app:application"
        with ExitStack() as opened:
            url = opened.enter_context(server())
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
            sites = {}
            for site, variables in SITES.items():
                serve = command(bare if site == "bare" else wrapped)
                given = {"PRESENCE_REDIS_URL": url, "PRESENCE_APP": bare, **variables}
                sites[site] = opened.enter_context(WebServer(serve, ROOT, folder / site, **given))
                sites[site].client("curl").get("/")  # gunicorn listens before its worker is there
                measure(sites[site], WARM_UP)
            taken = [
                {site: measure(server, seconds) for site, server in sites.items()}
                for _ in range(rounds)
            ]
        least = {site: min(each[site] for each in taken) for site in SITES}
        for site, aim in (("wrapped", goal), ("switched off", OFF_GOAL)):
            detail = f"{least['bare'] * 1e6:.1f} and {least[site] * 1e6:.1f} µs a request"
            ratio = least["bare"] / least[site]
            yield Row(f"{name}: bare/{site}", ratio, aim, "", detail, at_least=True)
