"""The board's answer to each path, without I/O.

An answer is a generator: it yields a read and receives the slot of that read. WSGI and ASGI run the
same answers.
"""

import math
import re
from collections.abc import Callable, Generator
from importlib.resources import files
from string import Template

from .. import sse
from ..errors import PresenceUnavailable, QueryError
from ..identity import known_kind, normalize_id
from ..parsers import format_duration
from ..rooms import Rooms
from ..settings import Settings
from ..stores import Sample
from ..svg import WIDTH
from . import history, reads
from .access import refusal
from .cache import Slot
from .history import ChartedHistory, EncodedHistory
from .messages import Request, Response, Watch, encoded, facts, iso, problem, text, to_json
from .reads import Announced, Dated, Read

_STREAM_HEADERS = tuple(sse.HEADERS.items())

Answer = Generator[Read, Slot, Response]

REVALIDATED = "private, no-cache"
NEVER_STORED = "no-store"  # for answers with ids
EMBEDDED = "public, max-age=3600"
DEFAULT_HOURS = 24
DAY = 24 * 60  # minutes
# A chart is drawn in few widths, in pixels, and a browser scales it to the width of the page.
MIN_WIDTH, MAX_WIDTH, WIDTH_STEP = 280, 1200, 40


class Board:
    """The answers of a site's board."""

    def __init__(
        self, settings: Settings, is_cursor: Callable[[str, str], bool] | None = None
    ) -> None:
        """`is_cursor` returns whether a kind has a cursor. None if no response can stay open."""
        self._settings, self._is_cursor = settings, is_cursor
        self._kinds = settings.kinds
        self._rooms = Rooms(settings.rooms)
        self._answers: dict[str, Callable[[Request], Answer]] = {
            # The page has relative links, so they are right wherever the site is mounted.
            "": self._page(settings.board_path.rpartition("/")[2] + "/"),
            "/": self._page(""),
            "/board.css": _constant("css", _file("board.css"), REVALIDATED),
            "/board.js": _constant("javascript", _file("board.js"), REVALIDATED),
            "/widget.js": _constant("javascript", _file("widget.js"), EMBEDDED),
            "/counts": self._counts,
            "/history": self._history,
            "/chart.svg": self._chart,
            "/peak": self._peak,
            "/online": self._with_token(self._online),
            "/last-seen": self._with_token(self._last_seen),
            "/events": self._with_token(self._events),
        }

    def below(self, path: str) -> str | None:
        """Return the rest of a path after the board's; None if the path is not the board's."""
        own = self._settings.board_path
        if path == own or path.startswith(f"{own}/"):
            return path[len(own) :]
        return None

    def answer(self, request: Request) -> Answer:
        """Return the response to a request; errors of the package become responses, too."""
        try:
            response = yield from self._answer(request)
        except PresenceUnavailable:
            # The reason may name hosts, and no reader can do anything about it.
            response = problem(503, "Redis does not answer", ("Retry-After", "2"))
        except QueryError as error:
            response = problem(400, str(error))
        return response.to(request)

    def _answer(self, request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            return problem(405, "only GET and HEAD are allowed", ("Allow", "GET, HEAD"))
        if request.path not in self._answers:
            return problem(404, "the board has no page at this path")
        return (yield from self._answers[request.path](request))

    def _with_token(self, answer: Callable[[Request], Answer]) -> Callable[[Request], Answer]:
        """Return the answer for readers who have the token, a refusal for others."""

        def checked(request: Request) -> Answer:
            token = self._settings.board_token
            if refused := refusal(token, request.header("authorization")):
                return refused
            return (yield from answer(request))

        return checked

    def _page(self, base: str) -> Callable[[Request], Answer]:
        """Return the page. Its script asks for the numbers and inserts them as text."""
        settings = self._settings
        values = {
            "base": base,
            "kinds": " ".join(self._kinds),
            "listed": " ".join(filter(self._is_listed, self._kinds)),
            "window": format_duration(settings.window),
            "live": " ".join(settings.events if self._is_cursor else ()),
            "names": "on" if settings.board_token else "off",
        }
        page = Template(_file("board.html").decode()).substitute(values)
        return _constant("html", page.encode(), REVALIDATED)

    def _counts(self, request: Request) -> Answer:
        path = request.parameter("room")
        if path is None:
            slot = yield Read(reads.counts)
            return facts({"counts": slot.result()}, REVALIDATED)
        if not self._settings.rooms:
            raise QueryError("this site has no rooms: PRESENCE_ROOMS is empty")
        # Rooms of other names are known to the site's code alone, so they are not public.
        room = self._rooms.name_of(path)
        if room is None:
            return facts({"room": None, "counts": {}}, REVALIDATED)
        slot = yield Read(reads.counts_in_room, (room,))
        return facts({"room": room, "counts": slot.result()}, REVALIDATED)

    def _history(self, request: Request) -> Answer:
        kind, hours = self._kind(request), self._hours(request)
        settings = self._settings
        slot = yield history.read_for(settings.prefix, kind, settings.history, hours)
        points: EncodedHistory = slot.result()
        return encoded(*points.last(hours), REVALIDATED)

    def _chart(self, request: Request) -> Answer:
        kind, hours = self._kind(request), self._hours(request)
        width = round(_number(request, "width", WIDTH, 1, 99999) / WIDTH_STEP) * WIDTH_STEP
        width = min(max(width, MIN_WIDTH), MAX_WIDTH)
        offset = _number(request, "offset", 0, 1 - DAY, DAY - 1)
        settings, colour = self._settings, self._kinds.index(kind)
        slot = yield history.chart_read_for(settings.prefix, kind, settings.history, hours)
        points: ChartedHistory = slot.result()
        return encoded(*points.last(hours, width, offset, colour), REVALIDATED, "image/svg+xml")

    def _peak(self, request: Request) -> Answer:
        kind = self._kind(request)
        slot = yield Read(reads.peak, (kind,), reads.SAMPLED)
        sample: Sample | None = slot.result()
        # A highest count of 0 is no peak.
        peak = {"at": iso(sample.at), "count": sample.count} if sample and sample.count else None
        return facts({"kind": kind, "peak": peak}, REVALIDATED)

    def _online(self, request: Request) -> Answer:
        kind = self._kind(request)
        slot = yield Read(reads.online, (kind,))
        read: Dated = slot.result()
        online = [{"id": each.id, "last_seen": iso(each.last_seen)} for each in read.reply]
        return facts({"kind": kind, "online": online}, NEVER_STORED, iso(read.now))

    def _last_seen(self, request: Request) -> Answer:
        kind = self._kind(request)
        ids = tuple(dict.fromkeys(filter(None, map(normalize_id, request.parameters("id")))))
        if not ids:
            raise QueryError("the parameter id is missing, as in last-seen?id=42")
        if len(ids) > 1:
            return (yield from self._last_seen_among(kind, ids))
        (id,) = ids
        has_times = self._settings.store_of(kind) == "sorted-set"
        slot = yield Read(reads.search, (kind, id, has_times))
        read: Dated = slot.result()
        is_online, last_seen = read.reply
        values = {"kind": kind, "id": id, "online": is_online, "last_seen": iso(last_seen)}
        return facts(values, NEVER_STORED, iso(read.now))

    def _last_seen_among(self, kind: str, ids: tuple[str, ...]) -> Answer:
        slot = yield Read(reads.last_seen_among, (kind, ids))
        read: Dated = slot.result()
        moments = {id: iso(moment) for id, moment in read.reply.items()}
        return facts({"kind": kind, "last_seen": moments}, NEVER_STORED, iso(read.now))

    def _events(self, request: Request) -> Answer:
        """Return a stream. It begins with who is online, or after the last event of the reader."""
        if self._is_cursor is None:
            return problem(
                501, "under WSGI, a worker cannot stay with a reader; ask online instead"
            )
        kind = self._kind(request)
        if kind not in self._settings.events:
            return problem(404, f"kind {kind!r} has no events; PRESENCE_EVENTS enables them")
        cursor = request.header("last-event-id") or ""
        if self._is_cursor(kind, cursor):
            return Response(200, _STREAM_HEADERS, b"", Watch(kind, cursor))
        slot = yield Read(reads.announced, (kind, self._settings.lag_seconds(kind)))
        read: Announced = slot.result()
        online = [{"id": each.id, "last_seen": iso(each.last_seen)} for each in read.reply]
        values = to_json({"kind": kind, "online": online, "now": iso(read.now)})
        head = f"event: list\nid: {read.cursor}\ndata: {values.decode()}\n\n"
        return Response(200, _STREAM_HEADERS, head.encode(), Watch(kind, read.cursor))

    def _hours(self, request: Request) -> int:
        """Return how many hours a history covers, at most as many as are stored."""
        hours = _number(request, "hours", DEFAULT_HOURS, 1, 999999)
        return min(hours, math.ceil(self._settings.history / 3600))

    def _kind(self, request: Request) -> str:
        return known_kind(request.parameter("kind") or self._kinds[0], self._kinds)

    def _is_listed(self, kind: str) -> bool:
        return self._settings.store_of(kind) != "hyperloglog"


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    """Return a whole number of the query. Raises `QueryError` if it is out of bounds."""
    value = request.parameter(name) or str(default)
    if not re.fullmatch("-?[0-9]{1,6}", value) or not least <= int(value) <= most:
        accepted = f"a whole number from {least} to {most}"
        raise QueryError(f"{name} is {value[:20]!r}: {accepted} is accepted")
    return int(value)


def _constant(type: str, content: bytes, cache: str) -> Callable[[Request], Answer]:
    """Return an answer that is always the same."""
    response = text(type, content, cache)

    def answer(request: Request) -> Answer:
        yield from ()
        return response

    return answer


def _file(name: str) -> bytes:
    return files(__package__).joinpath("static", name).read_bytes()
