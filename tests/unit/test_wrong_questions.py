"""Whatever a reader is asked, and whatever it finds in Redis: all that it raises is ours."""

import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from inspect import Parameter, signature
from operator import methodcaller
from typing import Any

import pytest
import redis.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from presence_middleware import (
    AsyncPresence,
    Presence,
    QueryError,
    Recorder,
    Settings,
    SettingsError,
    Sighting,
    UnsupportedQuery,
    presence_of,
    recorder_for,
    visit_of,
    wsgi,
)
from presence_middleware.errors import PresenceError, PresenceUnavailable
from presence_middleware.prometheus import PresenceCollector
from presence_middleware.stores import STORES
from tests.support import timed_site
from tests.support.backends import Server
from tests.support.timed_site import NOON, Process

HUGE = 10**400


class Unspeakable:
    """Cannot even be shown."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class Account:
    """A user of a framework, who has a text that is not the id."""

    id = 42

    def __str__(self) -> str:
        return "ann"


LAST = Sighting("ann", datetime(2026, 1, 5, tzinfo=UTC))
NAN = float("nan")
NO_TEXTS = ["", " ", "\n", b"\xff", Unspeakable()]
# By question and argument: values that are none.
WRONG: dict[tuple[str, str], list[Any]] = {
    ("online", "limit"): ["x", "3", 1.5, True, NAN, [], b"1", 0, -1],
    ("online", "before"): [
        *("ann", 5, ("ann", LAST.last_seen), Sighting(5, None), Sighting("a", "x")),  # type: ignore[arg-type]
        *(Sighting("\udcff", LAST.last_seen), LAST._replace(last_seen=datetime.min)),
    ],
    ("count", "window"): [
        *(HUGE, NAN, "soon", b"5m", [600], object(), Decimal("nan"), "", "-5m", -5, 0, True, "x"),
        *(timedelta(0), timedelta(-1), []),
    ],
    ("count", "kind"): [b"user", 5, ["user"], {"user"}, Unspeakable()],
    ("history", "hours"): ["x", None, NAN, float("inf"), -1, 0, True, b"1"],
    **{
        (name, "id"): [None, *NO_TEXTS, ["a"], True, 10**5000, Account()]
        for name in ("is_online", "last_seen")
    },
    **{(name, "id"): [*NO_TEXTS, Account()] for name in ("touch", "leave", "forget")},
    ("online_among", "ids"): [None, 5, "ann", b"ann", [None], [["ann"]], [Account()]],
    ("online_friends", "key"): [None, 5, b"\xff", "\udcff", ["a"]],
}


# By argument: what the error says.
SAYS = {
    "limit": "limit is .*: pass at least 1, or None for everyone",
    "window": "window is .*: pass a duration above zero and below ten years, such as 90s, 10m",
    "id": "an id is .*(: pass text that is not empty, a number or a UUID|, which has no text)",
}


def settings_of(prefix: str, **given: Any) -> Settings:
    return timed_site.settings(f"memory://{prefix}", prefix, **given)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("name", "argument"), WRONG)
def test_wrong_arguments_are_query_errors(prefix: str, name: str, argument: str, mode: str) -> None:
    with timed_site.opened(settings_of(prefix), mode) as site:
        for value in WRONG[name, argument]:
            with pytest.raises(QueryError, match=SAYS.get(argument)) as refusal:
                getattr(site.presence, name)(**{argument: value})
            assert not isinstance(refusal.value, UnsupportedQuery)


def test_what_is_no_settings_or_client_is_refused_where_it_is_passed() -> None:
    url: Any = "redis://:canary@localhost:6379"
    makers: list[Callable[..., object]] = [
        *(Presence, AsyncPresence, Recorder, recorder_for),
        partial(wsgi.PresenceMiddleware, lambda *_: []),
    ]
    with pytest.raises(SettingsError, match="pass settings by their names: Settings"):
        Settings.from_env(url)
    for make in makers:
        with pytest.raises(SettingsError, match="settings is a str: pass Settings") as refused:
            make(settings=url)
        assert "canary" not in str(refused.value)
        for clock in (17.0, datetime.now):
            with pytest.raises(SettingsError, match="clock must be a function that returns sec"):
                make(settings=settings_of("any"), clock=clock)
        made: Any = make()  # with the settings of the environment
    with pytest.raises(SettingsError, match=r"is a PresenceMiddleware: pass middleware\.recorder"):
        PresenceCollector(made)
    for reader in (Presence, AsyncPresence):
        with pytest.raises(SettingsError, match=r"client is a str: pass a redis\.Redis"):
            reader(settings_of("any"), client=url)
    site, client = settings_of("any", events="user"), redis.asyncio.Redis()
    for use in (makers[-1], lambda **given: AsyncPresence(**given).events()):
        with pytest.raises(SettingsError, match=r"a synchronous redis\.Redis"):
            use(settings=site, client=client)  # a thread writes, or follows
    with pytest.raises(SettingsError, match=r"a synchronous redis\.Redis"):
        Presence(backend=AsyncPresence(site, client=client).backend)
    cluster = Settings(redis_url="redis+cluster://localhost:7001")
    nodes = redis.asyncio.RedisCluster("localhost", 7001)
    with pytest.raises(SettingsError, match=r"redis\.Redis or RedisCluster"):
        AsyncPresence(cluster, client=nodes)


ANYTHING = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    *(st.binary(max_size=20), st.decimals(), st.datetimes(), st.timedeltas(), st.uuids()),
    st.lists(st.one_of(st.none(), st.text(), st.integers(), st.binary()), max_size=3),
    st.builds(Sighting, st.text(max_size=5), st.none() | st.datetimes(timezones=st.just(UTC))),
    st.just(HUGE),
)
QUESTIONS = "count counts online is_online last_seen last_seen_among online_among online_friends"
QUESTIONS += " active history peak touch leave forget"


@pytest.mark.parametrize("store", STORES)
@given(data=st.data())
@settings(deadline=None, max_examples=150)
def test_random_arguments_raise_no_other_error(store: str, data: st.DataObject) -> None:
    presence = Presence(settings_of("any", store=store))
    question = getattr(presence, data.draw(st.sampled_from(QUESTIONS.split())))
    arguments = {}
    for name, parameter in signature(question).parameters.items():
        if parameter.default is Parameter.empty or data.draw(st.booleans()):
            arguments[name] = data.draw(ANYTHING)
    with suppress(PresenceError):
        question(**arguments)


FRIENDS = "friends-of-somebody"
READS: list[Callable[[Presence], object]] = [
    *(methodcaller(name) for name in ("count", "counts", "online", "history", "peak")),
    methodcaller("online", limit=None),
    *(methodcaller(name, "ann") for name in ("is_online", "last_seen")),
    methodcaller("online_among", ["ann", "bob"]),
    methodcaller("online_friends", FRIENDS),
]
GARBAGE = b"\xff\xfe\x00"


def put_score(site: Process, member: bytes, score: float) -> None:
    site.redis.zadd(f"{site.settings.prefix}:user:seen", {member: score})
    site.redis.zadd(FRIENDS, {member: 1})


def put_hash(site: Process, name: str, fields: dict[Any, Any]) -> None:
    site.redis.hset(f"{site.settings.prefix}:user:{name}", mapping=fields)


def put_layout(site: Process, layout: bytes) -> None:
    site.redis.set(f"{site.settings.prefix}:meta", layout)


TODAY = f"history:{int(NOON) // 86400}"
DAMAGES: dict[str, Callable[[Process], object]] = {
    "no text": lambda site: put_score(site, GARBAGE, NOON),
    "an endless time": lambda site: put_score(site, b"ann", float("inf")),
    "a time beyond all calendars": lambda site: put_score(site, b"ann", 1e300),
    "a layout that is no number": lambda site: put_layout(site, b"x"),
    "a layout that is no text": lambda site: put_layout(site, GARBAGE),
    "a sample that is no number": lambda site: put_hash(site, TODAY, {1: "x"}),
    "a minute that is no number": lambda site: put_hash(site, TODAY, {GARBAGE: 1}),
    "a huge sample": lambda site: put_hash(site, TODAY, {1: b"9" * 5000}),
    "a peak that is no number": lambda site: put_hash(site, "peak", {"count": "x", "minute": 1}),
    "a peak without minute": lambda site: put_hash(site, "peak", {"count": 1}),
    "a peak in no calendar": lambda site: put_hash(site, "peak", {"count": 1, "minute": 10**18}),
    "a minute set": lambda site: site.redis.sadd(
        f"{site.settings.prefix}:user:m:{int(NOON) // 60}", GARBAGE
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_foreign_data_raises_only_documented_errors(damage: str, store: str, prefix: str) -> None:
    with timed_site.opened(settings_of(prefix, store=store)) as site:
        site.saw("ann")
        DAMAGES[damage](site)
        for read in READS:
            with suppress(PresenceUnavailable, UnsupportedQuery):
                read(site.presence)


def test_foreign_data_is_reported_as_such_and_not_as_an_outage(valkey: Server, prefix: str) -> None:
    presence = Presence(timed_site.settings(valkey.url, prefix))
    presence.touch("ann")
    with timed_site.opened(presence.backend.settings) as site:
        put_hash(site, "peak", {"count": "x", "minute": 1})
    generation = presence.backend.health.generation
    with pytest.raises(PresenceUnavailable, match="something that presence_middleware did not"):
        presence.peak()
    assert presence.backend.health.generation == generation
    assert presence.count() == 1


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    ("url", "kind"), [("memory://", "guest"), ("unix:///no/such/socket", "user")]
)
def test_a_question_that_fails_keeps_no_request(url: str, kind: str, prefix: str) -> None:
    alive = weakref.WeakSet[Any]()

    def home(environ: dict[str, Any], _: object) -> list[bytes]:
        alive.add(visit_of(environ))
        try:
            presence_of(environ).online(kind)
        except (PresenceUnavailable, UnsupportedQuery):
            return [b"no answer"]
        return []

    given = timed_site.settings(url, prefix, store="guest=hyperloglog")
    app = wsgi.PresenceMiddleware(home, settings=given)
    app.recorder.background = False
    assert timed_site.get(app, HTTP_X_USER="ann") == "no answer"
    assert len(alive) == 0
