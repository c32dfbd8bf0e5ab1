"""The board: few reads for all its readers, and histories of few points with every peak."""

import asyncio
import json
import random
import re
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import datetime
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree as ET

import anyio
import httpx
import pytest

from presence_middleware import Presence, PresenceUnavailable, Settings, asgi
from presence_middleware.backend import Backend
from presence_middleware.board import Response, facts
from presence_middleware.board.cache import MAX_RESULTS, Cache, SharedRead
from presence_middleware.board.routes import (
    MAX_CHART_POINTS,
    MAX_POINTS,
    Board,
    read_history,
    step_for,
)
from presence_middleware.connections.loops import outside_loop
from presence_middleware.request import WsgiRequest
from presence_middleware.stores import Batch, Plan, keys
from presence_middleware.stores.history import MINUTES_A_DAY
from presence_middleware.svg import WIDTH
from tests.support.asking import Answer, exchange, in_loop
from tests.support.backends import Server, by_trips, client_of
from tests.support.beside import in_child, in_thread
from tests.support.proxy import HOST, Proxy
from tests.support.stopwatch import Stopwatch
from tests.support.timed_site import NOON, Clock, ask_board

NOBODY = {"counts": {"user": 0, "guest": 0, "bot": 0}}
OUTAGE = {"error": "Redis does not answer"}
ANSWER = Response(200, (), b"the answer")
READERS = 40
TOKEN = "the-token-of-the-board"


def nothing() -> Plan[Any]:
    yield from ()


READ = SharedRead("counts", (), nothing())


@pytest.fixture
def site(valkey: Server, prefix: str) -> Settings:
    given = {"redis_url": valkey.url, "prefix": prefix, "rooms": "/t/{x}"}
    return Settings.from_env({}, **given, board_path="/presence", board_token=TOKEN)


@pytest.fixture
def ask(site: Settings) -> Callable[..., SharedRead]:
    board = Board(Presence(site).backend)

    def read(path: str, query: str = "") -> SharedRead:
        environ = {"PATH_INFO": f"/presence{path}", "QUERY_STRING": query}
        environ["HTTP_AUTHORIZATION"] = f"Bearer {TOKEN}"
        found = board.answer(WsgiRequest(environ))
        assert isinstance(found, SharedRead)
        return found

    return read


def shown(response: Response) -> tuple[int, Any]:
    return response.status, json.loads(response.body)


def test_a_second_of_readers_is_one_read(site: Settings, ask: Callable[..., SharedRead]) -> None:
    presence, clock = Presence(site), Clock()
    cache, reads = Cache(clock), Mock(side_effect=presence.run)
    for hundredth in range(250):
        clock.now = 1000.0 + hundredth / 100
        _, found = shown(cache.get(ask("/counts"), reads))
        assert found["counts"]["user"] == (0 if hundredth < 100 else 1)
        if not hundredth:
            presence.touch("bob")
    assert reads.call_count == 3


def test_readers_that_ask_at_once_wait_for_one_read_and_if_it_is_killed_another_reads() -> None:
    cache, together, reads = Cache(), threading.Barrier(READERS), Mock()
    reads.side_effect = [SystemExit, SystemExit, ANSWER]  # as gevent kills a greenlet

    def ask(_: int) -> Response | None:
        together.wait()
        with suppress(SystemExit):
            return cache.get(READ, reads)
        return None

    with ThreadPoolExecutor(READERS) as pool:
        answers = Counter(pool.map(ask, range(READERS)))
    assert answers == {ANSWER: READERS - 2, None: 2}
    assert reads.call_count == 3


def test_a_read_that_hangs_holds_no_reader_and_another_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("presence_middleware.board.cache.PATIENCE", 0.1)
    clock, hangs, may_end = Clock(), threading.Event(), threading.Event()
    cache = Cache(clock)

    def hang(plan: Plan[Any]) -> Response:
        hangs.set()
        assert may_end.wait(30)
        return ANSWER

    with in_thread(lambda: cache.get(READ, hang)):
        assert hangs.wait(30)
        assert shown(cache.get(READ, Mock())) == (503, OUTAGE)
        clock.now += 0.1
        assert cache.get(READ, lambda _: ANSWER) == ANSWER
        may_end.set()


def test_trio_is_served_too(valkey: Server, site: Settings) -> None:
    app = asgi.PresenceMiddleware(lambda *_: None, settings=site)  # type: ignore[arg-type]
    asked = {"type": "http", "method": "GET", "path": "/presence/counts", "headers": []}
    answers = list[Answer]()

    async def ask() -> None:
        answers.append(await exchange(app, {**asked, "query_string": b""}))

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(READERS):
                group.start_soon(ask)
            async with anyio.create_task_group() as cancelled:
                cancelled.start_soon(ask)
                cancelled.cancel_scope.cancel()

    valkey.client.config_resetstat()
    anyio.run(main, backend="trio")
    stats = valkey.client.info("commandstats")
    assert len(answers) >= READERS
    assert all((each.status, each.json()) == (200, NOBODY) for each in answers)
    assert stats["cmdstat_pfcount"]["calls"] == 1, "each read contains one for the bots"


@in_loop
async def test_in_an_outage_readers_share_one_timeout_and_the_loop_goes_on(
    valkey: Server, stack: ExitStack, ask: Callable[..., SharedRead]
) -> None:
    proxy = Proxy(valkey.socket)
    stack.callback(proxy.refuse)
    proxy.answer = b""  # it accepts connections and never answers
    silent = Settings.from_env({}, redis_url=f"redis://{HOST}:{proxy.port}")
    get, run = Cache().get, Presence(silent).run
    waiting = asyncio.gather(*(outside_loop(get, ask("/counts"), run) for _ in range(READERS)))
    longest = last = 0.0
    with Stopwatch() as watch:
        while not waiting.done():
            await asyncio.sleep(0.005)
            longest, last = max(longest, watch.seconds - last), watch.seconds
    assert last < 2.5
    assert longest < 0.25
    assert [shown(answer) for answer in await waiting] == [(503, OUTAGE)] * READERS


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork amid threads
def test_a_fork_amid_a_read_does_not_wait_for_it() -> None:
    cache, answers = Cache(), facts({}, "no-store")

    def read_again() -> None:
        assert cache.get(READ, lambda plan: answers) is answers

    def fork(plan: Plan[Any]) -> Response:
        in_child(read_again)
        return answers

    assert cache.get(READ, fork) is answers


def test_a_failed_read_is_not_repeated_for_a_second() -> None:
    clock = Clock()
    cache = Cache(clock)
    failures: list[float] = []

    def fail(plan: Plan[Any]) -> Response:
        failures.append(clock.now)
        raise PresenceUnavailable("down")

    for seconds in (0, 0.99, 0.02):
        clock.now += seconds
        assert shown(cache.get(READ, fail)) == (503, OUTAGE)
    assert failures == [clock.now - 1.01, clock.now]


def test_ever_new_rooms_cause_a_bounded_number_of_reads(ask: Callable[..., SharedRead]) -> None:
    clock, reads = Clock(), Mock(return_value=ANSWER)
    cache = Cache(clock)

    def read(room: int) -> int:
        return cache.get(ask("/counts", f"room=/t/{room}"), reads).status

    for second in range(1, 4):
        clock.now += 1.5
        assert read(0) == 200
        statuses = [read(1000 * second + number) for number in range(2 * MAX_RESULTS)]
        assert statuses == [200] * (MAX_RESULTS - 1) + [503] * (MAX_RESULTS + 1)
        assert read(0) == 200
        assert reads.call_count == second * MAX_RESULTS


def test_ever_new_rooms_or_ids_push_out_no_other_read(ask: Callable[..., SharedRead]) -> None:
    cache, reads = Cache(Clock()), Mock(return_value=ANSWER)

    def read(path: str, query: str = "") -> None:
        cache.get(ask(path, query)._replace(finish=lambda _: ANSWER), reads)

    usual = [(path,) for path in ("/counts", "/history", "/chart.svg", "/peak", "/online")]
    for each in usual:
        read(*each)
    for number in range(2 * MAX_RESULTS):
        read("/counts", f"room=/t/{number}")
        read("/last-seen", f"id={number}")
        read("/last-seen", "id=asked-for-again")
    assert reads.call_count == len(usual) + 3 * MAX_RESULTS + 1
    for each in usual:
        read(*each)
    assert reads.call_count == len(usual) + 3 * MAX_RESULTS + 1


def test_an_unexpected_error_reaches_its_reader_alone() -> None:
    cache = Cache(Clock())
    with pytest.raises(ZeroDivisionError):
        cache.get(READ, Mock(side_effect=ZeroDivisionError))
    assert cache.get(READ, lambda _: ANSWER) == ANSWER


# Histories: few points, and every peak among them.


Samples = dict[int, int]
"""Minutes since the epoch, and how many were online."""

MINUTE = int(NOON // 60)
MONTHS = 90  # in days


def settings(url: str, prefix: str, days: float) -> Settings:
    return Settings.from_env(
        {}, redis_url=url, prefix=prefix, history=f"{days}d", board_path="/presence"
    )


def write(settings: Settings, samples: Samples) -> None:
    """Write samples of users as the site does, but a day at a time."""
    by_day: dict[int, dict[Any, Any]] = {}
    for minute, count in samples.items():
        by_day.setdefault(minute // MINUTES_A_DAY, {})[minute % MINUTES_A_DAY] = count
    client = client_of(settings.redis_url)
    for day, counts in by_day.items():
        client.hset(keys.history(settings.prefix, "user", day), mapping=counts)


def walk(days: int) -> Samples:
    """Return the samples of some days until noon: a random walk with gaps, and a rare spike.

    Of many days, only a sample every so many minutes: a step is hours long then.
    """
    every = 97 if days > 1000 else 7 if days > 30 else 1
    rng, samples, count = random.Random(days), {}, 500
    for minute in range(MINUTE - days * MINUTES_A_DAY, MINUTE + 1, every):
        count = max(0, count + rng.randint(-9, 9))
        if rng.random() > 0.01:
            samples[minute] = count + (5000 if rng.random() < 0.0001 else 0)
    return samples


def thinned(samples: Samples, hours: int) -> list[tuple[int, int]]:
    """Return the expected points: the first of the highest minutes of each step."""
    step = step_for(hours, MAX_POINTS)
    highest: dict[int, tuple[int, int]] = {}
    for minute, count in sorted(samples.items()):
        place = minute // step
        if place not in highest or count > highest[place][1]:
            highest[place] = (minute, count)
    return [point for point in highest.values() if point[0] > MINUTE - hours * 60]


def points(answer: dict[str, Any]) -> list[tuple[int, int]]:
    return [
        (int(datetime.fromisoformat(at).timestamp() // 60), count)
        for at, count in answer["samples"]
    ]


def asked(settings: Settings, path: str, clock: Clock | None = None) -> httpx.Response:
    answer = ask_board(settings, clock or Clock(NOON), path)
    assert answer.status_code == 200, answer.text
    return answer


def points_of(settings: Settings, hours: int, clock: Clock | None = None) -> list[tuple[int, int]]:
    return points(asked(settings, f"/history?hours={hours}", clock).json())


@pytest.mark.parametrize(
    ("days", "hours", "step"),
    [
        *[(2, 24, 1), (2, 1, 1), (3, 48, 2), (7, 168, 10), (7, 100, 5), (MONTHS, MONTHS * 24, 120)],
        pytest.param(3660, 3660 * 24, 4320, marks=pytest.mark.slow),  # steps of several days
    ],
)
def test_a_history_has_every_peak_in_at_most_1500_points(
    valkey: Server, patience: str, prefix: str, *, days: int, hours: int, step: int
) -> None:
    site, samples = settings(valkey.url + patience, prefix, days), walk(days)
    write(site, samples)
    answer = asked(site, f"/history?hours={hours}").json()
    assert answer["step"] == step * 60
    found, expected = points(answer), thinned(samples, hours)
    # The first step may be cut off where the history ends.
    assert found == expected[-len(found) :]
    assert len(expected) - len(found) <= 1
    assert 0.5 * hours * 60 / step < len(found) <= MAX_POINTS
    oldest = MINUTE - hours * 60 + 2 * step
    assert max(count for _, count in found) >= max(n for at, n in samples.items() if at > oldest)


def test_expired_and_future_minutes_are_hidden(valkey: Server, patience: str, prefix: str) -> None:
    site = settings(valkey.url + patience, prefix, 1.5 / 24)
    write(site, {MINUTE - 90: 9, MINUTE - 89: 1, MINUTE: 2, MINUTE + 1: 8})
    assert points_of(site, 24) == [(MINUTE - 89, 1), (MINUTE, 2)]
    assert points_of(site, 24, Clock(NOON + 90 * 60)) == [(MINUTE + 1, 8)]


def test_every_backend_has_a_history(backend_url: str, prefix: str) -> None:
    site = settings(backend_url, prefix, 7)
    backend = Backend(site)
    for minute, count in {MINUTE - 1500: 4, MINUTE - 721: 3, MINUTE - 1: 0, MINUTE: 5}.items():
        backend.driver.run(backend.history.record(minute, {"user": count, "guest": 1}))
    day = [(MINUTE - 721, 3), (MINUTE - 1, 0), (MINUTE, 5)]
    assert points_of(site, 24) == day
    a_minute_ago = Presence(site, clock=Clock(NOON - 60))
    assert [sample.count for sample in a_minute_ago.history(24)] == [3, 0]
    # In steps of 10 minutes, the last two minutes are one point.
    assert points_of(site, 168) == [(MINUTE - 1500, 4), (MINUTE - 721, 3), (MINUTE - 1, 0), day[2]]


@pytest.mark.parametrize("hours", [24, 168, 1600 * 24])
def test_a_round_trip_is_small(valkey: Server, patience: str, prefix: str, hours: int) -> None:
    """A server answers others between two of its commands, and each is short."""
    site = settings(valkey.url + patience, prefix, 3660)
    write(site, walk(9))
    presence = Presence(site, clock=Clock(NOON))
    plan = read_history(presence.backend.queries, "user", step_for(hours, MAX_POINTS))
    trips: list[list[bytes]] = []  # the replies of each that reads samples

    def trip(batch: Batch) -> Plan[Any]:
        replies = yield batch
        if batch.commands[0][0] == "EVAL":
            trips.append(replies)
        return replies

    presence.run(by_trips(plan, trip))
    assert max(map(len, trips)) <= 16
    points = [sum(len(reply.split()) // 2 for reply in trip) for trip in trips]
    assert 0 < sum(points) <= MAX_POINTS


@pytest.mark.parametrize("hours", [1, 24, 168, MONTHS * 24])
def test_a_chart_has_the_peak_and_at_most_500_points(
    valkey: Server, patience: str, prefix: str, hours: int
) -> None:
    site, samples = settings(valkey.url + patience, prefix, MONTHS), walk(hours // 24 + 2)
    spike = MINUTE - hours * 30
    samples[spike] = 123456
    write(site, samples)
    chart = ET.fromstring(asked(site, f"/chart.svg?hours={hours}").content)
    (peak,) = (each for each in chart.iter() if each.get("class") == "peak")
    assert (peak.get("data-at"), peak.get("data-count")) == (str(spike * 60), "123456")
    lines = [each.get("d") or "" for each in chart.iter() if each.get("class") == "line"]
    places = [float(place.split()[0]) for place in re.split("[ML]", lines[0]) if place]
    assert places == sorted(places)
    assert min(50, 0.2 * MAX_CHART_POINTS) <= len(places) <= MAX_CHART_POINTS
    # The line covers the whole width, but for a gap at an end.
    assert places[0] < 0.1 * WIDTH
    assert places[-1] > 0.95 * WIDTH


def test_any_number_of_hours_has_few_points() -> None:
    for hours in range(1, 3660 * 24, 5):
        for most in (1500, 500):
            # The first and the last step may be cut, so there may be one more.
            assert hours * 60 / step_for(hours, most) + 1 <= most
