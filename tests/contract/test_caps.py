"""Caps: the maximum number of members of a kind, and of guests of an address."""

from collections import defaultdict, deque
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presence_middleware import Presence
from presence_middleware.identity.addresses import Proxies, client_address, parse_proxies
from presence_middleware.people import People
from presence_middleware.recorder import Recorder, guests
from presence_middleware.recorder.guests import Guests
from presence_middleware.request import WsgiRequest
from presence_middleware.stores import Act
from presence_middleware.wsgi import WsgiVisit
from tests.support.timed_site import WINDOW, Clock, Recording, Start


@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
def test_at_the_cap_known_ids_are_refreshed_and_new_ids_refused_and_reported_once(
    store: str, backend_url: str, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """The oldest stay: in a flood they are the real people."""
    site = start(backend_url, store=store, max_members=1200)
    site.saw(*(f"u{n}" for n in range(700)))
    site.saw(*(f"u{n}" for n in range(600, 1800)))  # in several commands
    site.saw("u1800", "u1801")
    assert site.presence.count() == 1200
    assert {f"u{n}" for n in range(700)} <= {*site.online()}
    site.clock.now += 60
    site.saw("u3", "u1802")
    assert site.presence.online_among(["u2", "u3"], window=29) == ["u3"]
    stats = site.recorder.stats()
    assert (stats.recorded, stats.flushed, stats.dropped) == (1904, 1301, {"members": 603})
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("kind user is full")
    assert said.endswith("raise PRESENCE_MAX_MEMBERS, which is 1200")


def test_all_shards_together_hold_no_more_than_the_limit(start: Start) -> None:
    site = start("memory://limits", shards=3, max_members=11)
    site.saw(*(f"u{n}" for n in range(100)))
    assert site.presence.count() == 9


def test_minute_sets_of_a_long_window_hold_no_more_than_the_limit(start: Start) -> None:
    """Only some of its minutes are searched, and each has its share."""
    one = start(store="minute-sets", window="2h", max_members=40)
    for number in range(121):
        one.saw(f"u{number}")
        one.clock.now += 60
    assert 20 < one.presence.count() <= 40


@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
def test_a_sighting_of_before_a_logout_takes_no_time_of_others(store: str, start: Start) -> None:
    """Of a long window, the sets of some minutes have only a share of the members."""
    one, other = (start(store=store, window="2h", max_members=40) for _ in range(2))
    people = [f"u{number}" for number in range(16)]
    other.did("u15")
    one.saw(*people[:8])
    one.clock.now += 3600
    one.saw(*people[8:])
    one.saw(*people, act=Act.LEFT)
    before = one.presence.last_seen_among(people)
    other.writes()
    assert one.presence.last_seen_among(people) == before
    assert None not in before.values()


@pytest.mark.parametrize(
    ("name", "limit", "seconds"), [("left", 10, 0), ("gone", 10, 0), ("left", 9999, WINDOW + 121)]
)
def test_departures_are_forgotten_a_bounded_number_in_each_write(
    name: str, limit: int, seconds: float, start: Start
) -> None:
    """When the limit was lowered, and when the window of many is over at once."""
    before = start(shards=1)
    crowd = [f"u{number}" for number in range(2500)]
    before.saw(*crowd)
    before.saw(*crowd, act=Act.LEFT)
    before.clock.now += seconds
    one, sizes = start(clock=before.clock, shards=1, max_members=limit), [2500]
    while sizes[-1] > 10:
        one.saw(f"late{len(sizes)}", act=Act.LEFT)
        sizes.append(one.redis.zcard(getattr(one.store.all[0].key, name)))
    assert all(1 <= a - b <= 1000 for a, b in pairwise(sizes)), sizes
    assert len(sizes) == 4


# The guests of one address.

ADDRESS, NO_PROXIES = "192.0.2.7", Proxies()


class Door:
    """Guests, a clock, and how many were too many."""

    def __init__(self, proxies: Proxies = NO_PROXIES, remembered: int = 20_000) -> None:
        self.clock, self.refused = Clock(), 0
        self.reported: list[str] = []
        self.people = People(remembered, WINDOW, WINDOW / 8)
        self.guests = Guests(self.people, WINDOW, proxies, self.reported.append)

    def comes(self, said: str, address: str | None = ADDRESS, **headers: str) -> bool:
        """Return whether a guest with these headers is recorded."""
        named = {f"HTTP_{name.upper()}": value for name, value in headers.items()}
        request = WsgiRequest({**named, **({"REMOTE_ADDR": address} if address else {})})
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
    return [len(held) for held in vars(holder).values() if isinstance(held, (dict, set, deque))]


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


@settings(deadline=None, max_examples=100)
@given(phases)
def test_no_window_contains_more_guests_of_an_address_than_the_quota(
    trace: list[tuple[int, int, tuple[int, int], str]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guests, "QUOTA", 4)
        door, let_in = Door(), defaultdict[str, list[tuple[float, str]]](list)
        for step, times, who, address in trace:
            for _ in range(times):
                door.clock.now += step
                for guest in range(*who):
                    now, said = door.clock.now, f"guest{guest}"
                    online = {who for at, who in let_in[address] if at > now - WINDOW}
                    is_let_in = door.comes(said, address)
                    assert is_let_in or said not in online
                    if is_let_in:
                        let_in[address].append((now, said))
                        online.add(said)
                    assert len(online) <= 4


def test_two_threads_that_find_a_window_over_forget_nobody() -> None:
    door = Door()
    assert door.come("known", 100) == 100
    door.clock.now += WINDOW
    for _ in range(2):
        door.guests.turn(door.clock.now)
    assert door.come("forged", 100) == 0
    assert door.come("known", 100) == 100


@pytest.mark.parametrize(
    ("hosts", "each", "let_in"),
    [
        (["192.0.2.{}", "::ffff:192.0.2.{}"] * 20, 50, 2000),  # each host; of IPv4 many share one
        (["2001:db8:0:1::{:x}"] * 300, 1, guests.QUOTA),  # one network
        (["2001:db8:1:ab{:02x}::1"] * 256, 20, guests.SITE_QUOTA),  # who rents a /56
    ],
)
def test_hosts_share_a_quota_by_their_network(hosts: list[str], each: int, let_in: int) -> None:
    door = Door()
    named = [host.format(n) for n, host in enumerate(hosts)]
    assert sum(door.come(host, each, host) for host in named) == let_in
    assert door.comes("elsewhere", "2001:db8:9:2::1")
    assert door.comes("in the old net", "198.51.100.7")


def test_who_comes_again_uses_no_quota_and_who_is_long_gone_leaves_it() -> None:
    door = Door()
    for _ in range(2):
        assert door.come("regular", 60) == 60
        door.clock.now += WINDOW
    door.clock.now -= 1
    assert door.come("new", 60) == guests.QUOTA - 60
    door.clock.now += 2 * WINDOW
    assert door.come("late", 200) == guests.QUOTA


def test_quotas_go_on_with_more_networks_than_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "COUNTED", 100)
    door = Door()
    assert door.come("early", 60, "198.51.100.0") == 60
    for n in range(150):
        assert door.comes("guest", f"198.51.100.{n}")
    assert door.come("late", 60, "198.51.100.0") == guests.QUOTA - 61, "the first are still counted"
    assert guests.QUOTA - 10 < door.come("forged", 500) <= guests.QUOTA
    assert door.comes("guest", "198.51.100.149"), "the known go on"
    first = Door()
    for n in range(60):  # of these, some would share a counter by chance
        assert first.come("guest", guests.QUOTA, f"198.51.100.{n}") == guests.QUOTA


def test_remembered_guests_are_bounded_and_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
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


FORWARDED = {"x_forwarded_for": "203.0.113.9"}
PRIVATE = ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.1.2.3", "172.16.0.9", "192.168.1.1"]
PRIVATE += ["169.254.1.1", "100.64.0.9", "fd00::1", "fe80::1%eth0"]
LISTED = parse_proxies("10.0.0.0/8, unix")
PEERS: list[tuple[str | None, dict[str, str], Proxies, bool]] = [
    *[(peer, headers, NO_PROXIES, False) for peer in PRIVATE for headers in ({}, FORWARDED)],
    ("10.1.2.3", {"forwarded": "for=203.0.113.9"}, NO_PROXIES, False),
    ("10.1.2.3", {"x_real_ip": "203.0.113.9"}, NO_PROXIES, False),
    (None, {}, NO_PROXIES, False),
    *[(peer, {}, each, False) for peer in ("10.1.2.3", None) for each in (LISTED, Proxies(1))],
    # Clients that pretend to be a proxy, or that hide behind one with a header of their own.
    (None, {**FORWARDED, "forwarded": "for=6.6.6.6"}, LISTED, True),
    (None, {**FORWARDED, "forwarded": "for=6.6.6.6"}, Proxies(1), True),
    *[("8.8.8.8", {}, trusted, True) for trusted in (LISTED, Proxies(1), NO_PROXIES)],
    ("2001:4860:4860::8888", {}, NO_PROXIES, True),
    ("8.8.8.8", {"x_forwarded_for": "9.9.9.9"}, NO_PROXIES, True),
    ("10.1.2.3", {"x_forwarded_for": "10.1.2.3"}, NO_PROXIES, True),  # a server has looked
]


@pytest.mark.parametrize(("peer", "headers", "proxies", "has_quota"), PEERS)
def test_a_private_peer_has_no_quota_and_a_client_has_one(
    peer: str | None, headers: dict[str, str], proxies: Proxies, *, has_quota: bool
) -> None:
    """The clients of a proxy look alike, so a quota would record 100 of all of them."""
    door = Door(proxies)
    assert door.come("guest", 500, peer, **headers) == (guests.QUOTA if has_quota else 500)
    is_silent = not has_quota and proxies == NO_PROXIES and not FORWARDED.keys() & headers.keys()
    if is_silent and "forwarded" not in headers:
        assert set(door.reported) == {"silent"}


# Through a recorder: what is counted and said.


def asks(recorder: Recorder, browser: str, address: str = ADDRESS, **environ: str) -> Any:
    """Who a request is found to be from."""
    visit = WsgiVisit(recorder, {"REMOTE_ADDR": address, "HTTP_USER_AGENT": browser, **environ})
    visit.end()
    return visit.identity


def test_who_enters_a_room_is_within_the_quota(recording: Recording) -> None:
    recorder = recording(rooms="named")
    for n in range(250):
        visit = WsgiVisit(recorder, {"REMOTE_ADDR": ADDRESS, "HTTP_USER_AGENT": f"browser {n}"})
        visit.note()
        visit.enter("chat:7")
        visit.end()
    assert recorder.flush()
    presence = Presence(recorder.settings)
    assert presence.count("guest", room="chat:7") == presence.count("guest") == guests.QUOTA


def test_users_visits_and_other_guests_share_no_quota(recording: Recording) -> None:
    """An office: all users are recorded, and leave the guests of their address the quota."""
    recorder = recording()
    for n in range(250):
        assert asks(recorder, f"browser {n}", REMOTE_USER=f"user{n}") == ("user", f"user{n}")
    assert recorder.stats().dropped == {}
    for n in range(150):
        asks(recorder, f"forged {n}")
    asks(recorder, "browser", REMOTE_USER="late")
    assert recorder.flush()
    assert Presence(recorder.settings).counts() == {"user": 251, "guest": guests.QUOTA, "bot": 0}


CUT = {"ip_prefix": "/24, /56"}
BEHIND = {**CUT, "trusted_proxies": "1"}
Quota = tuple[str, dict[str, str], Any, str, int]
OF_A_NETWORK = ("ip", "ip:raw", "visitor", "cookie:sid")
# A source, settings, the addresses of peers, those that they forward, and how many are too many.
QUOTAS: list[Quota] = [
    ("cookie:sid, guest=visitor", {}, ADDRESS, "", 150),
    # The addresses of a network share a quota.
    *((source, {}, "2001:db8::{:x}", "", 150) for source in OF_A_NETWORK),
    # Those that are cut short do not, and are still those of a proxy.
    ("visitor", CUT, "198.51.100.{}", "", 0),
    ("visitor", CUT, "10.1.2.3", "203.0.113.9", 0),
    ("visitor", CUT, "203.0.113.9", "203.0.113.9", 150),
    ("visitor", BEHIND, ADDRESS, "198.51.100.{}", 0),
    ("visitor", BEHIND, ADDRESS, "203.0.113.9", 150),
    # An address that is no text is a mistake of the server, which harms no request.
    *(("visitor", {}, address, "", 0) for address in (5, b"::1")),
]


@pytest.mark.parametrize("quota", QUOTAS)
def test_a_guest_past_the_quota_of_an_address_or_network_is_counted_once(
    quota: Quota, recording: Recording
) -> None:
    source, given, address, forwarded, dropped = quota
    recorder = recording(identity=f"user=auth, guest={source}", secret="0123456789abcdef", **given)
    for n in range(250):
        headers = {"HTTP_X_FORWARDED_FOR": forwarded.format(n)} if forwarded else {}
        peer = address.format(n) if isinstance(address, str) else address
        asks(recorder, f"browser {n}", peer, HTTP_COOKIE=f"sid=forged{n}", **headers)
    assert recorder.stats().recorded == 250
    assert recorder.stats().dropped == ({"quota": dropped} if dropped else {})
