"""Caps: the maximum number of members of a kind, and of guests of an address."""

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from presence_middleware.connections.drivers import Driver
from presence_middleware.connections.health import RedisHealth
from presence_middleware.connections.url import RedisURL
from presence_middleware.identity import guests
from presence_middleware.identity.addresses import Proxies, client_address, parse_proxies
from presence_middleware.identity.guests import Guests
from presence_middleware.people import People
from presence_middleware.recorder import Recorder
from presence_middleware.recorder.recorder import Stats
from presence_middleware.request import WsgiRequest
from presence_middleware.stores import Store, Written, keys, moment_of
from presence_middleware.stores.changes import to_microseconds
from presence_middleware.stores.minute_sets import MinuteSets
from presence_middleware.stores.plan import text
from presence_middleware.stores.sorted_set import SortedSet
from presence_middleware.upkeep import CLEAN_EVERY
from presence_middleware.wsgi import WsgiVisit
from tests.support import timed_site
from tests.support.acts import record
from tests.support.backends import Server, wait_until
from tests.support.timed_site import NOON, WINDOW, Clock, Site

BOUNDED = pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
SORTED = pytest.mark.parametrize("store", ["sorted-set"])
Open = Callable[[int], Site]
"""A site in which so many members have room."""


@pytest.fixture
def capped(store: str, backend_url: str, prefix: str) -> Iterator[Open]:
    """One contract: each store on each backend."""
    with ExitStack() as stack:

        def open(room: int) -> Site:
            given = {"store": store, "max_members": room, "flush_interval": "0.05s"}
            settings = timed_site.settings(backend_url, prefix, **given)
            return stack.enter_context(timed_site.opened(settings))

        yield open


def stats(site: Site) -> Stats:
    """The counters of those that record, which add up."""
    found = site.recorder.stats()
    dropped = sum(found.dropped.values())
    assert found.recorded == found.coalesced + found.flushed + found.pending + dropped
    return found


def full(site: Site) -> int:
    """How many sightings had no room."""
    return stats(site).dropped.get("members", 0)


def online(site: Site, kind: str | None = None) -> set[str]:
    return {who.id for who in site.presence.online(kind, limit=None)}


@BOUNDED
def test_at_the_cap_known_ids_are_refreshed_and_new_ids_refused_and_counted(
    capped: Open, store: str
) -> None:
    site = capped(5)
    old = [f"old{n}" for n in range(5)]
    site.saw(*old, ago=300)
    assert full(site) == 0
    site.saw("new1", "old3", "new2")
    assert full(site) == 2
    assert online(site) == set(old), "the oldest stay: in a flood they are the real people"
    assert site.presence.count() == 5
    minute = 30 if store == "minute-sets" else 0
    assert site.presence.last_seen("old3") == moment_of(NOON - minute)
    assert site.presence.last_seen("old4") == moment_of(NOON - 300 - minute)
    assert stats(site).flushed == 6


@BOUNDED
def test_known_ids_are_refreshed_while_the_kind_is_full(capped: Open) -> None:
    site = capped(3)
    site.saw("ann", "bob", "cid")
    for round in range(30):
        site.clock.now += 250
        site.saw(*(f"new{round}.{n}" for n in range(10)), "ann", "bob", "cid")
        assert {"ann", "bob", "cid"} <= online(site), f"after {round} rounds of a flood"


@BOUNDED
@pytest.mark.parametrize(("known", "new"), [(0, 8), (4, 4), (6, 2), (7, 1)])
def test_a_batch_across_the_cap_admits_exactly_what_fits(
    capped: Open, known: int, new: int
) -> None:
    site = capped(7)
    first = [f"known{n}" for n in range(known)]
    if first:
        site.saw(*first, ago=1)
    site.saw(*first, *(f"new{n}" for n in range(new)))
    assert site.presence.count() == 7
    assert full(site) == known + new - 7
    assert set(first) <= online(site)


@BOUNDED
def test_a_batch_of_many_commands_admits_exactly_what_fits(capped: Open) -> None:
    site = capped(1200)
    site.saw(*(f"u{n}" for n in range(700)))
    site.saw(*(f"u{n}" for n in range(600, 1800)))
    assert site.presence.count() == 1200
    assert full(site) == 600
    assert {f"u{n}" for n in range(700)} <= online(site)


@BOUNDED
def test_an_id_that_is_written_twice_takes_room_once(capped: Open) -> None:
    site = capped(4)
    for _ in range(3):
        site.saw("ann", "bob")
        site.saw("ann")
    site.saw("cid", "dan")
    assert full(site) == 0
    assert online(site) == {"ann", "bob", "cid", "dan"}


@BOUNDED
def test_an_id_that_left_takes_no_room(capped: Open) -> None:
    site = capped(2)
    site.saw("ann", "bob", ago=60)
    site.presence.leave("ann")
    site.presence.leave("bob")
    site.saw("ann", "bob", ago=20)  # what another worker still held
    site.clock.now += 1
    site.saw("cid", "dan")
    assert online(site) == {"cid", "dan"}
    assert stats(site).dropped == {"left": 2}


@BOUNDED
def test_each_kind_has_a_cap_of_its_own(capped: Open) -> None:
    site = capped(3)
    site.saw(*(f"g{n}" for n in range(50)), kind="guest")
    assert full(site) == 47
    site.saw("ann", "bob", "cid")
    assert full(site) == 47
    assert site.presence.counts() == {"user": 3, "guest": 3}


@BOUNDED
def test_workers_share_one_cap(capped: Open) -> None:
    first, second = capped(5), capped(5)
    first.saw("a", "b", "c")
    second.saw("d", "e", "f", "a")
    first.saw("e", "g")
    assert online(first) == {"a", "b", "c", "d", "e"}
    assert (full(first), full(second)) == (1, 1)


@SORTED
def test_room_that_clean_up_makes_is_used_again(capped: Open) -> None:
    site = capped(4)
    site.saw("g1", "g2", "g3", ago=WINDOW - 1, kind="guest")
    site.saw("g4", kind="guest")
    site.clock.now += CLEAN_EVERY + 1

    def comes_in() -> bool:
        site.saw("g5", kind="guest")
        return site.presence.is_online("g5", "guest")

    wait_until(comes_in)  # the thread cleans up now and then
    site.saw("g6", "g7", "g8", kind="guest")
    assert online(site, "guest") == {"g4", "g5", "g6", "g7"}


@pytest.mark.parametrize("store", ["minute-sets"])
def test_room_of_minutes_that_are_over_is_used_again(capped: Open) -> None:
    site = capped(3)
    site.saw("ann", "bob", "cid")
    site.clock.now += WINDOW
    site.saw("dan")
    assert full(site) == 1, "their minute is the first of the window"
    site.clock.now += 60
    site.saw("dan", "eve", "fay")
    assert online(site) == {"dan", "eve", "fay"}
    assert full(site) == 1


@pytest.mark.parametrize("store", ["hyperloglog"])
def test_a_hyperloglog_has_no_cap(capped: Open) -> None:
    site = capped(1)
    site.saw(*(f"u{n}" for n in range(50)))
    assert site.presence.count() == pytest.approx(50, abs=1)
    assert stats(site).dropped == {}


@SORTED
def test_the_log_says_once_which_kind_is_full(
    capped: Open, caplog: pytest.LogCaptureFixture
) -> None:
    site = capped(1)
    for n in range(3):
        site.saw(f"ann{n}", f"bob{n}")
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("kind user is full")
    assert said.endswith("raise PRESENCE_MAX_MEMBERS, which is 1")


# A store in a trace of its own, without a recorder: no thread, and every reply is looked at.

TRACED = settings(deadline=None, max_examples=60)
SPAN = 120  # a window of three minutes, so that a short trace leaves it again and again
CAP = 12

people = st.integers(0, 25).map("u{}".format)
# How much later, then who was seen how long ago: also what an outage or a slow request held back.
traces = st.lists(
    st.tuples(
        st.integers(0, 150),
        st.lists(st.tuples(people, st.sampled_from([0, 0, 0, 20, 60, 119])), max_size=12),
    ),
    max_size=12,
)


class Traced:
    """A store on a real server, and a clock."""

    def __init__(self, client: "redis.Redis", store: Callable[..., Store], cap: int) -> None:
        self._client = client
        self.clock = Clock(NOON // 60 * 60)
        self._driver = Driver(RedisURL("redis", "redis://"), RedisHealth(), client)
        self._client.flushdb()
        self.store = store("traced", "user", SPAN, SPAN, cap)

    def saw(self, *seen: tuple[str, float]) -> Written:
        moments = {id: to_microseconds(self.clock.now - ago) for id, ago in dict(seen).items()}
        sightings = [(id, moment, moment) for id, moment in moments.items()]
        return self._driver.run(record(self.store, sightings))

    def online(self) -> set[str]:
        listed = self._driver.run(self.store.online(self.clock.now, SPAN, None, None))
        return {text(member) for member, _ in listed}

    def held(self) -> set[str]:
        """Whoever is in a key of the window."""
        now, zset = self.clock.now, keys.seen("traced", "user")
        minutes = keys.minutes_of(now, SPAN)
        sets = [keys.minute_set("traced", "user", minute) for minute in minutes]
        members: Any = self._client.sunion(sets)
        scored: Any = self._client.zrange(zset, 0, -1)
        return {*members, *scored}

    def clean_up(self) -> None:
        self._driver.run(self.store.clean_up(self.clock.now))


@pytest.fixture(scope="module")
def emptied(valkey: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator["redis.Redis"]:
    """The client of a server whose keys a trace may throw away."""
    server = Server(valkey.binary, tmp_path_factory.mktemp("traced"))
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client
    server.stop()


@pytest.mark.parametrize("kept", [MinuteSets, SortedSet])
def test_members_never_exceed_the_cap_in_any_order_of_sightings(
    emptied: "redis.Redis", kept: Callable[..., Store]
) -> None:
    @TRACED
    @given(traces)
    def walk(trace: list[tuple[int, list[tuple[str, float]]]]) -> None:
        site = Traced(emptied, kept, CAP)
        # In minutes, a late sighting of somebody who was known then is recorded, as ever.
        late = 0
        for later, seen in trace:
            site.clock.now += later
            site.clean_up()
            before, known = site.held(), site.online()
            refused = site.saw(*seen)
            after = site.held()
            late += sum(ago > 0 for _, ago in seen) if kept is MinuteSets else 0
            assert len(after) <= CAP + late
            # Of somebody seen since, an older minute may refuse what adds nothing any more.
            is_late = any(ago for _, ago in seen)
            lost = len(dict(seen).keys() - after)
            assert refused.full >= lost if is_late else refused.full == lost
            assert before <= after, "nobody makes room for anybody"
            come = {id for id, ago in dict(seen).items() if ago == 0}
            assert known & come <= site.online()

    walk()


@pytest.mark.parametrize("kept", [MinuteSets, SortedSet])
def test_an_id_that_is_refreshed_stays_online_during_a_flood(
    emptied: "redis.Redis", kept: Callable[..., Store]
) -> None:
    @TRACED
    @given(traces)
    def walk(trace: list[tuple[int, list[tuple[str, float]]]]) -> None:
        site = Traced(emptied, kept, CAP)
        site.saw(("ann", 0))
        for later, seen in trace:
            site.clock.now += min(later, SPAN - 1)
            site.clean_up()
            site.saw(*seen, ("ann", 0))
            assert "ann" in site.online()

    walk()


# The guests of one address.

ADDRESS = "192.0.2.7"


def view(address: str | None, **headers: str) -> WsgiRequest:
    named = {f"HTTP_{name.upper()}": value for name, value in headers.items()}
    return WsgiRequest({**named, **({"REMOTE_ADDR": address} if address else {})})


class Door:
    """Guests, a clock, and how many were too many."""

    def __init__(
        self,
        proxies: Proxies = Proxies(),  # noqa: B008 - frozen
        remembered: int = 20_000,
    ) -> None:
        self.clock, self.refused = Clock(), 0
        self.reported: list[guests.Crowd] = []
        self.people = People(remembered, WINDOW)
        self.guests = Guests(self.people, WINDOW, proxies, self.reported.append)

    def comes(self, said: str, address: str | None = ADDRESS, **headers: str) -> bool:
        """Return whether a guest with these headers is recorded."""
        request = view(address, **headers)
        who = "guest", f"{said} of {client_address(request)}"
        is_let_in = self.guests.admit(request, who, self.clock.now)
        self.refused += not is_let_in
        if is_let_in:
            self.people.note(who, self.clock.now, self.clock.now)
            self.people.written(self.people.take(1), (), 0)
            self.people.restore()
        return is_let_in

    def come(self, how: str, many: int, address: str | None = ADDRESS, **headers: str) -> int:
        """How many of so many are let in."""
        return sum(self.comes(f"{how}{n}", address, **headers) for n in range(many))

    def remembered(self) -> int:
        """Return the length of the longest container: of guests or of networks."""
        return max(*_lengths(self.guests), *_lengths(self.people))


def _lengths(holder: object) -> list[int]:
    """Return the length of each container that an object of the quota holds."""
    return [len(held) for held in vars(holder).values() if isinstance(held, (dict, set, deque))]


def test_each_address_has_its_own_quota_of_guests() -> None:
    door = Door()
    assert door.come("forged", 500) == guests.QUOTA
    assert door.refused == 500 - guests.QUOTA
    assert door.come("forged", guests.QUOTA) == guests.QUOTA, "the known go on"
    assert door.come("other", 150, "192.0.2.8") == guests.QUOTA
    assert door.comes("one more", "2001:db8::1")


def test_the_quota_is_restored_after_a_window() -> None:
    door = Door()
    assert door.come("first", 200) == guests.QUOTA
    door.clock.now += WINDOW - 1
    assert door.come("second", 200) == 0
    door.clock.now += 2 * WINDOW
    assert door.come("third", 200) == guests.QUOTA


class Trace:
    """The guests that were recorded and when; the quota must hold for them."""

    def __init__(self) -> None:
        self.let_in: dict[str, list[tuple[float, str]]] = defaultdict(list)

    def online(self, address: str, now: float) -> set[str]:
        return {said for at, said in self.let_in[address] if at > now - WINDOW}


# In turn: how long a step takes, how many there are, and who comes at each: regulars, then others.
phases = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 100, 250, 599, 601]),
        st.integers(1, 8),
        st.sampled_from([(0, 2), (0, 3), (0, 4), (3, 9), (9, 15), (0, 15)]),
        st.sampled_from(["192.0.2.7", "192.0.2.7", "192.0.2.7", "198.51.100.1"]),
    ),
    max_size=10,
)


@settings(deadline=None, max_examples=300)
@given(phases)
def test_no_window_contains_more_guests_of_an_address_than_the_quota(
    trace: list[tuple[int, int, tuple[int, int], str]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guests, "QUOTA", 4)
        door, seen = Door(), Trace()
        for step, times, who, address in trace:
            for _ in range(times):
                door.clock.now += step
                for guest in range(*who):
                    now, said = door.clock.now, f"guest{guest}"
                    is_known = said in seen.online(address, now)
                    is_let_in = door.comes(said, address)
                    assert is_let_in or not is_known
                    if is_let_in:
                        seen.let_in[address].append((now, said))
                    assert len(seen.online(address, now)) <= 4


def test_known_guests_of_a_busy_address_still_count_during_a_flood() -> None:
    """After quiet hours, a flood must not count as the first guests."""
    door = Door()
    assert door.come("known", 60) == 60
    for _ in range(20):
        door.clock.now += 100
        assert door.come("known", 60) == 60
    assert door.come("forged", 500) == guests.QUOTA - 60
    assert door.come("known", 60) == 60


def test_a_network_of_ipv6_is_one_address() -> None:
    door = Door()
    hosts = [f"2001:db8:0:1::{n:x}" for n in range(1, 300)]
    assert sum(door.comes(f"g{n}", host) for n, host in enumerate(hosts)) == guests.QUOTA
    assert not door.comes("late", "2001:db8:0:1:ffff:ffff:ffff:ffff")
    assert door.comes("elsewhere", "2001:db8:0:2::1")
    assert door.comes("in the old net", ADDRESS)


@pytest.mark.parametrize(
    "spellings",
    [
        ["192.0.2.{0}", "::ffff:192.0.2.{0}", "::FFFF:c000:2{0:02x}", "192.0.2.{0}:4711"],
        ["2001:db8::{0:x}", "2001:DB8:0:0::{0:X}", "[2001:db8::{0:x}]:80", "2001:db8::{0:x}%eth0"],
    ],
)
def test_a_guest_is_one_guest_however_the_address_is_written(spellings: list[str]) -> None:
    door = Door()
    for n in range(50):
        assert all(door.comes(f"guest{n}", spelling.format(7)) for spelling in spellings)
    assert door.come("forged", 100, spellings[-1].format(7)) == guests.QUOTA - 50


def forged_hosts(site: str, many: int) -> Iterator[str]:
    """Yield addresses of as many /64s in a /48 such as `2001:db8:1`."""
    return (f"{site}:{n:x}::1" for n in range(many))


def test_a_site_of_ipv6_has_a_quota_however_many_networks_are_in_it() -> None:
    door = Door()
    hosts = list(forged_hosts("2001:db8:1", 400))
    let_in = sum(door.come(f"forged{host}", 20, host) for host in hosts)
    assert let_in == guests.SITE_QUOTA
    first, late = hosts[0], hosts[-1]
    assert door.come(f"forged{first}", 20, first) == 20, "the known go on"
    assert door.come(f"forged{late}", 20, late) == 0
    assert door.come("elsewhere", 20, "2001:db8:2::1") == 20
    assert door.come("in the old net", 20, ADDRESS) == 20
    door.clock.now += WINDOW - 1
    assert door.come("late", 20, late) == 0, "the window is not over"
    door.clock.now += 2
    assert door.come("late", 20, late) == 0, "those of the last second are still online"
    door.clock.now += 2 * WINDOW
    assert door.come("late", 20, late) == 20


def test_a_site_is_wider_than_what_a_customer_gets() -> None:
    """A customer with a /56 has 256 networks; a forger has rented one."""
    door = Door()
    hosts = [f"2001:db8:1:ab{n:02x}::1" for n in range(256)]
    assert sum(door.come(host, 50, host) for host in hosts) == guests.SITE_QUOTA


def test_many_hosts_of_one_network_of_ipv4_are_not_held_together() -> None:
    """A carrier puts thousands of people behind each of them."""
    door = Door()
    hosts = [f"192.0.2.{n}" for n in range(100)]
    assert sum(door.come(host, 50, host) for host in hosts) == 5000


def test_quotas_go_on_when_more_guests_are_there_than_are_remembered() -> None:
    door = Door(remembered=1000)
    crowd = [f"198.51.{n // 250}.{n % 250}" for n in range(1000)]
    assert sum(door.comes("guest", host) for host in crowd) == 1000
    assert door.come("forged", 500) == guests.QUOTA
    assert door.come("forged", guests.QUOTA) == guests.QUOTA, "the known go on"
    for _ in range(200):
        assert door.comes("guest", crowd[-1]), "many requests are not many guests"
    # Of those who are not remembered one by one, about one in a thousand others seems to be known.
    assert door.come("other", 150, crowd[-1]) <= guests.QUOTA + 5
    hosts = list(forged_hosts("2001:db8:1", 400))
    assert sum(door.come(f"forged{host}", 20, host) for host in hosts) <= guests.SITE_QUOTA + 40
    door.clock.now += WINDOW
    assert sum(door.comes("guest", host) for host in crowd) == 1000
    assert door.come("forged again", 500) <= 10


def test_quotas_go_on_when_more_networks_are_there_than_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guests, "COUNTED", 100)
    door = Door()
    for n in range(150):
        assert door.comes("guest", f"198.51.100.{n}")
    assert guests.QUOTA - 10 < door.come("forged", 500) <= guests.QUOTA
    assert door.comes("guest", "198.51.100.149"), "the known go on"
    door = Door()
    sites = [f"2001:db8:{n:x}" for n in range(500)]
    assert all(door.comes("guest", f"{site}::1") for site in sites)
    hosts = forged_hosts(sites[-1], 700)
    let_in = sum(door.come(f"forged{host}", 3, host) for host in hosts)
    assert guests.SITE_QUOTA - 100 < let_in <= guests.SITE_QUOTA
    assert max(_lengths(door.guests)) <= 2 * guests.COUNTED


@pytest.mark.parametrize("mapped", ["::ffff:192.0.2.{}", "192.0.2.{}"])
def test_a_host_of_ipv4_is_one_address_however_it_is_written(mapped: str) -> None:
    door = Door()
    assert sum(door.comes(f"g{n}", mapped.format(n)) for n in range(200)) == 200


def test_remembered_guests_are_bounded_and_beyond_the_bound_no_guest_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guests, "COUNTED", 100)
    door = Door(remembered=20)
    assert door.come("known", 50) == 50
    for window in range(4):
        for n in range(1000):
            assert door.comes(f"forged{window}.{n}", f"198.51.{n // 250}.{n % 250}")
        assert door.remembered() <= 200
        assert door.come("known", 50) == 50
        door.clock.now += WINDOW
    assert door.refused == 0


@pytest.mark.parametrize("peer", ["10.1.2.3", "127.0.0.1", "172.16.0.9", "192.168.1.1", "fd00::1"])
@pytest.mark.parametrize("header", ["x_forwarded_for", "forwarded"])
def test_an_unlisted_private_proxy_has_no_quota(peer: str, header: str) -> None:
    door = Door()
    said = {header: "for=203.0.113.9" if header == "forwarded" else "203.0.113.9"}
    assert door.come("guest", 500, peer, **said) == 500
    assert door.refused == 0


def test_a_socket_without_an_address_has_no_quota() -> None:
    assert Door().come("guest", 500, None) == 500


@pytest.mark.parametrize(
    ("peer", "headers"),
    [
        ("8.8.8.8", {}),
        ("2001:4860:4860::8888", {}),
        ("8.8.8.8", {"x_forwarded_for": "9.9.9.9"}),
        ("10.1.2.3", {"x_forwarded_for": "10.1.2.3"}),  # a server has looked: it is the client
    ],
)
def test_a_client_that_pretends_to_be_a_proxy_has_a_quota(
    peer: str, headers: dict[str, str]
) -> None:
    assert Door().come("guest", 500, peer, **headers) == guests.QUOTA


@pytest.mark.parametrize(
    "peer",
    [
        *("127.0.0.1", "::1", "::ffff:127.0.0.1", "10.1.2.3", "172.16.0.9", "192.168.1.1"),
        *("169.254.1.1", "100.64.0.9", "fd00::1", "fe80::1%eth0", None),
    ],
)
def test_a_private_proxy_without_a_forwarding_header_has_no_quota(peer: str | None) -> None:
    """Its clients look alike, so a quota would record 100 of all of them."""
    door = Door()
    assert door.come("guest", 100, peer) == 100
    assert door.reported == []
    assert door.come("more", 100, peer, x_real_ip="203.0.113.9") == 100
    assert set(door.reported) == {guests.Crowd.SILENT_PROXY}


def test_a_trusted_proxy_without_a_forwarding_header_has_no_quota() -> None:
    for proxies in (Proxies(hops=1), parse_proxies("10.0.0.0/8, unix")):
        door = Door(proxies)
        for peer in ("10.1.2.3", None):
            assert door.come("guest", 500, peer) == 500
        assert door.come("guest", 500, "8.8.8.8") == guests.QUOTA


def test_a_full_quota_is_reported_with_how_wide_it_is() -> None:
    door = Door()
    door.come("forged", 101)
    assert door.reported == [guests.Crowd.HOST]
    for host in forged_hosts("2001:db8:1", 101):
        door.come("forged", 20, host)
    assert set(door.reported[1:]) == {guests.Crowd.SITE}


# Through a recorder: what is counted and said.


@pytest.fixture
def recorder(settings: Any) -> Recorder:
    """A recorder with the settings of the site, without its thread."""
    recorder = Recorder(settings)
    recorder.background = False  # the thread sleeps: what waits is written when the test says so
    return recorder


def asks(recorder: Recorder, browser: str, address: str = ADDRESS, **environ: str) -> Any:
    """Who a request is found to be from."""
    said = {"REMOTE_ADDR": address, "HTTP_USER_AGENT": browser, **environ}
    visit = WsgiVisit(recorder, said)
    visit.end()
    return visit.identity


@pytest.mark.parametrize("address", [5, 1.5, b"192.0.2.7", b"::1"])
def test_an_address_that_is_no_text_harms_no_request(recorder: Recorder, address: Any) -> None:
    """A server's mistake: it is recorded, and nothing is raised."""
    for n in range(150):
        asks(recorder, f"browser {n}", address)
    assert recorder.stats().recorded == 150
    assert recorder.stats().dropped == {}


def test_guests_past_the_quota_are_counted_and_the_log_says_so_once(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "presence_middleware"):
        for n in range(250):
            asks(recorder, f"browser {n}")
            asks(recorder, f"browser {n}", "2001:db8::77")
        assert recorder.flush()
    found = recorder.stats()
    assert found.dropped == {"quota": 2 * (250 - guests.QUOTA)}
    assert (found.recorded, found.flushed) == (500, 2 * guests.QUOTA)
    said = [
        record.getMessage() for record in caplog.records if "new guests from" in record.getMessage()
    ]
    assert len(said) == 1
    assert "PRESENCE_TRUSTED_PROXIES" in said[0]
    assert ADDRESS not in caplog.text
    assert "2001:db8" not in caplog.text


def test_users_are_not_held_to_the_quota_of_their_address(
    recorder: Recorder, presence: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An office: all users are recorded, so no refused guest is counted or logged."""
    for n in range(250):
        found = asks(recorder, f"browser {n}", REMOTE_USER=f"user{n}")
        assert found == ("user", f"user{n}")
    assert recorder.flush()
    assert presence.count() == 250
    assert recorder.stats().dropped == {}
    assert recorder.stats().recorded == 250
    assert "new guests from" not in caplog.text


def test_users_leave_the_guests_of_their_address_their_quota(
    recorder: Recorder, presence: Any
) -> None:
    for n in range(250):
        asks(recorder, f"browser {n}", REMOTE_USER=f"user{n}")
    asks(recorder, "a guest's browser")
    assert recorder.flush()
    assert presence.counts() == {"user": 250, "guest": 1, "bot": 0}


def test_users_come_in_where_the_quota_of_guests_is_used_up(
    recorder: Recorder, presence: Any
) -> None:
    for n in range(250):
        asks(recorder, f"forged {n}")
    for n in range(50):
        asks(recorder, f"browser {n}", REMOTE_USER=f"user{n}")
    assert recorder.flush()
    assert presence.counts() == {"user": 50, "guest": guests.QUOTA, "bot": 0}


def test_a_request_that_is_no_visit_uses_no_quota(recorder: Recorder) -> None:
    for n in range(250):
        asks(recorder, f"health check {n}", PATH_INFO="/healthz")
    assert recorder.stats().recorded == 0
    assert recorder.flush()
    assert recorder.stats().dropped == {}
    asks(recorder, "a browser")
    assert recorder.stats().recorded == 1
    assert recorder.stats().dropped == {}


def test_one_request_past_the_quota_is_counted_once(valkey: Server, prefix: str) -> None:
    identity = "guest=cookie:sid, guest=visitor"
    given = {"identity": identity, "secret": "0123456789abcdef", "flush_interval": "3m"}
    recorder = Recorder(timed_site.settings(valkey.url, prefix, **given))
    recorder.background = False
    for n in range(250):
        asks(recorder, f"browser {n}", HTTP_COOKIE=f"sid=forged{n}")
    assert recorder.stats().recorded == 250
    assert recorder.stats().dropped == {"quota": 250 - guests.QUOTA}
    recorder.close()


def test_an_address_cut_short_is_still_that_of_a_private_proxy(valkey: Server, prefix: str) -> None:
    given = {"ip_prefix": "/24, /56", "flush_interval": "3m", "identity": "guest=visitor"}
    recorder = Recorder(timed_site.settings(valkey.url, prefix, **given))
    recorder.background = False
    for n in range(250):
        asks(recorder, f"browser {n}", "10.1.2.3", HTTP_X_FORWARDED_FOR="203.0.113.9")
    assert recorder.stats().dropped == {}
    recorder.close()


def test_equal_values_of_two_sources_are_different_ids(valkey: Server, prefix: str) -> None:
    """Otherwise the value of a cookie that must be hashed could be stored as it is."""
    identity = "member=cookie:name:raw, guest=cookie:sid"
    given = {"identity": identity, "secret": "0123456789abcdef", "flush_interval": "3m"}
    recorder = Recorder(timed_site.settings(valkey.url, prefix, **given))
    recorder.background = False
    assert asks(recorder, "", HTTP_COOKIE="name=same") == ("member", "same")
    kind, id = asks(recorder, "", HTTP_COOKIE="sid=same")
    assert (kind, len(id)) == ("guest", 32)
    recorder.close()
