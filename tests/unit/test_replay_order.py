"""Lines far ahead of their log are set aside; a log that really goes on there is read as it is."""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presence_middleware import Settings
from presence_middleware.replay import Logs, Moment, Replay
from presence_middleware.replay.combined import Line
from presence_middleware.replay.files import AHEAD, FOLLOWING, without_lines_ahead
from tests.support.log_lines import request_of

NOON = 1767614400  # 2026-01-05 12:00:00 UTC
DAY = 86400
FAR = NOON + 99 * 365 * DAY
TODAY = NOON + 1000 * DAY  # when the logs are read


def line_at(at: int) -> Line:
    return Line(at, request_of("192.0.2.7", "Firefox"))


def kept(times: Iterable[int], now: float = TODAY) -> tuple[list[int], int]:
    """Return the times of the lines that are kept, and how many are set aside."""
    aside: list[Line] = []
    lines = without_lines_ahead(map(line_at, times), aside.append, now)
    found = [each.at for each in lines]
    return found, len(aside)


def minutes(count: int, start: int = NOON) -> list[int]:
    return [start + 60 * number for number in range(count)]


@pytest.mark.parametrize("place", [0, 1, 5, 150, 299])
@pytest.mark.parametrize("far", [NOON + 400 * 60 + DAY, NOON + 365 * DAY, FAR])
def test_a_lone_line_far_ahead_is_set_aside(place: int, far: int) -> None:
    log = minutes(300)
    assert kept([*log[:place], far, *log[place:]]) == (log, 1)


def test_a_last_line_far_ahead_is_accepted_unless_it_is_in_the_future() -> None:
    log = [*minutes(300), TODAY]
    assert kept(log) == (log, 0)
    assert kept(log, now=TODAY - 2 * DAY) == (log[:-1], 1)
    assert kept([*minutes(300), *minutes(3, FAR)]) == (minutes(300), 3)


@pytest.mark.parametrize("burst", [2, 10, FOLLOWING // 2 - 1])
def test_a_burst_of_lines_far_ahead_is_set_aside(burst: int) -> None:
    log = minutes(300)
    assert kept([*log[:150], *minutes(burst, FAR), *log[150:]]) == (log, burst)


def test_lines_of_a_host_with_a_wrong_clock_are_set_aside() -> None:
    rng = random.Random(4)
    wrong = [rng.random() < 0.25 for _ in range(5000)]
    log = minutes(5000)
    mixed = [at + FAR * is_wrong for at, is_wrong in zip(log, wrong, strict=True)]
    right = [at for at, is_wrong in zip(log, wrong, strict=True) if not is_wrong]
    assert kept(mixed) == (right, sum(wrong))


@pytest.mark.parametrize("gap", [DAY + 60, 7 * DAY, 365 * DAY, 20 * 365 * DAY])
@pytest.mark.parametrize("after", [1, 2, 300])
def test_gaps_in_a_log_are_accepted(gap: int, after: int) -> None:
    log = [*minutes(300), *minutes(after, NOON + 300 * 60 + gap)]
    assert kept(log, now=max(log)) == (log, 0)


def test_late_lines_after_a_gap_do_not_undo_it() -> None:
    """Long downloads, for example, are logged by some servers when they end."""
    after = minutes(300, NOON + 30 * DAY)
    log = [*minutes(300), *after[:3], NOON, NOON + 60, *after[3:]]
    assert kept(log) == (log, 0)


def test_a_late_line_makes_no_other_line_doubtful() -> None:
    log = minutes(300)
    log.insert(200, NOON - 3 * DAY)
    read = 0

    def counted() -> Iterator[Line]:
        nonlocal read
        for at in log:
            read += 1
            yield line_at(at)

    lines = without_lines_ahead(counted(), lambda _: None, TODAY)
    for number, _ in enumerate(lines, 1):
        assert number < 200 or read == number


def test_a_log_with_a_line_a_month_is_accepted() -> None:
    log = [NOON + 30 * DAY * number for number in range(30)]
    assert kept(log) == (log, 0)


def test_a_line_ahead_of_a_log_with_a_line_a_month_is_set_aside() -> None:
    log = [NOON + 30 * DAY * number for number in range(30)]
    for place in range(31):
        assert kept([*log[:place], FAR, *log[place:]]) == (log, 1)


def test_a_log_that_begins_with_a_line_of_1970_is_read() -> None:
    log = [60, *minutes(300)]
    assert kept(log) == (log, 0)


def test_a_log_that_continues_in_the_future_is_accepted() -> None:
    """The clock of the reading machine may be wrong."""
    log = [*minutes(300), *minutes(300, FAR)]
    assert kept(log) == (log, 0)
    assert kept(minutes(3, FAR)) == (minutes(3, FAR), 0)


def test_the_first_lines_wait_for_a_hundred_others_at_most() -> None:
    read = 0

    def counted() -> Iterator[Line]:
        nonlocal read
        for at in [*minutes(300), *minutes(300, NOON + 30 * DAY)]:
            read += 1
            yield line_at(at)

    longest = 0
    lines = without_lines_ahead(counted(), lambda _: None, TODAY)
    for number, _ in enumerate(lines, 1):
        longest = max(longest, read - number)
    assert longest == FOLLOWING


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Return a log in order, with gaps, and the same one with lines far ahead in it."""
    steps = st.sampled_from([0, 1, 60, 3600, DAY, DAY + 1, 40 * DAY])
    log, now = [], NOON
    for step in draw(st.lists(steps, min_size=1, max_size=24)):
        now += step
        log.append(now)
    mixed = list(log)
    for place in draw(st.lists(st.integers(0, len(log)), max_size=len(log) // 3)):
        mixed.insert(place, FAR + draw(st.integers(0, 10 * DAY)))
    return log, mixed


@given(logs())
def test_a_log_is_read_as_if_lines_ahead_were_not_in_it(given: tuple[list[int], list[int]]) -> None:
    log, mixed = given
    found, aside = kept(mixed)
    assert found == log
    assert aside == len(mixed) - len(log)


def line(at: str, user: str) -> str:
    return f'192.0.2.7 - {user} [{at} +0000] "GET / HTTP/1.1" 200 1 "-" "Firefox"\n'


def test_each_log_is_checked_separately(tmp_path: Path) -> None:
    """Otherwise a line of the year 2125 would move the rest of its log behind all others."""
    one = [line(f"05/Jan/2026:12:{minute:02}:00", "ann") for minute in range(0, 60, 2)]
    other = [line(f"05/Jan/2026:12:{minute:02}:00", "bob") for minute in range(1, 60, 2)]
    one.insert(10, line("05/Jan/2125:12:00:00", "eve"))
    for name, lines in (("one", one), ("other", other)):
        (tmp_path / name).write_text("".join(lines))
    moments: list[Moment] = []
    site = Replay(Settings.from_env({}, window="2m"), moments.append)
    logs = Logs([str(tmp_path / "one"), str(tmp_path / "other")])
    for each in logs:
        site.add(each)
    site.timeline.finish()
    assert (logs.parser.lines, logs.ahead, site.timeline.late) == (61, 1, 0)
    assert [moment.at for moment in moments] == [NOON + 60 * minute for minute in range(60)]
    assert [moment.counts[0] for moment in moments] == [1] + [2] * 59
    assert AHEAD == DAY
