"""Online counts for each minute of a log: they match a brute-force count in bounded memory."""

import itertools
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presence_middleware import Settings
from presence_middleware.identity import resolver
from presence_middleware.replay import Moment, Replay, Series, Summary
from presence_middleware.replay.combined import Line
from presence_middleware.replay.timeline import MAX_QUIET, Timeline
from tests.support.log_lines import request_of
from tests.support.reference import Reference

NOON = 1767614400  # 2026-01-05 12:00:00 UTC
Seen = tuple[int, str]  # when, who


def told(seen: Iterable[Seen], window: float) -> list[Moment]:
    """The minutes of some sightings of users, in the order of a log."""
    moments: list[Moment] = []
    timeline = Timeline(("user",), window, moments.append)
    for at, id in seen:
        timeline.add(at, ("user", id) if id else None)
    timeline.finish()
    assert timeline.late == 0
    return moments


def counted(seen: list[Seen], window: float) -> list[Moment]:
    """The same by brute force: from the first full minute after a line to that after the last."""
    first, last = (-(-at // 60) for at in (min(seen)[0], max(seen)[0]))
    reference, coming, moments = Reference(), sorted(seen), []
    for minute in range(first, last + 1):
        while coming and coming[0][0] <= minute * 60:
            at, id = coming.pop(0)
            reference.saw(id, at)
        online = {id for _, id in reference.online(minute * 60, window)} - {""}
        moments.append(Moment(minute * 60, (len(online),)))
    return moments


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Seen], float]:
    """Lines of a few people, in any order within a window."""
    window = draw(st.sampled_from([30, 60, 61, 90.5, 600, 3600]))
    seconds = st.sampled_from([0, 1, 29, 30, 31, 59, 60, 61, 120, 599, 600, 601, 3600])
    line = st.tuples(seconds, st.floats(0, 1), st.sampled_from(["ann", "bob", "eve", ""]))
    newest, seen = NOON, []
    for later, back, id in draw(st.lists(line, min_size=1, max_size=40)):
        newest += later
        seen.append((newest - int(back * window), id))
    return seen, window


@given(logs())
def test_every_minute_matches_a_brute_force_count(log: tuple[list[Seen], float]) -> None:
    assert told(*log) == counted(*log)


def test_lines_more_than_a_window_late_do_not_count() -> None:
    moments: list[Moment] = []
    timeline = Timeline(("user",), 600, moments.append)
    for at in (NOON + 3600, NOON + 3000, NOON + 2939):
        timeline.add(at, ("user", str(at)))
    timeline.finish()
    assert timeline.late == 1
    assert moments[0] == Moment(NOON + 3000, (1,))
    assert max(moment.counts for moment in moments) == (1,)


def test_a_day_without_anybody_is_a_gap() -> None:
    """Otherwise a line from an unset clock would create every minute since 1970."""
    moments = told([(60, "ann"), (NOON, "ann"), (NOON + 86400, "ann")], 600)
    assert len(moments) == (10 + MAX_QUIET) + (1440 + 1)
    assert [moment for moment in moments if any(moment.counts)][10] == Moment(NOON, (1,))


def synthetic(lines: int) -> Iterable[Line]:
    """Thirty a minute; of each ten, nine come back, and there is always somebody new."""
    for number in range(lines):
        person = number if number % 10 == 0 else number % 997
        address = f"10.{person >> 16 & 255}.{person >> 8 & 255}.{person & 255}"
        agent = f"Browser/{person % 50}"
        yield Line(NOON + number * 2, request_of(address, agent))


def highest_memory(lines: int) -> int:
    settings = Settings.from_env({}, window="1m")
    summary = Summary(settings.kinds)
    summary.series = Series(most=100)
    site = Replay(settings, summary.add)
    tracemalloc.start()
    for request in synthetic(lines):
        site.add(request)
    site.finish()
    highest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(summary.series.points) <= 100
    return highest


@pytest.mark.slow
def test_memory_does_not_grow_with_the_length_of_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolver, "REMEMBERED", 500)  # of those before, so many; also on a site
    short, long = highest_memory(6_000), highest_memory(60_000)
    # Python keeps up to 2,000 tuples of each length, of 64 bytes and more, to use them again.
    assert long < short * 1.1 + 150_000, (short, long)


def test_too_many_guests_of_an_address_are_counted_apart() -> None:
    moments: list[Moment] = []
    site = Replay(Settings.from_env({}), moments.append)
    for number in range(150):
        site.add(Line(NOON, request_of("192.0.2.7", f"Browser/{number}")))
    site.finish()
    assert moments == [Moment(NOON, (0, 100, 0))]
    assert site.refused == 50


def test_a_long_series_keeps_the_highest_of_each_step() -> None:
    series = Series(most=8)
    for minute in range(100):
        series.add(Moment(NOON + minute * 60, (minute % 37, 1)))
    assert series.step == 16 * 60
    assert [point.at % series.step for point in series.points] == [0] * len(series.points)
    assert max(point.counts for point in series.points) == (36, 1)
    assert series.points[-1] == Moment((NOON + 99 * 60) // 960 * 960, (25, 1))
    steps = {b.at - a.at for a, b in itertools.pairwise(series.points)}
    assert steps == {series.step}
