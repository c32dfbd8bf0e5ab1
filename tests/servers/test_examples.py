"""Each example on its real server, visited over a socket by several people."""

import json
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from presence_middleware import Presence, Settings
from tests.support.backends import Server, matrix, wait_until
from tests.support.commands import run_command
from tests.support.servers import ENDED, ROOT, Command, WebServer, gunicorn, uvicorn

EXAMPLES = ROOT / "examples"
SITES: dict[str, Command] = {
    "flask": gunicorn("flask_site:app", workers=2),
    "pyramid": lambda port: [*("pyramid.scripts.pserve", "pyramid_site.ini", f"http_port={port}")],
    "paste": lambda port: ["pyramid.scripts.pserve", "paste_site.ini", f"http_port={port}"],
    "starlette": uvicorn("starlette_site:app"),
    "fastapi": uvicorn("fastapi_site:app"),
    "django": gunicorn("django_site:wsgi_application"),
    "django-async": uvicorn("django_site:asgi_application"),
}
TEMPLATES = [name for name in SITES if name not in ("pyramid", "paste")]
"""The examples with a page that is a template."""
SOCKETS = ["starlette", "fastapi"]

Run = Callable[..., WebServer]


def usual(names: Iterable[str]) -> list[Any]:
    """Return the names of examples; the tests of most run only with `-m matrix`."""
    return [name if name in {"flask", "fastapi"} else matrix(name)[0] for name in names]


@pytest.fixture
def run(variables: dict[str, str], tmp_path: Path, stack: ExitStack) -> Run:
    """Starts an example; at the end it must stop when told to, and have complained of nothing."""

    def end(server: WebServer) -> None:
        assert server.stop() in ENDED
        assert "Traceback" not in server.output

    def start(command: Command, **settings: str) -> WebServer:
        server = WebServer(command, EXAMPLES, tmp_path / "log", **variables | settings)
        stack.callback(end, stack.enter_context(server))
        return server

    return start


def read_text(browser: httpx.Client, path: str) -> str:
    response = browser.get(path)
    assert response.status_code == 200, response.text
    return response.text


def read(browser: httpx.Client, path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(read_text(browser, path))
    return found


@pytest.mark.parametrize("name", usual(SITES))
def test_an_example_shows_who_is_online(
    run: Run, presence: Presence, prefix: str, valkey: Server, name: str
) -> None:
    site, home = run(SITES[name]), "/async" if name == "django-async" else "/"
    with site.client("A") as ann, site.client("B") as bob, site.client("C") as guest:
        assert read(guest, home) == {"online": {"user": 0, "guest": 1, "bot": 0}, "who": []}
        if name in TEMPLATES:
            assert "<p>0 online</p>" in read_text(guest, "/page")
        for who, browser in (("ann", ann), ("bob", bob)):
            assert browser.get(f"/login/{who}").is_success
        wait_until(lambda: presence.count() == 2)
        counts = {"user": 2, "guest": 1, "bot": 0}
        assert read(guest, home) == {"online": counts, "who": ["bob", "ann"]}
        if name in TEMPLATES:
            page = read_text(guest, "/page")
            assert "<p>2 online</p>" in page
            assert "<li>bob</li><li>ann</li>" in page
            assert ("<p>ann is here</p>" in page) == name.startswith("django")
        assert read(ann, home) == {"online": counts, "who": ["ann", "bob"]}
        assert presence.counts() == counts
        if name == "django-async":  # a view without `async`
            assert read(ann, "/") == read(ann, home)
        if name == "flask":
            valkey.client.sadd("user:bob:friends", "ann", "nobody")
            assert read(bob, "/friends") == {"online": ["ann"]}
        assert ann.get("/logout").is_success
        assert not presence.is_online("ann")
        seen = presence.last_seen("ann")
        assert seen is not None
        assert read(bob, home)["who"] == ["bob"]
        if name == "flask":
            assert read(bob, "/friends") == {"online": []}
            assert read(bob, "/users/ann") == {"online": False, "last_seen": seen.isoformat()}
            assert read(bob, "/users/nobody") == {"online": False, "last_seen": None}
            valkey.client.delete("user:bob:friends")
        if name in SOCKETS:
            read_text(ann, "/login/ann")  # ends at a page that writes all that is known so far
            valkey.client.delete(f"{prefix}:user:seen")
            cookie = {"Cookie": f"session={ann.cookies['session']}"}
            assert presence.count() == 0
            url = f"ws://{site.address}/live"
            with connect(url, additional_headers=cookie, proxy=None) as socket:
                socket.send("who?")
                assert json.loads(socket.recv(10)) == ["ann"]
                assert presence.is_online("ann")


def test_an_ini_file_has_settings_of_site_and_shell(run: Run, variables: dict[str, str]) -> None:
    site = run(SITES["paste"])
    ini = EXAMPLES / "paste_site.ini"

    def presence(*arguments: str) -> Any:
        return json.loads(run_command("--ini", ini, *arguments, "--json", env=variables).stdout)

    with site.client("A") as ann, site.client("B") as guest:
        ann.get("/login/ann")
        guest.get("/")
        # The board, too, is only in the file.
        assert read(guest, "/presence/counts")["counts"]["user"] == 1
    wait_until(lambda: presence("count", "guest")["count"] == 1)
    assert [person["id"] for person in presence("online")["online"]] == ["ann"]
    config = presence("config")
    assert config["PRESENCE_WINDOW"] == {"value": "15m", "from": "ini"}
    assert config["PRESENCE_SESSION_SECRET"] == {"value": "***", "from": "ini"}
    assert (
        config["PRESENCE_PREFIX"]["from"] == config["PRESENCE_REDIS_URL"]["from"] == "environment"
    )
    assert config["PRESENCE_RETENTION"]["from"] == "default"


AWAY = {"PRESENCE_REDIS_URL": "redis://127.0.0.1:1"}  # a port that no test is given
CLASSIC = {"PRESENCE_IDENTITY": "user=user-agent:raw", "PRESENCE_STORE": "minute-sets"}


@pytest.mark.parametrize("name", usual(SITES))
def test_an_example_works_without_numbers_while_redis_is_away(run: Run, name: str) -> None:
    pages = ["/", "/friends", "/users/ann"] if name == "flask" else ["/"]
    site = run(SITES[name], **AWAY)
    with site.client("A") as ann:
        for is_known in (False, True):
            if is_known:
                answer = ann.get("/login/ann", follow_redirects=False)
                assert answer.is_success or answer.is_redirect
            assert not any(any(read(ann, page).values()) for page in pages)
            if name in TEMPLATES:
                shown = read_text(ann, "/page")
                assert "online" not in shown
                assert "ann</li>" not in shown
        assert "bye" in read_text(ann, "/logout")
    if name in SOCKETS:
        with connect(f"ws://{site.address}/live", proxy=None) as socket:
            socket.send("who?")
            assert json.loads(socket.recv(10)) == []


def webpy(port: int) -> list[str]:
    return ["webpy_classic", f"127.0.0.1:{port}"]


def test_the_classic_example_works_while_redis_is_away(run: Run) -> None:
    with run(webpy, **CLASSIC, **AWAY).client("Firefox/1") as browser:
        assert read_text(browser, "/") == "User:\tFirefox/1"
        assert read_text(browser, "/online") == ""


def test_the_classic_example_lists_all_users_of_the_window_and_no_earlier_ones(
    run: Run, variables: dict[str, str], valkey: Server
) -> None:
    settings = Settings.from_env({**variables, **CLASSIC})
    Presence(settings, clock=lambda: float(valkey.client.time()[0]) - 3600).touch("Ghost/1")
    site = run(webpy, **CLASSIC)
    agents = ["Firefox/1", "Opera/2 (X11; Linux)", "Safari/3"]
    for agent in agents:
        with site.client(agent) as browser:
            assert browser.get("/").text == f"User:\t{agent}"
    with site.client("Vivaldi/1") as browser:
        listed = browser.get("/online").text.splitlines()
    everyone = [*agents, "Vivaldi/1"]
    assert listed == [f"User agent: {agent}" for agent in everyone]
    assert [seen.id for seen in Presence(settings).online()] == everyone


@pytest.mark.slow
def test_friends_light_up_when_they_come_online(run: Run, variables: dict[str, str]) -> None:
    live = {"PRESENCE_EVENTS": "user", "PRESENCE_EXCLUDE": "+/friends/events"}
    live |= {"PRESENCE_WINDOW": "6s", "PRESENCE_FLUSH_INTERVAL": "1s"}
    presence = Presence(Settings.from_env(variables | live))
    site = run(uvicorn("fastapi_friends:app"), **live)
    with site.client("A") as ann, site.client("B") as bob, site.client("C") as eve:
        assert "EventSource" in read_text(ann, "/login/ann")
        with ann.stream("GET", "/friends/events") as stream:
            lines = (line for line in stream.iter_lines() if line.startswith("data: "))
            assert json.loads(next(lines)[6:]) == {"bob": False, "eve": False}
            presence.touch("zoe")  # no friend
            bob.get("/login/bob")
            came = json.loads(next(lines)[6:])
            assert (came["id"], came["online"]) == ("bob", True)
            bob.get("/logout")
            went = json.loads(next(lines)[6:])
            assert (went["id"], went["online"]) == ("bob", False)
            eve.get("/login/eve")
            assert json.loads(next(lines)[6:])["id"] == "eve"
            wait_until(lambda: not presence.is_online("ann"))  # an open stream is no visit
            assert site.stop() in ENDED
