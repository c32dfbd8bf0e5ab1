"""The recipes of docs/recipes.md, each run on a site where people come and go."""

import io
import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from presence_middleware import Presence, Settings
from tests.support.backends import Server, wait_until
from tests.support.beside import in_thread
from tests.support.servers import ROOT

CODE = "".join(
    re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/recipes.md").read_text(), re.M | re.S)
)


@pytest.fixture
def presence(valkey: Server, prefix: str) -> Presence:
    return Presence(Settings.from_env({}, redis_url=valkey.url, prefix=prefix, events="user"))


@pytest.fixture
def recipes(valkey: Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("PRESENCE_REDIS_URL", valkey.url)
    monkeypatch.setenv("PRESENCE_PREFIX", prefix)
    named: dict[str, Any] = {"__name__": "recipes"}
    exec(CODE, named)
    return named


@pytest.fixture
def run(presence: Presence, stack: ExitStack) -> Callable[..., None]:
    """Runs a recipe on the events from now on, in a thread, until the test ends."""

    def run(recipe: Callable[..., Any], *arguments: Any) -> None:
        events = presence.events()
        stack.enter_context(in_thread(lambda: recipe(events, *arguments)))
        stack.callback(events.close)

    return run


def test_the_attendance_log(presence: Presence, recipes: Any, run: Any) -> None:
    file = io.StringIO()
    run(recipes["log_attendance"], file)
    presence.touch("ann")
    wait_until(lambda: file.getvalue().count("\n") == 1)
    presence.leave("ann")
    wait_until(lambda: file.getvalue().count("\n") == 2)
    lines = [line.split() for line in file.getvalue().splitlines()]
    assert [words[1:] for words in lines] == [["in", "ann"], ["out", "ann"]]


def test_a_message_when_somebody_comes(presence: Presence, recipes: Any, run: Any) -> None:
    received: list[Any] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Hook) as server, in_thread(server.serve_forever):
        run(recipes["announce"], f"http://127.0.0.1:{server.server_port}/", {"ann": "Ann"})
        presence.touch("bob")
        presence.touch("ann")
        wait_until(lambda: received)
        server.shutdown()
    assert received == [{"text": "Ann is here"}]


def test_the_length_of_sessions(presence: Presence, recipes: Any, run: Any) -> None:
    found: list[tuple[str, timedelta]] = []
    arrived: list[str] = []
    presence.touch("before")
    run(lambda events: found.extend(recipes["lengths_of_sessions"](events)))
    run(lambda events: arrived.extend(event.id for event in events))
    presence.touch("ann")
    wait_until(lambda: "ann" in arrived)
    presence.leave("before")
    presence.leave("ann")
    wait_until(lambda: "ann" in dict(found))
    assert timedelta() <= dict(found)["ann"] < timedelta(minutes=1)


def test_a_list_of_friends(presence: Presence, recipes: Any) -> None:
    for id in ("ann", "bob"):
        presence.touch(id)
    presence.leave("bob")
    assert recipes["friends_list"](presence, ["bob", "ann", "eve"]) == [
        ("bob", presence.last_seen("bob")),
        ("ann", "online"),
        ("eve", None),
    ]
