"""What a model cannot say well of the stores: arguments, errors, texts as ids, keys, clients."""

import random
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any
from uuid import UUID

import pytest
import redis
import redis.asyncio
from django.utils.functional import SimpleLazyObject

from presence_middleware import QueryError, UnsupportedQuery
from presence_middleware.backend import Backend
from presence_middleware.stores import Batch, Plan, Sighting, moment_of
from presence_middleware.stores.sorted_set import PAGE
from tests.support.backends import REDIS_PY, Server, by_trips, matrix
from tests.support.timed_site import NOON, WINDOW, Process, Start, opened, settings
from tests.unit.test_identity import AccountId

DAY = 86400
WITH_IDS = pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
SORTED = pytest.mark.parametrize("store", ["sorted-set"])
OTHERS = ["redis_server", "redis62"]
IN_MEMORY = pytest.mark.parametrize("backend", ["memory"], indirect=True)
REAL = pytest.mark.parametrize(
    "backend", ["valkey", "cluster", *matrix(*OTHERS, "cluster/6")], indirect=True
)
OF_EACH_SERVER = pytest.mark.parametrize("backend_url", ["valkey", *OTHERS], indirect=True)
"""Also without `-m matrix`: the core of what is tested with every server."""


# Arguments


@IN_MEMORY
def test_a_window_longer_than_the_retention_is_refused(site: Process, store: str) -> None:
    keep = WINDOW + 30 * DAY if store == "sorted-set" else WINDOW
    site.presence.count(window=keep)
    with pytest.raises(UnsupportedQuery, match="PRESENCE_WINDOW and PRESENCE_RETENTION"):
        site.presence.count(window=keep + 1)
    with pytest.raises(UnsupportedQuery, match="kind 'guest' is stored for 10m"):
        site.presence.count("guest", window=WINDOW + 1)


@IN_MEMORY
@pytest.mark.parametrize("store", ["hyperloglog"])
def test_the_error_of_a_question_names_what_can_answer_it(site: Process) -> None:
    without_ids = {
        **{"online": (), "online_among": (["ann"],), "online_friends": ("key",)},
        **{"is_online": ("ann",), "last_seen": ("ann",), "leave": ("ann",)},
    }
    for method, arguments in without_ids.items():
        with pytest.raises(UnsupportedQuery, match=r"'user' .*sorted-set.* minute-sets.*_STORE"):
            getattr(site.presence, method)(*arguments)
    others: dict[str, Any] = {"count": (), "touch": ("ann",), "forget": ("ann",)}
    for method, arguments in {**without_ids, **others}.items():
        with pytest.raises(QueryError, match="kind 'bot': PRESENCE_IDENTITY has user, guest"):
            getattr(site.presence, method)(*arguments, kind="bot")


@WITH_IDS
def test_an_id_may_be_a_number_bytes_a_uuid_or_none(site: Process) -> None:
    ask = site.presence
    account = AccountId(int=7)
    ask.touch(str(account))
    for id in (account, UUID(int=7)):
        assert ask.is_online(id)
        assert ask.is_online(SimpleLazyObject(lambda: id))  # noqa: B023
    ask.touch(42)
    ask.touch(b"ann")
    for ignored in (ask.touch, ask.leave, ask.forget):
        ignored(None)
    assert ask.is_online(42)
    assert ask.online_among([7, 42, b"ann", "None"]) == ["42", "ann"]
    assert ask.last_seen_among([]) == {}
    ask.leave(b"ann")
    assert not ask.is_online("ann")


# Reads


@WITH_IDS
def test_a_hundred_are_listed_by_default(site: Process) -> None:
    ids = [f"id{number:03}" for number in range(150)]
    for number, id in enumerate(ids):
        site.saw(id, ago=number / 10)
    ask = site.presence.online
    assert [who.id for who in ask()] == ids[:100]
    assert [who.id for who in ask(limit=7, before=ask(limit=7)[-1])] == ids[7:14]
    assert ask(before=ask(limit=None)[-1]) == []
    assert ask(limit=10**30) == ask(limit=None)


@IN_MEMORY
@WITH_IDS
@pytest.mark.parametrize("change", ["leave", "touch"])
def test_changes_between_two_pages_hide_no_other_id(site: Process, change: str) -> None:
    ids = [f"id{number:02}" for number in range(30)]
    site.saw(*ids, ago=5)
    found, before = list[str](), None
    while page := site.presence.online(limit=4, before=before):
        found += [who.id for who in page]
        assert before != page[-1]
        before = page[-1]
        getattr(site.presence, change)(before.id)
    assert sorted(found) == ids


def listed_beside_a_writer(
    site: Process,
    times: dict[str, float],
    writes: Iterator[dict[str, float]],
    before: Sighting | None = None,
) -> list[str]:
    """Return everybody who is online, if they have these times, and others after each trip."""
    key, backend = f"{site.settings.prefix}:user:seen", Backend(site.settings, clock=site.clock)
    site.redis.zadd(key, times)

    def beside_a_writer(batch: Batch) -> Plan[Any]:
        replies = yield batch
        if seen := next(writes, {}):
            site.redis.zadd(key, seen)
        return replies

    plan = backend.stores["user"].online(NOON, WINDOW, None, before)
    return [who.id for who in backend.driver.run(by_trips(plan, beside_a_writer))]


@IN_MEMORY
@SORTED
@pytest.mark.parametrize("before", [None, Sighting("id0900", moment_of(NOON - 9))])
def test_who_is_written_during_a_read_is_listed_once(
    site: Process, before: Sighting | None
) -> None:
    times = {f"id{n:04}": NOON - n / 100 for n in range(3 * PAGE)}
    writes = repeat({f"id{n:04}": NOON - 9.005 for n in (950, 1500, 2999)})
    listed = listed_beside_a_writer(site, times, writes, before)
    others = [f"id{n:04}" for n in range(901, 3 * PAGE) if n not in (950, 1500, 2999)]
    assert listed[-len(others) - 3 :] == ["id2999", "id1500", "id0950", *others]
    assert len(listed) == (3 * PAGE if before is None else 3 * PAGE - 901)


@IN_MEMORY
@SORTED
def test_a_list_ends_though_people_are_seen_as_fast_as_it_is_read(site: Process) -> None:
    ids, chosen = [f"id{n:04}" for n in range(3 * PAGE)], random.Random(1)
    writes = (
        {id: NOON + second + n / 1e5 for n, id in enumerate(chosen.sample(ids, PAGE + 100))}
        for second in range(1, 60)
    )
    times = {id: NOON - n / 100 for n, id in enumerate(ids)}
    assert {*listed_beside_a_writer(site, times, writes)} == {*ids}
    assert next(writes, None), "it ended while they were still seen"


OF_A_MOMENT = {f"id{n:04}": NOON - 9 for n in range(3 * PAGE)}
MANY = {f"id{n:04}": NOON - 99 + n / 1e3 for n in range(5 * PAGE)}
AGAIN = [*list(MANY)[: 3 * PAGE + 500], max(MANY)]


@IN_MEMORY
@SORTED
@pytest.mark.parametrize(
    ("times", "trips", "seen"),
    [
        (OF_A_MOMENT, 1, {f"id{n:04}": NOON - 1 for n in range(900)}),
        (MANY, 3, {id: NOON - 9 + n / 1e3 for n, id in enumerate(AGAIN)}),
    ],
    ids=["of a moment of many", "many"],
)
def test_those_who_are_seen_again_while_everybody_is_listed_hide_nobody(
    site: Process, times: dict[str, float], trips: int, seen: dict[str, float]
) -> None:
    assert len(listed_beside_a_writer(site, times, iter([*[{}] * trips, seen]))) == len(times)


def test_times_of_another_program_do_not_block_a_reader(start: Start, prefix: str) -> None:
    site = start()
    site.redis.zadd(f"{prefix}:user:seen", {f"u{n:05}": NOON + 0.1234568 for n in range(2500)})
    assert len({who.id for who in site.presence.online(limit=None)}) >= 1000


@WITH_IDS
def test_online_friends_are_those_of_a_set_or_sorted_set(site: Process) -> None:
    key, inf, people = f"{site.settings.prefix}:friends", float("inf"), site.presence
    site.saw("ann", "bob", ago=300)
    site.saw("ann")
    site.saw("cid", ago=720)  # went more than a window and a minute ago
    site.saw("g1", kind="guest")
    for friends in (
        {"ann": 1.0, "bob": 1e18, "cid": 1e18, "stranger": 3.0},
        {"ann": -inf, "bob": inf, "cid": inf, "stranger": 0.0},
        {"ann": inf, "bob": -inf, "cid": -inf},
        {},
    ):
        site.redis.delete(key)
        if friends:
            site.redis.zadd(key, friends)
        else:
            site.redis.sadd(key, "bob", "cid", "ann", "stranger", b"\xff\xfe", b"\xed\xb3\xbf")
        kept = site.held()[key]
        assert people.online_friends(key) == ["ann", "bob"]
        assert people.online_friends(key, window="2m") == ["ann"]
        assert people.online_friends(key, "guest") == []
        assert site.held()[key] == kept
    site.redis.delete(key)
    assert people.online_friends(key) == []
    site.redis.set(key, "ann")
    with pytest.raises(QueryError, match="WRONGTYPE"):
        people.online_friends(key)


@pytest.mark.parametrize("store", ["minute-sets"])
def test_active_in_minute_sets_counts_nobody_twice(site: Process) -> None:
    for id in ("ann", "bob", "cid", "dan"):
        site.presence.touch(id)
    site.clock.now += 1
    site.presence.leave("ann")
    site.presence.leave("bob")
    site.presence.forget("cid")
    site.clock.now += 1
    site.presence.touch("bob")
    assert (site.presence.count("user"), site.presence.active("10m")) == (2, 3)


def test_a_period_that_is_not_kept_is_refused(start: Start) -> None:
    ask = start(pulse_path="/pulse", bots="count").presence
    assert ask.active("10m", "bot") == ask.active("20m") == 0
    for period, kind, problem in [
        ("31d", "user", "is stored for"),
        ("1d", "guest", "is stored for 10m"),
        ("1d", "bot", "is stored for 10m"),
        ("10m", "user", "two windows or more"),
    ]:
        with pytest.raises(UnsupportedQuery, match=problem):
            ask.active(period, kind)
    with pytest.raises(QueryError, match="period is 'soon'"):
        ask.active("soon")


# Writes


@WITH_IDS
# A minute set outlives its window by some slack, and by a window more where a write came late.
@pytest.mark.parametrize("later", [0, 2 * WINDOW + 100])
def test_forget_leaves_the_id_in_no_key(site: Process, later: float) -> None:
    site.saw("ann", "bob", ago=150)
    site.presence.leave("ann")
    site.clock.now += 1
    site.saw("ann", "bob")
    site.clock.now += later
    site.saw("ann", kind="guest")
    site.presence.forget("ann")
    holders = [key for key, members in site.held().items() if "ann" in members]
    assert holders == [key for key in holders if ":guest:" in key] != [], "of that kind only"
    assert any("bob" in members for members in site.held().values())


def test_minute_sets_may_have_a_long_window(start: Start) -> None:
    ask = start(store="minute-sets", window="7d").presence
    for depart in (ask.leave, ask.forget):
        ask.touch("ann")
        depart("ann")
        assert ask.count() == 0


@REAL
@pytest.mark.parametrize("store", ["hyperloglog"])
def test_a_hyperloglog_has_no_cap_and_holds_no_id_to_forget(site: Process) -> None:
    site.saw("ann", *(f"u{n}" for n in range(49)))
    site.presence.forget("ann")
    assert site.presence.count() == pytest.approx(50, abs=1)
    assert not any(b"ann" in site.redis.dump(key) for key in site.held())


# Keys and clients


@REAL
def test_every_key_has_the_prefix_and_a_lifetime(site: Process, store: str) -> None:
    longest = WINDOW + (30 * DAY if store == "sorted-set" else 0) + 120
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
            lasting = {"visitor-key": 30 * DAY, "peak": 366 * DAY, "settings": 3600}
            limit = lasting.get(key.rpartition(":")[2], longest)
            if ":history:" in key:
                limit = 8 * DAY + 120
            if key.endswith(":left"):
                limit = WINDOW + 121
            assert 0 < seconds <= limit, f"{name} wrote {key} for {seconds} s"
        mine = f"{site.settings.prefix}:".encode()
        fresh = set(site.redis.scan_iter(count=1000)) - before
        assert [key for key in fresh if not key.startswith(mine)] == []


@OF_EACH_SERVER
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("protocol", "decoded"), [(2, True), (3, False), (3, True)])
def test_a_client_may_choose_the_protocol(
    backend_url: str, prefix: str, *, mode: str, protocol: int, decoded: bool
) -> None:
    options: dict[str, Any] = {"protocol": protocol, "decode_responses": decoded}
    mine: Any = redis.asyncio.Redis.from_url(backend_url, **options)
    if (7, 0) <= REDIS_PY < (8, 0):  # it refuses RESP3 over a unix socket otherwise
        from redis.maint_notifications import MaintNotificationsConfig

        options["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)
    recording = redis.Redis.from_url(backend_url, **options)  # recorders want a sync one
    mine = mine if mode == "async" else recording
    for store in ("sorted-set", "minute-sets"):
        nowhere = settings("redis://nowhere.invalid", f"{prefix}{store}", store=store)
        with recording, opened(nowhere, mode, mine, recording) as site:
            _ask_everything(site)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_url_may_choose_the_protocol(valkey: Server, prefix: str, mode: str) -> None:
    with opened(settings(f"{valkey.url}?protocol=3", prefix), mode) as site:
        _ask_everything(site)
        # Text, before redis-py 6.
        assert int(site.redis.get_connection_kwargs()["protocol"]) == 3


def _ask_everything(site: Process) -> None:
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


@IN_MEMORY
@SORTED
def test_a_sorted_set_is_exact_to_the_microsecond(site: Process) -> None:
    site.clock.now = NOON + 0.0004
    site.saw("just-gone", ago=WINDOW)
    site.saw("just-there", ago=WINDOW - 1e-6)
    assert site.presence.online() == [Sighting("just-there", moment_of(NOON - WINDOW + 0.000401))]
    assert site.presence.count() == 1
