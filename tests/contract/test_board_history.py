"""The history of the board: few points, every peak among them, and one read for all readers."""

import random
import re
from datetime import datetime
from typing import Any
from xml.etree import ElementTree as ET

import httpx
import pytest

from presence_middleware import Presence, Settings, wsgi
from presence_middleware.backend import Backend
from presence_middleware.board.history import (
    MAX_CHART_POINTS,
    MAX_POINTS,
    POINTS_A_TRIP,
    HighestMinutes,
    as_chart,
    as_json,
    read_history,
    step_for,
)
from presence_middleware.stores import Batch, Command, Plan, keys
from presence_middleware.stores.history import MINUTES_A_DAY
from presence_middleware.svg import WIDTH
from tests.support.backends import Server, client_of
from tests.support.timed_site import NOON, Clock

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


def ask(settings: Settings, path: str, clock: Clock | None = None) -> httpx.Response:
    """Return the answer of a new process."""
    app = wsgi.PresenceMiddleware(lambda *_: [], settings=settings, clock=clock or Clock(NOON))
    with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://site") as client:
        answer = client.get(f"/presence{path}")
    app.recorder.close()
    assert answer.status_code == 200, answer.text
    return answer


def shown(settings: Settings, hours: int, clock: Clock | None = None) -> list[tuple[int, int]]:
    return points(ask(settings, f"/history?hours={hours}", clock).json())


@pytest.mark.parametrize(
    ("days", "hours", "step"),
    [
        *[(2, 24, 1), (2, 1, 1), (3, 48, 2), (7, 168, 10), (7, 100, 5), (MONTHS, MONTHS * 24, 120)],
        pytest.param(3660, 3660 * 24, 4320, marks=pytest.mark.slow),  # steps of several days
    ],
)
def test_a_history_has_every_peak_in_at_most_1500_points(
    valkey: Server, prefix: str, days: int, hours: int, step: int
) -> None:
    site, samples = settings(valkey.url, prefix, days), walk(days)
    write(site, samples)
    answer = ask(site, f"/history?hours={hours}").json()
    assert answer["step"] == step * 60
    found, expected = points(answer), thinned(samples, hours)
    # The first step may be cut off where the history ends.
    assert found == expected[-len(found) :]
    assert len(expected) - len(found) <= 1
    assert 0.5 * hours * 60 / step < len(found) <= MAX_POINTS
    oldest = MINUTE - hours * 60 + 2 * step
    assert max(count for _, count in found) >= max(n for at, n in samples.items() if at > oldest)


def test_expired_and_future_minutes_are_not_shown(valkey: Server, prefix: str) -> None:
    site = settings(valkey.url, prefix, 1.5 / 24)
    samples = {MINUTE - 90: 9, MINUTE - 89: 1, MINUTE: 2, MINUTE + 1: 8}
    write(site, samples)
    assert shown(site, 24) == [(MINUTE - 89, 1), (MINUTE, 2)]
    assert shown(site, 24, Clock(NOON + 90 * 60)) == [(MINUTE + 1, 8)]


def test_every_backend_has_a_history(backend_url: str, prefix: str) -> None:
    site = settings(backend_url, prefix, 7)
    backend = Backend(site)
    for minute, count in {MINUTE - 1500: 4, MINUTE - 721: 3, MINUTE - 1: 0, MINUTE: 5}.items():
        backend.driver.run(backend.history.record(minute, {"user": count, "guest": 1}))
    day = [(MINUTE - 721, 3), (MINUTE - 1, 0), (MINUTE, 5)]
    assert shown(site, 24) == day
    # In steps of 10 minutes, the last two minutes are one point.
    assert shown(site, 168) == [
        (MINUTE - 1500, 4),
        (MINUTE - 721, 3),
        (MINUTE - 1, 0),
        day[2],
    ]


@pytest.mark.parametrize("hours", [24, 168, 1600 * 24])
def test_a_round_trip_is_small(valkey: Server, prefix: str, hours: int) -> None:
    """An event loop sends one and parses its replies without serving anybody else meanwhile."""
    site = settings(valkey.url, prefix, 3660)
    write(site, walk(9))
    _, trips = read(site, step_for(hours, MAX_POINTS))
    assert max(len(trip) for trip in trips) <= 16
    points = [sum(len(reply.split()) // 2 for _, reply in trip) for trip in trips]
    assert max(points) <= POINTS_A_TRIP
    assert 0 < sum(points) <= MAX_POINTS


Trip = list[tuple[Command, bytes]]
"""The commands of a round trip that read samples, with their replies."""


def read(settings: Settings, step: int) -> tuple[HighestMinutes, list[Trip]]:
    """Read the history of users, and return also the round trips."""
    presence, trips = Presence(settings, clock=Clock(NOON)), list[Trip]()

    def observed(plan: Plan[HighestMinutes]) -> Plan[HighestMinutes]:
        replies: Any = None
        while True:
            try:
                batch: Batch = plan.send(replies)
            except StopIteration as end:
                found: HighestMinutes = end.value
                return found
            replies = yield batch
            if batch.commands[0][0] == "EVAL":
                trips.append(list(zip(batch.commands, replies, strict=True)))

    ask = presence.backend.queries
    plan = read_history(ask, "user", step)
    return presence.run(observed(plan)), trips


@pytest.mark.parametrize("hours", [1, 24, 168, MONTHS * 24])
def test_a_chart_has_the_peak_and_at_most_500_points(
    valkey: Server, prefix: str, hours: int
) -> None:
    site, samples = settings(valkey.url, prefix, MONTHS), walk(hours // 24 + 2)
    spike = MINUTE - hours * 30
    samples[spike] = 123456
    write(site, samples)
    chart = ET.fromstring(ask(site, f"/chart.svg?hours={hours}").content)
    (peak,) = (each for each in chart.iter() if each.get("class") == "peak")
    assert (peak.get("data-at"), peak.get("data-count")) == (str(spike * 60), "123456")
    lines = [each.get("d") or "" for each in chart.iter() if each.get("class") == "line"]
    places = [float(place.split()[0]) for place in re.split("[ML]", lines[0]) if place]
    assert places == sorted(places)
    assert min(50, 0.2 * MAX_CHART_POINTS) <= len(places) <= MAX_CHART_POINTS
    # The line covers the whole width, but for a gap at an end.
    assert places[0] < 0.1 * WIDTH
    assert places[-1] > 0.95 * WIDTH


def test_any_number_of_hours_has_few_points_and_readers_share_answers() -> None:
    for hours in range(1, 3660 * 24, 5):
        for most in (1500, 500):
            # The first and the last step may be cut, so there may be one more.
            assert hours * 60 / step_for(hours, most) + 1 <= most
    history = HighestMinutes("user", 1, MINUTE * 60, [(MINUTE * 60, 3, "12:00")])
    assert as_json(history, 24) is as_json(history, 24)
    assert as_chart(history, 24, 1200, 0, 0) is as_chart(history, 24, 1200, 0, 0)
