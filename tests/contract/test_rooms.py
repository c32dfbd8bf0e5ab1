"""Who is in which room: each case that can go wrong, and what requests do."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from presence_middleware import Presence, QueryError, Settings, UnsupportedQuery
from presence_middleware.people import Room
from presence_middleware.recorder import Recorder, recorder_for
from presence_middleware.stores import NOWHERE, Act, room_number
from presence_middleware.wsgi import WsgiVisit
from tests.support.asking import State
from tests.support.backends import Server
from tests.support.statuses import Ask, Call, over_asgi, over_wsgi
from tests.support.timed_site import WINDOW, Clock, Site, settings


class Workers:
    """A site with rooms and two workers that write when the test says so."""

    def __init__(self, url: str, prefix: str, **given: Any) -> None:
        overrides = {"rooms": "/t/{topic}", "identity": "user=header:x-user, guest=visitor"}
        self.site = Site(settings(url, prefix, **{**overrides, **given}))
        self.clock, self.presence, self.redis = self.site.clock, self.site.presence, self.site.redis
        self.one, self.other = self.worker(), self.worker()

    def worker(self) -> Recorder:
        return Recorder(self.site.settings, clock=self.clock, background=False)

    def view(self, worker: Recorder, room: str, *ids: str, kind: str = "user") -> None:
        """Ids open a page of a room; "" is a page in no room."""
        self.clock.now += 0.25
        number = room_number(room) if room else NOWHERE
        for id in ids:
            worker.record((kind, id), self.clock.now, room=Room(number, self.clock.now))

    def call(self, worker: Recorder, *ids: str) -> None:
        """Ids are seen by requests that are no pages."""
        self.clock.now += 0.25
        for id in ids:
            worker.record(("user", id), self.clock.now)

    def room(self, room: str = "/t/1", kind: str = "user") -> list[str]:
        """Who is in a room; by its list and by its number."""
        ids = [who.id for who in self.presence.online(kind, room=room, limit=None)]
        assert self.presence.count(kind, room=room) == len(ids)
        return ids

    def key(self, name: str) -> str:
        return f"{self.site.settings.prefix}:user:{name}"


Open = Callable[..., Workers]


@pytest.fixture
def site(valkey: Server, prefix: str) -> Iterator[Open]:
    sites: list[Workers] = []

    def open_site(**given: Any) -> Workers:
        sites.append(Workers(valkey.url, prefix, **given))
        return sites[-1]

    yield open_site
    for each in sites:
        each.site.close()


def test_a_logout_and_a_page_right_after_it_is_a_room(valkey: Server, prefix: str) -> None:
    """By the clock of the server, the page may seem to be the earlier of the two."""
    given = settings(valkey.url, prefix, rooms="/t/{topic}", flush_interval="3m")
    worker, presence = Recorder(given, background=False), Presence(given)
    for _ in range(20):
        for room in ("/t/1", "/t/2"):
            stamp = worker.stamp()
            worker.record(("user", "ann"), stamp, act=Act.LEFT)
            entrance = Room(room_number(room), stamp + 1e-9)
            worker.record(("user", "ann"), stamp + 1e-9, room=entrance)
            assert worker.flush()
            assert presence.count(room=room) == 1
    worker.close()


def test_processes_with_different_windows_empty_no_room(site: Open) -> None:
    """A deploy that changes `PRESENCE_WINDOW` replaces one process after the other."""
    before, after_deploy = site(), site(window=2 * WINDOW)
    before.view(before.one, "/t/1", "ann")
    before.one.flush()
    before.clock.now += WINDOW + 50
    before.view(before.one, "/t/1", "bob")
    before.one.flush()
    after_deploy.clock.now = before.clock.now
    for workers in (before, after_deploy, before, after_deploy):
        assert workers.room() == ["bob"]


@pytest.mark.parametrize("names", [["seen"], ["seen", "at", "progress", "moved", "writers"]])
def test_lost_rooms_are_written_again(site: Open, names: list[str]) -> None:
    workers = site()
    workers.view(workers.one, "/t/1", "ann", "bob")
    workers.view(workers.other, "/t/2", "bob")
    workers.call(workers.one, "bob")
    workers.one.flush()
    workers.other.flush()
    workers.redis.delete(*map(workers.key, names))
    assert workers.room() == []
    for worker in (workers.one, workers.other):
        workers.call(worker, "dan")
        worker.flush()  # finds the loss
        worker.flush()
    assert workers.room("/t/1") == ["ann"]
    assert workers.room("/t/2") == ["bob"]


def test_a_room_loses_those_whom_a_process_without_rooms_has_removed(site: Open) -> None:
    """As in a deploy that switches rooms on: processes with the old settings go on for a while."""
    workers = site()
    people = [f"user{number}" for number in range(400)]
    workers.view(workers.one, "/t/1", *people)
    workers.one.flush()
    workers.redis.zrem(workers.key("seen"), *people[:300])
    backend = workers.one.backend
    for _ in range(200):  # each looks at some, chosen at random
        backend.driver.run(backend.stores["user"].all[0].sweep(workers.clock.now))
    assert workers.room() == sorted(people[300:])


def test_kinds_have_their_own_rooms_and_counts_names_those_that_can(site: Open) -> None:
    kinds = {"store": "user=sorted-set, guest=sorted-set, bot=hyperloglog", "bots": "count"}
    workers = site(rooms="/t/{topic}/*", **kinds)
    workers.view(workers.one, "/t/1", "ann")
    workers.view(workers.one, "/t/1", "g1", "g2", kind="guest")
    workers.one.flush()
    assert workers.presence.counts(room="/t/1") == {"user": 1, "guest": 2}
    assert workers.presence.count(room="/t/1/a-title/2") == 1
    assert workers.presence.count(room="/t/2") == 0
    assert workers.room(kind="guest") == ["g1", "g2"]
    with pytest.raises(UnsupportedQuery, match=r"kind 'bot' has no rooms: .* sorted-set.*_STORE"):
        workers.presence.count("bot", room="/t/1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": "5m"}, "window is '5m': with room, pass no window"),
        ({"before": ("ann", None)}, "before is .*: with room, pass no before"),
        ({"limit": 0}, "at least 1, or None"),
        ({"room": 7}, "room is 7: pass the name of a room"),
        ({"room": ""}, "room is '': pass the name of a room"),
        ({"kind": "cat"}, "unknown kind 'cat'"),
    ],
)
def test_an_argument_that_a_room_cannot_have_is_refused(
    site: Open, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(QueryError, match=message):
        site().presence.online(**{"room": "/t/1", **arguments})


def test_a_site_without_rooms_says_which_setting_has_them(valkey: Server, prefix: str) -> None:
    presence = Presence(settings(valkey.url, prefix, pulse_path="/pulse"), clock=Clock())
    for ask in (presence.count, presence.counts, presence.online):
        with pytest.raises(UnsupportedQuery, match="set PRESENCE_ROOMS to paths"):
            ask(room="/t/1")


# Requests through both wrappers.

NAVIGATE = {"sec-fetch-mode": "navigate"}


def view(
    path: str, user: str = "ann", mount: str = "", enters: str | None = None, **headers: str
) -> Call:
    """Return a request of a user, whose handler may name a room."""

    def handle(state: State) -> None:
        if enters is not None:
            state["presence_middleware.visit"].enter(enters)

    state = {"SCRIPT_NAME": mount, "root_path": mount, "path": mount + path}
    return Call({"X-User": user, **headers}, path, before=handle, state=state)


PEOPLE: dict[str, tuple[Any, ...]] = {
    "pages move, calls do not, and a page without a room takes out": (
        "/t/{topic}/*, /docs/*",
        view("/t/42/some-title", **NAVIGATE),
        view("/docs/x/y", "bob"),
        {"/t/42": ["ann"], "/docs": ["bob"]},
        view("/api/vote", **{"sec-fetch-mode": "cors"}),
        view("/logo.png", **{"sec-fetch-mode": "no-cors"}),
        view("/api/vote"),
        {"/t/42": ["ann"]},
        view("/docs/z"),
        {"/t/42": [], "/docs": ["ann", "bob"]},
        view("/", **NAVIGATE),
        {"/docs": ["bob"]},
    ),
    "rules mean the path below the mount point": (
        "/t/{topic}, /shop/{any}",
        view("/t/1", mount="/shop"),
        view("/t/1", "bob"),
        view("/shop/t", "eve", mount="/shop"),
        {"/t/1": ["ann", "bob"], "/shop/t": ["eve"]},
    ),
    "a passive request moves nobody": (
        "/t/{topic}, /docs/*",
        view("/t/1"),
        view("/t/2", presence="passive"),
        view("/docs/health"),
        {"/t/1": ["ann"], "/docs": []},
    ),
    "a handler names a room, which replaces that of the path": (
        "/t/{topic}/*",
        view("/t/1", enters="chat:7"),
        {"chat:7": ["ann"], "/t/1": []},
        view("/api", enters="/t/5/a-title"),
        {"chat:7": [], "/t/5": ["ann"]},
        view("/t/1", enters=""),
        {"/t/5": [], "/t/1": []},
    ),
    "named rooms need no rule": (
        "named",
        view("/t/1", **NAVIGATE, enters="chat:7"),
        {"chat:7": ["ann"]},
        view("/t/1"),
        {"chat:7": ["ann"]},
        view("/t/1", **NAVIGATE),
        {"chat:7": []},
    ),
}
"""The rooms of a site, and requests in turn, with who is in which room after them."""


@pytest.fixture
def visited(valkey: Server, prefix: str) -> Iterator[Callable[..., Settings]]:
    """Make the settings of a site that writes when the test lets it."""
    made: list[Settings] = []

    def make(rooms: str = "/t/{topic}", **given: Any) -> Settings:
        given = {"rooms": rooms, "flush_interval": "3m", "exclude": "/docs/health", **given}
        made.append(settings(valkey.url, prefix, **given))
        return made[-1]

    yield make
    for each in made:
        recorder_for(each).close()


both = pytest.mark.parametrize("ask", [over_wsgi, over_asgi])


@both
@pytest.mark.parametrize("name", PEOPLE)
def test_requests_move_people(
    name: str, ask: Ask, visited: Callable[..., Settings], caplog: pytest.LogCaptureFixture
) -> None:
    rooms, *steps = PEOPLE[name]
    here = visited(rooms)
    presence, users = Presence(here), set[str]()
    for step in steps:
        if isinstance(step, Call):
            users.add(step.headers["X-User"])
            ask(here, step)
            continue
        assert recorder_for(here).flush()
        assert {room: [who.id for who in presence.online(room=room)] for room in step} == step
        assert {room: presence.count(room=room) for room in step} == {
            room: len(ids) for room, ids in step.items()
        }
    assert presence.count() == len(users)
    assert "enter()" not in caplog.text


@both
def test_a_room_without_the_setting_is_a_warning_once(
    ask: Ask, visited: Callable[..., Settings], caplog: pytest.LogCaptureFixture
) -> None:
    here = visited("")
    for user in ("ann", "bob"):
        ask(here, view("/t/1", user, enters="chat:7"))
    (warning,) = [line for line in caplog.messages if "visit.enter() does nothing" in line]
    assert "PRESENCE_ROOMS" in warning
    recorder_for(here).flush()
    assert Presence(here).count() == 2


@both
def test_a_room_that_is_no_text_is_refused(ask: Ask, visited: Callable[..., Settings]) -> None:
    number: Any = 7
    with pytest.raises(QueryError, match="room is a int: pass text such as 'chat:7'"):
        ask(visited(), view("/t/1", enters=number))


def test_an_open_connection_does_not_pull_its_user_back(valkey: Server, prefix: str) -> None:
    clock, here = Clock(), settings(valkey.url, prefix, rooms="named")
    recorder = Recorder(here, clock=clock, background=False)
    presence, visits = Presence(here, clock=clock), list[WsgiVisit]()
    for room in ("chat:1", "chat:2"):
        clock.now += 1
        visits.append(WsgiVisit(recorder, {"HTTP_X_USER": "ann"}))
        visits[-1].enter(room)
    for _ in range(20):
        clock.now += 60
        recorder.run_once()
        assert recorder.flush()
        assert presence.count(room="chat:2") == 1
        assert presence.count(room="chat:1") == 0
    for visit in visits:
        visit.end()
    assert recorder.flush()
    assert presence.count(room="chat:2") == 1
    recorder.close()
