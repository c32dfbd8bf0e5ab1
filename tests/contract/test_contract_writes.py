"""The writes of every store: touch, leave, forget, ids of all sorts, and the keys they leave."""

from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio

from presence_middleware import QueryError
from presence_middleware.identity.resolver import normalize_id
from presence_middleware.stores import moment_of
from tests.support.backends import matrix
from tests.support.timed_site import NOON, WINDOW, Site, opened, settings

WITH_IDS = pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
OTHERS = ["redis_server", "redis62"]
REAL = pytest.mark.parametrize(
    "backend", ["valkey", "cluster", *matrix(*OTHERS, "cluster/6")], indirect=True
)
OF_ONE_SERVER = pytest.mark.parametrize("backend_url", ["valkey", *matrix(*OTHERS)], indirect=True)
OF_EACH_SERVER = pytest.mark.parametrize("backend_url", ["valkey", *OTHERS], indirect=True)
"""Also without `-m matrix`: the core of what is tested with every server."""


def test_touch_brings_an_id_online(site: Site) -> None:
    site.presence.touch("ann")
    site.presence.touch("ann")
    site.presence.touch("g1", "guest")
    assert site.presence.counts() == {"user": 1, "guest": 1}


@WITH_IDS
def test_a_late_older_sighting_does_not_lower_the_last_seen_time(site: Site, store: str) -> None:
    site.saw("ann")
    site.saw("ann", ago=100)
    assert site.presence.last_seen("ann") == moment_of(NOON - (30 if store == "minute-sets" else 0))
    assert site.presence.online_among(["ann"], window=60) == ["ann"]


@WITH_IDS
def test_after_leave_an_id_is_offline_and_still_has_its_last_seen_time(
    site: Site, store: str
) -> None:
    site.saw("ann", "bob", ago=90)
    site.saw("ann")
    site.presence.leave("ann")
    assert [who.id for who in site.presence.online()] == ["bob"]
    assert site.presence.count() == 1
    assert not site.presence.is_online("ann")
    seen = NOON if store == "sorted-set" else NOON - 30  # the minute it was in
    assert site.presence.last_seen("ann") == moment_of(seen)


@WITH_IDS
def test_after_leave_older_sightings_of_other_workers_are_refused(site: Site) -> None:
    site.presence.leave("ann")
    site.saw("ann", ago=100)
    site.saw("ann", ago=0.000001)
    site.saw("ann")  # the request of the logout itself
    site.saw("bob")
    assert [who.id for who in site.presence.online()] == ["bob"]
    assert site.refused() == 3


@WITH_IDS
def test_a_user_who_returns_after_leaving_is_online(site: Site) -> None:
    site.saw("ann")
    site.presence.leave("ann")
    site.clock.now += 0.000001
    site.saw("ann")
    assert site.presence.is_online("ann")
    assert site.refused() == 0
    site.presence.leave("ann")
    assert not site.presence.is_online("ann")


@WITH_IDS
def test_an_earlier_leave_that_comes_late_does_not_move_the_moment_back(site: Site) -> None:
    site.presence.leave("ann")
    site.clock.now -= 5
    site.presence.leave("ann")
    site.saw("ann", ago=-4)
    assert not site.presence.is_online("ann")


@WITH_IDS
def test_touch_in_the_instant_of_leaving_is_online_again(site: Site) -> None:
    site.saw("ann")
    site.presence.leave("ann")
    site.presence.touch("ann")
    assert site.presence.is_online("ann")
    site.saw("ann")
    assert site.refused() == 0, "what another request of this instant says is taken again"


@WITH_IDS
@pytest.mark.parametrize("method", ["leave", "forget"])
def test_a_connection_from_before_the_logout_does_not_count(site: Site, method: str) -> None:
    site.saw("ann", "bob")
    site.clock.now += 10
    getattr(site.presence, method)("ann")
    site.clock.now += 60
    site.saw("ann", "bob", open_for=60)  # ann's arrived in the very moment
    assert [who.id for who in site.presence.online()] == ["bob"]
    assert site.refused() == 1
    site.saw("ann", "bob", open_for=59.999999)
    assert site.presence.count() == 2
    assert site.presence.online_among(["ann", "bob"], window=60) == ["ann", "bob"]


@WITH_IDS
def test_after_touch_a_connection_from_before_leaving_counts_again(site: Site) -> None:
    site.presence.leave("ann")
    site.presence.touch("ann")
    site.clock.now += WINDOW + 60
    site.saw("ann", open_for=WINDOW + 70)
    assert site.presence.is_online("ann")
    assert site.refused() == 0


@WITH_IDS
def test_leave_is_forgotten_when_the_kind_is(site: Site, store: str) -> None:
    keep = WINDOW + (30 * 86400 if store == "sorted-set" else 0)
    site.saw("ann")
    site.presence.leave("ann")
    site.clock.now = NOON + keep - 1
    seen, over = (NOON, 0) if store == "sorted-set" else (NOON - 30, 30)
    assert site.presence.last_seen("ann") == moment_of(seen)
    site.clock.now = NOON + keep + over
    assert site.presence.last_seen("ann") is None


@WITH_IDS
# A minute set outlives its window by some slack, and by a window more where a write came late.
@pytest.mark.parametrize("later", [0, 30, WINDOW, WINDOW + 100, 2 * WINDOW + 100])
def test_forget_leaves_the_id_in_no_key(site: Site, later: float) -> None:
    site.saw("ann", "bob", ago=150)
    site.presence.leave("ann")
    site.clock.now += 1
    site.saw("ann", "bob")
    site.clock.now += later
    site.saw("ann", kind="guest")
    site.presence.forget("ann")
    holders = [key for key, members in site.held().items() if "ann" in members]
    assert holders == [key for key in holders if ":guest:" in key] != [], "of that kind only"
    assert site.presence.last_seen("ann") is None
    assert not site.presence.is_online("ann")
    assert any("bob" in members for members in site.held().values())


@WITH_IDS
def test_forget_refuses_older_sightings_and_takes_newer_ones(site: Site) -> None:
    site.saw("ann", ago=5)
    site.presence.forget("ann")
    site.saw("ann", ago=100)
    site.saw("ann")
    assert site.presence.last_seen("ann") is None
    assert not any("ann" in members for members in site.held().values())
    site.clock.now += 0.000001
    site.saw("ann")
    assert site.presence.is_online("ann")


@REAL
@pytest.mark.parametrize("store", ["hyperloglog"])
def test_a_hyperloglog_holds_no_id_to_forget(site: Site) -> None:
    site.saw("ann")
    site.presence.forget("ann")
    assert site.presence.count() == 1
    assert not any(b"ann" in site.redis.dump(key) for key in site.held())


IDS = [
    *[
        "jürgen",
        "小明",
        "🦊",
        "a b",
        "{tag}",
        "}{",
        "line\nbreak",
        "nul\0byte",
        "tab\there",
        '"',
        "'",
    ],
    *["-inf", "+inf", "(5", "[a", "*", "0", "007", "1e3", "LIMIT", "x" * 256, "é" * 128],
    *["é" * 129, "x" * 257, "y" * 5000, "\udcff"],
]


@WITH_IDS
def test_every_text_is_an_id(site: Site) -> None:
    for id in IDS:
        site.presence.touch(id)
    kept = [normalize_id(id) for id in IDS]
    assert kept[:-4] == IDS[:-4], "up to 256 bytes of text are kept as they are"
    assert max(len(id.encode()) for id in kept) == 256
    assert {who.id for who in site.presence.online()} == set(kept)
    assert site.presence.count() == len(IDS) == len(set(kept))
    assert site.presence.online_among(IDS) == kept
    for id in IDS:
        assert site.presence.last_seen(id) is not None
        site.presence.leave(id)
    assert site.presence.count() == 0
    site.clock.now += 1
    site.saw(*kept)
    assert site.presence.count() == len(IDS)
    for id in IDS:
        site.presence.forget(id)
    assert site.presence.online() == []


@pytest.mark.parametrize("id", ["", " ", "\n"])
def test_an_empty_id_is_refused(site: Site, id: str) -> None:
    for method in ("touch", "is_online", "last_seen", "leave", "forget"):
        with pytest.raises(QueryError, match="an id is text that is not empty"):
            getattr(site.presence, method)(id)


@REAL
def test_every_key_has_the_prefix_and_a_lifetime(site: Site, store: str) -> None:
    longest = WINDOW + (30 * 86400 if store == "sorted-set" else 0) + 120
    before = set(site.redis.scan_iter(count=1000))
    # Each writes alone into a site of its own, so that no other gives its keys their lifetimes.
    writes: dict[str, Callable[[], None]] = {
        "record": lambda: site.saw("ann"),
        "record a guest": lambda: site.saw("g1", kind="guest"),
        "touch": lambda: site.presence.touch("ann"),
        "leave": lambda: site.presence.leave("ann"),
        "forget": lambda: site.presence.forget("ann"),
    }
    if store == "hyperloglog":
        del writes["leave"], writes["forget"]  # refused, and nothing to write
    for name, write in writes.items():
        for key in site.held():
            site.redis.delete(key)
        write()
        lifetimes = {key: site.redis.ttl(key) for key in site.held()}
        assert lifetimes, f"{name} wrote nothing"
        for key, seconds in lifetimes.items():
            lasting = {"visitor-key": 30 * 86400, "peak": 366 * 86400, "settings": 3600}
            limit = lasting.get(key.rpartition(":")[2], longest)
            if ":history:" in key:
                limit = 8 * 86400 + 120
            assert 0 < seconds <= limit, f"{name} wrote {key} for {seconds} s"
        mine = f"{site.settings.prefix}:".encode()
        fresh = set(site.redis.scan_iter(count=1000)) - before
        assert [key for key in fresh if not key.startswith(mine)] == []


@OF_ONE_SERVER
@pytest.mark.parametrize("store", ["sorted-set"])
def test_a_key_of_another_type_stops_its_own_kind_only(
    backend_url: str, prefix: str, store: str
) -> None:
    with opened(settings(backend_url, prefix, store=store)) as site:
        site.redis.set(f"{prefix}:user:seen", "not a sorted set")
        with pytest.raises(QueryError, match="Redis refused: WRONGTYPE "):
            site.presence.touch("ann")
        recorder = site._recorder
        recorder.record(("user", "ann"), site.clock.now)
        recorder.record(("guest", "g1"), site.clock.now)
        assert not recorder.flush()
        assert site.presence.count("guest") == 1
        assert (recorder.stats().last_error or "").startswith("Redis refused: WRONGTYPE ")
        site.redis.delete(f"{prefix}:user:seen")
        assert recorder.flush()
        assert site.presence.is_online("ann")


def _client(mode: str, url: str, options: dict[str, Any]) -> Any:
    factory: Any = redis.asyncio.Redis if mode == "async" else redis.Redis
    return factory.from_url(url, **options)


@OF_ONE_SERVER
@WITH_IDS
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("protocol", "decoded"), [(2, True), (3, False), (3, True)])
def test_a_client_that_was_passed_works_like_the_built_in_client(
    backend_url: str, prefix: str, *, store: str, mode: str, protocol: int, decoded: bool
) -> None:
    options = {"protocol": protocol, "decode_responses": decoded}
    mine = _client(mode, backend_url, options)
    with _client("sync", backend_url, options) as client:  # recorders want a sync one
        nowhere = settings("redis://nowhere.invalid", prefix, store=store)
        with opened(nowhere, mode, mine, client) as site:
            _ask_everything(site)


@OF_EACH_SERVER
@WITH_IDS
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_url_may_choose_the_protocol(
    backend_url: str, prefix: str, store: str, mode: str
) -> None:
    with opened(settings(f"{backend_url}?protocol=3", prefix, store=store), mode) as site:
        _ask_everything(site)
        assert int(site.redis.get_connection_kwargs()["protocol"]) == 3  # text, before redis-py 6


def _ask_everything(site: Site) -> None:
    """Call every method once, for clients whose replies have other forms."""
    site.saw("jürgen", ago=100)
    site.saw("bob", "zoe")
    site.saw("g1", kind="guest")
    ask = site.presence
    ask.leave("zoe")
    ask.touch("zoe")
    ask.forget("bob")
    assert ask.counts() == {"user": 2, "guest": 1}
    assert {who.id for who in ask.online(limit=None)} == {"jürgen", "zoe"}
    pages = [ask.online(limit=1)]
    pages.append(ask.online(limit=1, before=pages[0][0]))
    assert {who.id for page in pages for who in page} == {"jürgen", "zoe"}
    assert ask.online_among(["jürgen", "bob"]) == ["jürgen"]
    assert ask.last_seen("jürgen") is not None
    assert ask.last_seen("bob") is None
    friends = f"{site.settings.prefix}:friends"
    site.redis.zadd(friends, {"jürgen": float("inf"), "bob": 1})
    assert ask.online_friends(friends) == ["jürgen"]
