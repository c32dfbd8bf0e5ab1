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


LOG = minutes(300)
MONTHLY = [NOON + 30 * DAY * number for number in range(30)]
AFTER = minutes(300, NOON + 30 * DAY)
IS_WRONG = [random.Random(seed).random() < 0.25 for seed in range(1000)]
# Lines, those of them that are kept, and when they are read.
LOGS: list[tuple[list[int], list[int], float]] = [
    # Lone lines far ahead, a burst of them, those of a host with a wrong clock.
    *(
        ([*LOG[:place], far, *LOG[place:]], LOG, TODAY)
        for place in (0, 1, 150, 299)
        for far in (NOON + 400 * 60 + DAY, NOON + 365 * DAY, FAR)
    ),
    *(
        ([*LOG[:150], *minutes(burst, FAR), *LOG[150:]], LOG, TODAY)
        for burst in (2, FOLLOWING // 2 - 1)
    ),
    (
        [at + FAR * wrong for at, wrong in zip(minutes(1000), IS_WRONG, strict=True)],
        [at for at, wrong in zip(minutes(1000), IS_WRONG, strict=True) if not wrong],
        TODAY,
    ),
    *(([*MONTHLY[:place], FAR, *MONTHLY[place:]], MONTHLY, TODAY) for place in (0, 1, 29, 30)),
    # The last lines are accepted unless they are in the future.
    ([*LOG, TODAY], [*LOG, TODAY], TODAY),
    ([*LOG, TODAY], LOG, TODAY - 2 * DAY),
    ([*LOG, *minutes(3, FAR)], LOG, TODAY),
    *(
        (log, log, TODAY)
        for log in (
            MONTHLY,
            [60, *LOG],  # a line of 1970
            # Long downloads, for example, are logged by some servers when they end.
            [*LOG, *AFTER[:3], NOON, NOON + 60, *AFTER[3:]],
            # The clock of the reading machine may be wrong.
            [*LOG, *minutes(300, FAR)],
            minutes(3, FAR),
        )
    ),
    *(
        ([*LOG, *later], [*LOG, *later], later[-1])
        for gap in (DAY + 60, 20 * 365 * DAY)
        for later in (minutes(1, LOG[-1] + gap), minutes(300, LOG[-1] + gap))
    ),
]


@pytest.mark.parametrize(("lines", "log", "now"), LOGS)
def test_lines_far_ahead_are_set_aside_and_gaps_accepted(
    lines: list[int], log: list[int], now: float
) -> None:
    assert kept(lines, now) == (log, len(lines) - len(log))


def waiting(log: list[int]) -> list[int]:
    """Return how many lines were read beyond each line when it was returned."""
    read = 0

    def counted() -> Iterator[Line]:
        nonlocal read
        for at in log:
            read += 1
            yield line_at(at)

    lines = without_lines_ahead(counted(), lambda _: None, TODAY)
    return [read - number for number, _ in enumerate(lines, 1)]


def test_only_lines_before_a_gap_wait_and_for_a_hundred_others_at_most() -> None:
    assert max(waiting([*LOG, *AFTER])) == FOLLOWING
    late = [*LOG[:200], NOON - 3 * DAY, *LOG[200:]]
    assert set(waiting(late)[199:]) == {0}


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
