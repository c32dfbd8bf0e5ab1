"""Invisible people leave nothing under `user`: a site is compared with one they never visited."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

import pytest

from presence_middleware import Presence, QueryError, Settings, wsgi
from presence_middleware.recorder import Recorder, Visit
from tests.support.asking import State, exchange_wsgi
from tests.support.backends import Server, client_of, content_of
from tests.support.hiding import HIDDEN
from tests.support.statuses import Call
from tests.support.timed_site import Clock, ask_board

TOKEN = "the-token-of-the-board"
SECRET = "of-both-sites-alike"
OWN = ":invisible:"
"""A part of the names of all keys that belong to invisible people."""


def hide(state: State) -> None:
    """Make the user of a request invisible, as a handler or a layer does."""
    visit: Visit = state["presence_middleware.visit"]
    if visit.header("x-user") == HIDDEN:
        visit.identify(HIDDEN, kind="invisible")


CODE = "user=header:x-user, invisible=identify, guest=visitor"
FUNCTION = CODE.replace("identify", "identify:tests.support.hiding:is_hidden")
WAYS = {"handler": CODE, "layer": CODE, "function": FUNCTION}
"""PRESENCE_IDENTITY, by what makes a person invisible."""


@dataclass
class Page(Call):
    """A request of the site, and what the handler does."""

    asks: bool = False
    """True if the handler asks who is online."""
    seconds: float = 0.0
    """How long the handler takes before it names its user. Others are written meanwhile."""


class Site:
    """A site whose clock the test moves, and which writes when the test lets it."""

    def __init__(self, settings: Settings, way: str) -> None:
        self.settings, self.way, self.clock = settings, way, Clock()
        self.wrapped = wsgi.PresenceMiddleware(self._app, settings=settings, clock=self.clock)
        self.recorder: Recorder = self.wrapped.recorder
        self.recorder.background = False

    def pass_time(self, seconds: float) -> None:
        """Move the clock, and write, sample and clean up every two seconds of it."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now += min(2.0, end - self.clock.now)
            self.recorder.run_once()

    def _app(self, environ: State, start_response: Any) -> Iterable[bytes]:
        if self.way == "layer":
            hide(environ)
        lines = self._handler(environ, start_response)
        return lines if environ["page"].seconds else list(lines)

    def _handler(self, environ: State, start_response: Any) -> Iterator[bytes]:
        page: Page = environ["page"]
        self.pass_time(page.seconds)
        if self.way == "handler":
            hide(environ)
        if page.asks:
            environ["presence_middleware.presence"].counts()
        if page.failure:
            raise page.failure
        start_response("200 OK", [])
        yield b"a"
        self.pass_time(page.seconds)
        yield b"b"

    def serve(self, page: Page) -> None:
        exchange_wsgi(self.wrapped, {**page.request.environ(), "page": page})


def settings_of(url: str, prefix: str, identity: str, store: str) -> Settings:
    given: dict[str, Any] = {"redis_url": url, "prefix": prefix, "identity": identity}
    given |= {"store": store, "board_path": "/board", "board_token": TOKEN, "secret": SECRET}
    if store == "sorted-set":
        given |= {"rooms": "/t/{topic}", "pulse_path": "/pulse"}
    return Settings.from_env({}, logout="/logout", flush_interval="2s", **given)


def visits() -> Iterator[Page]:
    """Yield each sort of request that the invisible person makes."""
    mine = {"X-User": HIDDEN}
    yield Page(mine)
    yield Page(mine, asks=True)
    yield Page(mine, seconds=4)
    yield Page(mine, failure=ValueError("the handler fails"))
    yield Page(mine, "/t/1")
    yield signal(HIDDEN, "here:/t/1")
    yield signal(HIDDEN, "bye")
    yield Page(mine, "/logout")
    yield Page(mine, "/t/1")


def signal(user: str, said: str) -> Page:
    headers = {"X-User": user, "Sec-Fetch-Site": "same-origin"}
    return Page(headers, f"/pulse?presence={said}", "POST")


def others() -> Iterator[Page]:
    yield Page({"X-User": "ann"}, "/t/1")
    yield Page({"X-User": "bob"}, asks=True)
    yield Page()
    yield Page({"User-Agent": "Googlebot/2.1"})
    yield Page({"X-User": "bob"}, "/logout")


def live(site: Site, *, is_visited: bool) -> None:
    """Serve everybody; the invisible person only if the site `is_visited` by them."""
    for page in others():
        site.serve(page)
        site.pass_time(10)
    for page in visits():
        began = site.clock.now
        if is_visited:
            with pytest.raises(ValueError, match="fails") if page.failure else nullcontext():
                site.serve(page)
        # The page takes as long where nobody asks for it.
        site.pass_time(began + 500 - site.clock.now)
        site.serve(next(others()))
        site.pass_time(70)


def contents(site: Site) -> dict[str, object]:
    """Return the content of every key of a site, without the prefix of the site."""
    found: dict[str, object] = {}
    client, prefix = client_of(site.settings.redis_url), site.settings.prefix
    for raw in client.scan_iter(match=f"{prefix}:*", count=1000):
        name, content = raw.decode().removeprefix(prefix), content_of(client, raw)
        # The names of processes are random.
        if name.endswith(":writers"):
            content = [score for _, score in content]
        if name != ":upkeep":
            found[name] = content
    return found


def visible(found: dict[str, object]) -> dict[str, object]:
    """Return the keys that do not belong to invisible people."""
    return {name: content for name, content in found.items() if OWN not in name}


QUESTIONS: dict[str, Callable[[Presence], object]] = {
    "counts": lambda presence: {**presence.counts(), "invisible": 0},
    **{name: methodcaller(name) for name in ("count", "online", "peak", "history")},
    **{name: methodcaller(name, HIDDEN) for name in ("is_online", "last_seen")},
    **{name: methodcaller(name, [HIDDEN]) for name in ("online_among", "last_seen_among")},
    "room": lambda presence: {**presence.counts(room="/t/1"), "invisible": 0},
    "in room": lambda presence: (presence.count(room="/t/1"), presence.online(room="/t/1")),
    "a day": lambda presence: presence.count(window="1d"),
}
BOARD = [
    *("", "/history", "/peak", "/chart.svg", "/online", "/online?kind=user", "/peak?kind=user"),
    *(f"/last-seen?id={HIDDEN}", f"/last-seen?id={HIDDEN}&id=ann"),
]


def answers(site: Site) -> dict[str, object]:
    """Return what a site shows anybody: its readers and its board."""
    presence = Presence(site.settings, clock=site.clock)
    found: dict[str, object] = {}
    for name, ask in QUESTIONS.items():
        try:
            found[name] = ask(presence)
        except QueryError as error:  # the store cannot answer
            found[name] = str(error)
    return found | {f"board{path}": board(site, path) for path in BOARD}


def board(site: Site, path: str, token: str = TOKEN) -> tuple[int, str]:
    response = ask_board(site.settings, site.clock, path, token)
    return response.status_code, response.text


@pytest.mark.parametrize(
    ("way", "store"),
    [
        *((way, "sorted-set") for way in ("handler", "layer", "function")),
        *(("handler", "minute-sets"), ("layer", "hyperloglog")),
    ],
)
def test_an_invisible_person_leaves_nothing_under_user(
    way: str, store: str, valkey: Server, patience: str, prefix: str
) -> None:
    found = []
    for is_visited in (True, False):
        name = f"{prefix}-{'with' if is_visited else 'without'}"
        site = Site(settings_of(valkey.url + patience, name, WAYS[way], store), way)
        live(site, is_visited=is_visited)
        online = Presence(site.settings, clock=site.clock).count("invisible")
        found.append((contents(site), answers(site), online))
    (keys, shown, online), (keys_without, shown_without, online_without) = found
    assert (online, online_without) == (1, 0)
    assert visible(keys) == visible(keys_without)
    assert shown == shown_without
    assert any(name.startswith(":user:") for name in keys)
    rooms = [dict(keys.get(f":{kind}:at", ())) for kind in ("user", "invisible")]  # type: ignore[call-overload]
    assert [HIDDEN.encode() in room for room in rooms] == [False, store == "sorted-set"]
    assert shown["count"] == 1


def test_the_board_counts_invisible_people_only_with_the_token(valkey: Server, prefix: str) -> None:
    site = Site(settings_of(valkey.url, prefix, CODE, "sorted-set"), "handler")
    site.serve(Page({"X-User": HIDDEN}, "/t/1"))
    site.pass_time(70)
    nobody = {"user": 0, "guest": 0}
    for path, shown in (
        ("/counts", {"counts": {**nobody, "bot": 0}}),
        ("/counts?room=/t/1", {"room": "/t/1", "counts": nobody}),
    ):
        status, body = board(site, path, "")
        assert (status, json.loads(body)) == (200, shown)
    for path in ("/history", "/peak", "/chart.svg"):
        for token, status in (("", 401), (TOKEN, 200)):
            assert board(site, f"{path}?kind=invisible", token)[0] == status
