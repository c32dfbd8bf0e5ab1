"""A chart in block characters, for a terminal."""

from collections.abc import Iterator, Sequence

from .timeline import Moment

EIGHTHS = " ▁▂▃▄▅▆▇█"


def columns(points: Sequence[Moment], step: int, place: int, width: int) -> list[int]:
    """The most of a kind in each column; none in a gap. `place` is that of the kind."""
    found = [0] * width
    first = points[0].at
    span = points[-1].at - first + step
    for point in points:
        column = (point.at - first) * width // span
        for each in range(column, max(column + 1, (point.at + step - first) * width // span)):
            found[each] = max(found[each], point.counts[place])
    return found


def rows(counts: Sequence[int], height: int) -> Iterator[str]:
    """Lines of blocks, the highest first; who is there at all shows at least as the thinnest."""
    most = max(counts)
    levels = [-(-count * height * 8 // most) if most else 0 for count in counts]
    for row in reversed(range(height)):
        yield "".join(EIGHTHS[min(8, max(0, level - row * 8))] for level in levels)
