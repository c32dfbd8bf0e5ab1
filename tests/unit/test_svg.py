"""The chart that the board and `presence replay` draw: scales, gaps, legend, and odd input."""

from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from presence_middleware.svg import Point, Series, draw

NOON = 1767614400  # 2026-01-05 12:00:00 UTC


def line(*counts: int, kind: str = "user", colour: int = 0) -> Series:
    points = [(NOON + 60 * minute, count) for minute, count in enumerate(counts)]
    return Series(kind, points, max(points, key=lambda point: point[1]), colour)


def parsed(*lines: Series, minutes: int = 60, gap: int = 60, **others: int) -> ET.Element:
    return ET.fromstring(draw(lines, NOON, NOON + 60 * minutes, gap=gap, **others))


def texts(chart: ET.Element, name: str) -> list[str]:
    found = (each for each in chart.iter() if name in (each.get("class") or "").split())
    return ["".join(each.itertext()) for each in found]


def elements(chart: ET.Element, name: str) -> list[ET.Element]:
    return [each for each in chart.iter() if each.tag.endswith(f"}}{name}")]


def paths(chart: ET.Element, name: str) -> list[str]:
    return [each.get("d") or "" for each in chart.iter() if each.get("class") == name]


@pytest.mark.parametrize(
    ("most", "scale"),
    [
        (1, ["0", "1"]),
        (6, ["0", "2", "4", "6"]),
        (1234, ["0", "500", "1,000", "1,500"]),
        (10**9, ["0", *(f"{n}00,000,000" for n in (2, 4, 6, 8)), "1,000,000,000"]),
    ],
)
def test_counts_beside_are_round_and_reach_the_highest(most: int, scale: list[str]) -> None:
    assert texts(parsed(line(most)), "axis")[: len(scale)] == scale


@pytest.mark.parametrize(
    ("minutes", "offset", "times"),
    [
        (60, 0, ["12:00", "12:10", "12:20", "12:30", "12:40", "12:50", "13:00"]),
        (60, 345, ["17:50", "18:00", "18:10", "18:20", "18:30", "18:40"]),
        (1440, -300, ["09:00", "12:00", "15:00", "18:00", "21:00", "06 Jan", "03:00", "06:00"]),
        (30 * 1440, 0, ["07 Jan", "10 Jan", "13 Jan", "16 Jan", "19 Jan", "03 Feb"]),
    ],
)
def test_times_below_are_round_for_the_reader(minutes: int, offset: int, times: list[str]) -> None:
    shown = texts(parsed(line(1), minutes=minutes, offset=offset), "axis")[2:]
    assert set(times) <= set(shown)
    assert len(shown) <= 13
    assert shown[-1] == {0: "UTC", 345: "UTC+05:45", -300: "UTC-05:00"}[offset]


@pytest.mark.parametrize("width", [280, 1200])
@pytest.mark.parametrize("minutes", [1, 59, 1440, 3660 * 1440])
def test_nothing_is_drawn_outside_the_picture(width: int, minutes: int) -> None:
    chart = parsed(line(0, 10**6, 3), minutes=minutes, width=width, gap=10**9)
    _, _, right, bottom = map(int, (chart.get("viewBox") or "").split())
    assert (right, bottom >= 230) == (width, True)
    for each in chart.iter():
        x, y = (float(each.get(name) or each.get(f"c{name}") or 1) for name in "xy")
        assert 0 <= x <= right
        assert 0 <= y <= bottom
    labels = [each for each in chart.iter() if each.get("text-anchor") == "middle"]
    places = sorted(float(each.get("x") or 0) for each in labels if "axis" in str(each.attrib))
    assert all(b - a >= 60 for a, b in pairwise(places))


def test_a_line_has_a_gap_where_samples_are_missing() -> None:
    points: list[Point] = [(NOON, 1), (NOON + 60, 2), (NOON + 300, 1), (NOON + 900, 2)]
    one = Series("user", points, points[1])
    for gap, runs in ((60, 3), (240, 2), (600, 1)):
        chart = parsed(one, gap=gap)
        (drawn,) = paths(chart, "line")
        assert drawn.count("M") == len(paths(chart, "area")) == runs
    assert paths(parsed(one, gap=60), "line")[0].endswith("h0"), "a single point is a dot"


@pytest.mark.parametrize(("most", "points"), [(9, 97), (100, 97), (101, 1440)])
def test_a_day_of_small_numbers_is_a_line_of_few_points(most: int, points: int) -> None:
    """The highest of each quarter of an hour, and the last: no spike for each visitor."""
    counts = [most - minute % 7 % 3 for minute in range(1440)]
    chart = parsed(line(*counts), minutes=1440)
    (drawn,) = paths(chart, "line")
    assert drawn.count("L") + 1 == points
    (peak,) = elements(chart, "circle")
    assert f"M{peak.get('cx')} {peak.get('cy')}L" in drawn
    assert drawn.count(f" {peak.get('cy')}") == min(points - 1, counts.count(most))


def test_several_lines_have_a_legend_and_a_single_line_has_a_peak() -> None:
    both = parsed(line(1, 7), line(5, kind="guest", colour=1), Series("bot", [], None))
    assert paths(both, "area") == texts(both, "label") == []
    assert len(paths(both, "key")) == 2
    assert both.get("aria-label") == (
        "Online. user: 7 at most, 05 Jan 2026 12:01; guest: 5 at most, 05 Jan 2026 12:00"
    )
    assert len({key.split()[1] for key in paths(both, "key")}) == 1, "side by side"
    long = parsed(line(1, 7, kind="customer-relationship-managers"), line(5))
    assert len({key.split()[1] for key in paths(long, "key")}) == 2, "one below the other"
    single = parsed(line(1, 7))
    assert texts(single, "label") == ["7 at 12:01"]
    assert paths(single, "key") == []


@pytest.mark.parametrize(("at", "anchor"), [(0, "start"), (30, "middle"), (59, "end")])
def test_the_label_of_a_peak_at_an_edge_stays_in_the_picture(at: int, anchor: str) -> None:
    chart = parsed(line(*[1] * at, 7, *[1] * (59 - at)))
    (label,) = (each for each in chart.iter() if each.get("class") == "label")
    assert label.get("text-anchor") == anchor


def test_without_points_there_is_an_empty_chart() -> None:
    for lines in ([], [Series("user", [], None)]):
        chart = parsed(*lines)
        assert chart.get("aria-label") == "Online. Nobody"
        assert paths(chart, "line") == []
    zero = Series("user", [(NOON, 0)], None)
    assert len(paths(parsed(zero), "line")) == 1
    assert texts(parsed(zero, zero), "axis")[:2] == ["0", "1"]


def test_odd_kinds_are_drawn_as_text() -> None:
    odd = '<b a="&amp;">'
    chart = parsed(line(1, kind=odd), line(2, kind=odd))
    assert odd in (chart.get("aria-label") or "")
    assert elements(chart, "b") == []
