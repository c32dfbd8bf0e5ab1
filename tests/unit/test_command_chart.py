"""The chart of the `presence` command: a picture of any size that shows the history."""

from datetime import UTC, datetime, timedelta
from io import StringIO
from unittest.mock import Mock

from rich.console import Console

from presence_middleware import PresenceUnavailable, Sample
from presence_middleware.cli.context import Chart
from presence_middleware.cli.live import Screen

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def minutes(*counts: int | None) -> list[Sample]:
    """One a minute until now; none where there is no count."""
    first = NOW - timedelta(minutes=len(counts))
    return [Sample(first + timedelta(minutes=n), c) for n, c in enumerate(counts) if c is not None]


def since(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def chart(samples: list[Sample], length: float, width: int, height: int) -> list[str]:
    return Chart(samples, since(length), NOW, height).lines(width)


def bars(lines: list[str]) -> list[str]:
    return [line.partition("│")[2] for line in lines if "│" in line]


def test_bars_are_as_high_as_the_counts_and_gaps_are_marked() -> None:
    assert bars(chart(minutes(8, 4, 1, 0), 4, 7, 5)) == ["█   ", "██▂ "]
    assert bars(chart(minutes(8, None, None, 2), 4, 7, 4)) == ["█··▂"]
    assert bars(chart(minutes(10**6, 1), 2, 11, 4)) == ["█▁"], "one is not nobody"
    assert bars(chart([], 4, 7, 5)) == ["    ", "····"]
    older, newest = Sample(since(3), 9), Sample(NOW, 2)
    assert bars(chart([older, *minutes(8, 4), newest], 2, 7, 4)) == ["██▄▄"]


def test_the_peak_is_marked_with_its_count_and_time() -> None:
    early = chart(minutes(*range(10, 0, -1)), 10, 60, 6)[0]
    assert early.split() == ["▼", "10", "at", f"{local(since(10)):%H:%M}"]
    late = chart(minutes(*range(1, 10)), 9, 60, 6)[0]
    assert late.split() == ["9", "at", f"{local(NOW - timedelta(minutes=1)):%H:%M:%S}", "▼"]
    assert chart(minutes(0, 0), 2, 60, 6)[0].strip() == ""


def local(moment: datetime) -> datetime:
    return moment.astimezone()


def test_the_chart_fits_any_size() -> None:
    samples = minutes(*range(120))
    for width in (1, 2, 5, 8, 30, 200):
        for height in (1, 4, 50):
            drawn = chart(samples, 120, width, height)
            assert len(drawn) == max(4, height)
            assert {len(line) for line in drawn[1:-1]} == {max(6, width)}
            assert max(map(len, drawn)) == max(6, width)


def watched(*counts: int | None) -> tuple[Screen, Mock]:
    """A screen of the last hour of a site with a history, and its reader."""
    reader = Mock()
    reader.counts.return_value = {"user": 1}
    reader.peak.return_value = None
    reader.history.return_value = minutes(*counts)
    return Screen(reader, None, "user", 1), reader


def test_an_outage_has_lasted_since_it_began() -> None:
    screen, reader = watched()
    reader.counts.side_effect = PresenceUnavailable("Redis did not answer")
    for minute in range(2):
        screen.update(NOW + timedelta(minutes=minute))
    terminal = Console(file=StringIO(), width=100)
    with terminal.capture() as shown:
        terminal.print(screen)
    assert f"no answer since {NOW.astimezone():%H:%M:%S}: Redis did not" in shown.get()


def test_a_long_watch_keeps_a_bounded_number_of_samples_and_all_peaks() -> None:
    screen, reader = watched()
    for second in range(3 * 3600):
        reader.counts.return_value = {"user": 99 if second == 10000 else 1}
        screen.update(NOW + timedelta(seconds=second))
    samples = screen.chart(8).samples
    assert len(samples) == 1000
    assert max(sample.count for sample in samples) == 99
    assert samples[-1].at - samples[0].at > timedelta(minutes=59)


def test_the_chart_begins_at_the_first_available_sample() -> None:
    for counts, length in (((), 1), (range(20), 20), (range(90), 60)):
        screen, _ = watched(*counts)
        screen.update(NOW)
        drawn = screen.chart(8)
        assert (drawn.since, drawn.until) == (since(length), NOW)
