"""The board's answer to each path, without I/O, for WSGI and ASGI."""

import hmac
import math
import re
from base64 import b64decode
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.resources import files
from operator import itemgetter
from string import Template
from typing import Any, NamedTuple
from wsgiref.types import StartResponse, WSGIEnvironment

from .. import sse
from ..backend import Backend
from ..connections.loops import outside_loop
from ..errors import QueryError
from ..events.streams import cursor_of
from ..identity.ids import normalize_id
from ..parsers import format_duration
from ..queries import Queries
from ..request import Request, WsgiRequest
from ..stores import Batch, Plan, Sighting, keys, moment_of
from ..stores.history import MINUTES_A_DAY
from ..stores.plan import COMMANDS_PER_TRIP, chunks, decoded
from ..svg import STYLE, WIDTH, Series, draw
from . import Query, Response, content, facts, parameters, problem
from .cache import Cache, SharedRead

_STREAM_HEADERS = tuple(sse.HEADERS.items())

REVALIDATED = "private, no-cache"
NEVER_STORED = "no-store"  # for answers with ids
EMBEDDED = "public, max-age=3600"
SCRIPT = "text/javascript; charset=utf-8"
NEED_TOKEN = frozenset({"/online", "/last-seen", "/events"})
REALM = 'realm="presence"'
DEFAULT_HOURS = 24
MAX_LISTED = 100  # ids of a kind
SAMPLED = 10.0  # seconds that a peak is shared, because it changes once a minute at most
MIN_WIDTH, MAX_WIDTH = 280, 1200  # pixels of a chart, which a browser scales to the page
MAX_POINTS = 1500  # of a history as JSON
MAX_CHART_POINTS = 500  # of a chart: a point for each two pixels, drawn in half a millisecond
# In minutes. Either they divide a day or a day divides them, so each begins where a day does. The
# last is for charts of the longest history that can be stored, which is ten years.
STEPS = (1, 2, 3, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 4320, 11520)
SHARED = 10.0  # cache time in seconds for each minute of a step
MIN_GAP = 5  # minutes without samples that interrupt the line of a chart
_HIGHEST = files(__package__).joinpath("highest.lua").read_text("utf-8")


class Board:
    """The answers of a site's board."""

    def __init__(self, backend: Backend, *, can_follow: bool = False) -> None:
        """Serve the board of a site. With `can_follow`, responses may stay open for events."""
        self._backend, self._settings, self._ask = backend, backend.settings, backend.queries
        self._cache, self._can_follow = Cache(), can_follow
        self._kinds, self._public_kinds = self._settings.kinds, self._settings.public_kinds
        self._hidden_kinds = frozenset(self._kinds) - frozenset(self._public_kinds)
        own, style = self._settings.board_path, _file("board.css") + STYLE.encode()
        # The script contains its path, to find the app's of a page.
        widget = _file("widget.js", own=f"{own}/widget.js", first=self._kinds[0])
        self._answers: dict[str, Response | Callable[[Query], Response | SharedRead]] = {
            # The page has relative links, so they are right wherever the site is mounted.
            "": self._page(own.rpartition("/")[2] + "/"),
            "/": self._page(""),
            "/board.css": content("text/css; charset=utf-8", style, REVALIDATED),
            "/board.js": content(SCRIPT, _file("board.js"), REVALIDATED),
            "/widget.js": content(SCRIPT, widget, EMBEDDED),
            "/counts": self._counts,
            "/history": self._history,
            "/chart.svg": partial(self._history, is_chart=True),
            "/peak": partial(self._of_kind, self._peak, seconds=SAMPLED),
            "/active": partial(self._of_kind, self._active, seconds=SAMPLED),
            "/online": partial(self._of_kind, self._online),
            "/last-seen": self._last_seen,
            "/events": self._events,
        }

    def receive(self, path: str, state: Any) -> Any:
        """Return this board for its paths, and None for others."""
        return None if self.below(path) is None else self

    def wsgi(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        """Answer a request, as a WSGI app."""
        return self.respond(WsgiRequest(environ)).wsgi(environ, start_response)

    def below(self, path: str) -> str | None:
        """Return the rest of a path after the board's; None if the path is not the board's."""
        own = self._settings.board_path
        return path[len(own) :] if path == own or path.startswith(f"{own}/") else None

    def respond(self, request: Request) -> Response:
        """Return the response to send. This may wait for Redis."""
        answer = self.answer(request)
        if isinstance(answer, SharedRead):
            answer = self._cache.get(answer, self._backend.driver.run)
        return answer.to(request)

    async def respond_beside_loop(self, request: Request) -> Response:
        """Return the response to send. Many readers who wait for Redis delay no handler."""
        return await outside_loop(self.respond, request, use="board")

    def answer(self, request: Request) -> Response | SharedRead:
        """Return the response to a request, or the read that it needs."""
        if request.method not in ("GET", "HEAD"):
            return problem(405, "only GET and HEAD are allowed", ("Allow", "GET, HEAD"))
        path = self.below(request.app_path) or ""
        answer = self._answers.get(path)
        if answer is None:
            return problem(404, "the board has no page at this path")
        if isinstance(answer, Response):
            return answer
        try:
            query = parameters(request)
            if path in NEED_TOKEN or _first(query, "kind") in self._hidden_kinds:
                token, given = self._settings.board_token, request.header("authorization")
                if refused := refusal(token, given):
                    return refused
            # A browser sends its place in the events as a header.
            query["after"] = [request.header("last-event-id") or ""]
            return answer(query)
        except QueryError as error:
            return problem(400, str(error))

    def _page(self, base: str) -> Response:
        """Return the page. Its script asks for the numbers and inserts them as text."""
        settings = self._settings
        listed = [kind for kind in self._kinds if settings.store_of(kind) != "hyperloglog"]
        values = {
            "base": base,
            "kinds": " ".join(self._public_kinds),
            "listed": " ".join(listed),
            "window": format_duration(settings.window),
            "live": " ".join(settings.events if self._can_follow else ()),
            "names": "on" if settings.board_token and listed else "off",
        }
        return content("text/html; charset=utf-8", _file("board.html", **values), REVALIDATED)

    def _counts(self, query: Query) -> Response | SharedRead:
        path, room = _first(query, "room"), None
        if path is not None:
            if self._ask.rooms is None:
                raise QueryError("this site has no rooms: PRESENCE_ROOMS is empty")
            # Rooms of other names are known to the site's code alone, so they are not public.
            room = self._ask.rooms.name_of(path)
            if room is None:
                return facts({"room": None, "counts": {}}, REVALIDATED)

        def read() -> Plan[Response]:
            counts = yield from self._ask.counts(room=room)
            named = {} if room is None else {"room": room}
            public = {kind: counts[kind] for kind in self._public_kinds if kind in counts}
            return facts({**named, "counts": public}, REVALIDATED)

        topic = "counts" if room is None else "rooms"
        return SharedRead(topic, (room,), read(), is_bounded=True)

    def _history(self, query: Query, *, is_chart: bool = False) -> SharedRead:
        """Return the read of a history, as JSON or as a chart.

        All answers with the same step share a read, so readers cannot cause more reads than there
        are steps.
        """
        kind, stored = self._kind(query), math.ceil(self._settings.history / 3600)
        hours = min(_number(query, "hours", DEFAULT_HOURS, 1, 999999), stored)
        most, finish = MAX_POINTS, partial(as_json, hours=hours)
        if is_chart:
            width = min(max(_number(query, "width", WIDTH, 1, 99999), MIN_WIDTH), MAX_WIDTH)
            offset = _number(query, "offset", 0, 1 - MINUTES_A_DAY, MINUTES_A_DAY - 1)
            colour = self._kinds.index(kind)
            most = MAX_CHART_POINTS
            finish = partial(as_chart, hours=hours, width=width, offset=offset, colour=colour)
        step = step_for(hours, most)
        plan = read_history(self._ask, kind, step)
        return SharedRead("history", (kind, step), plan, SHARED * step, finish)

    def _of_kind(
        self, read: Callable[[str], Plan[Response]], query: Query, seconds: float = 1.0
    ) -> SharedRead:
        """Return the read of a response that depends on nothing but the kind."""
        kind = self._kind(query)
        return SharedRead(read.__name__, (kind,), read(kind), seconds)

    def _peak(self, kind: str) -> Plan[Response]:
        peak = yield from self._ask.peak(kind)
        found = {"at": peak.at, "count": peak.count} if peak else None
        return facts({"kind": kind, "peak": found}, REVALIDATED)

    def _active(self, kind: str) -> Plan[Response]:
        active = yield from self._ask.active_in_periods(kind)
        return facts({"kind": kind, "active": active}, REVALIDATED)

    def _online(self, kind: str) -> Plan[Response]:
        now = moment_of((yield from self._ask.clock.now()))
        online = yield from self._ask.online(kind, limit=MAX_LISTED)
        return facts({"kind": kind, "online": _listed(online)}, NEVER_STORED, now)

    def _last_seen(self, query: Query) -> SharedRead:
        kind, ask = self._kind(query), self._ask
        ids = tuple(dict.fromkeys(filter(None, map(normalize_id, query.get("id", ())))))
        if not ids:
            raise QueryError("the parameter id is missing, as in last-seen?id=42")
        has_times = self._settings.store_of(kind) == "sorted-set"

        def read() -> Plan[Response]:
            now = moment_of((yield from ask.clock.now()))
            values: dict[str, Any] = {"kind": kind}
            if len(ids) > 1:
                values["last_seen"] = yield from ask.last_seen_among(ids, kind)
            else:
                is_online = yield from ask.is_online(ids[0], kind)
                last_seen = (yield from ask.last_seen(ids[0], kind)) if has_times else None
                values |= {"id": ids[0], "online": is_online, "last_seen": last_seen}
            return facts(values, NEVER_STORED, now)

        return SharedRead("last-seen", (kind, ids), read())

    def _events(self, query: Query) -> Response | SharedRead:
        """Return a stream. It begins with who is online, or after the last event of the reader."""
        if not self._can_follow:
            return problem(
                501,
                "under WSGI, and in Django's MIDDLEWARE, a worker cannot stay with a reader; ask "
                "online instead",
            )
        kind = self._kind(query)
        if kind not in self._settings.events:
            return problem(404, f"kind {kind!r} has no events; PRESENCE_EVENTS enables them")
        (cursor,) = query["after"]
        with suppress(QueryError):
            self._backend.feed(kind).streams.parse_cursor(cursor)
            return Response(200, _STREAM_HEADERS, b"", (kind, cursor))

        def read() -> Plan[Response]:
            positions, online = yield from self._ask.announced(kind, MAX_LISTED)
            now = moment_of((yield from self._ask.clock.now()))
            after = cursor_of(positions)
            values = {"kind": kind, "online": _listed(online), "now": now}
            head = f"event: list\nid: {after}\ndata: {sse.to_json(values)}\n\n"
            return Response(200, _STREAM_HEADERS, head.encode(), (kind, after))

        return SharedRead("events", (kind,), read())

    def _kind(self, query: Query) -> str:
        return self._ask.kind(_first(query, "kind") or None)


def step_for(hours: int, most: int) -> int:
    """Return the shortest step, in minutes, in which `hours` have at most `most` points."""
    # The first and the last point may be cut.
    return next((step for step in STEPS if hours * 60 <= (most - 1) * step), STEPS[-1])


class HighestMinutes(NamedTuple):
    """The highest minutes of a kind, of which each reader is sent those of the last hours."""

    kind: str
    step: int
    """In minutes."""
    now: int
    """When it was read, in seconds since the epoch; a full minute."""
    points: list[tuple[int, int, str]]
    """Oldest first: the time, the count, and the time as text."""

    def last(self, hours: int) -> list[tuple[int, int, str]]:
        """Return the points of the last hours."""
        return self.points[bisect_right(self.points, self.now - hours * 3600, key=itemgetter(0)) :]


def read_history(ask: Queries, kind: str, step: int) -> Plan[HighestMinutes]:
    """Read the highest minute of each step of a kind, at most `MAX_POINTS`.

    So no peak disappears. The server picks these minutes: to send and parse all 527,040 of a year
    takes this process seventy times as long. `step` is in minutes. Of equal minutes, the first is
    the highest. A step without samples has no point.
    """
    prefix, keep = ask.settings.prefix, ask.settings.history
    now = yield from ask.clock.now()
    last = keys.minute_of(now)
    oldest = 1 + max(last - (MAX_POINTS - 1) * step, keys.minute_of(now - keep))
    start = -(-oldest // step) * step  # where a step begins
    # By the number of the step, because a step may be several days.
    points: dict[int, tuple[int, int, str]] = {}
    days: list[tuple[int, int, int]] = []  # each with a first and a last minute
    while start <= last:
        day, minute = divmod(start, MINUTES_A_DAY)
        size = min(MINUTES_A_DAY - minute, last + 1 - start)
        days.append((day, minute, minute + size - 1))
        start += size
    for trip in chunks(days, COMMANDS_PER_TRIP):
        replies = yield Batch(
            tuple(
                ("EVAL", _HIGHEST, 1, keys.history(prefix, kind, day), step, *minutes)
                for day, *minutes in trip
            )
        )
        for (day, *_), reply in zip(trip, replies, strict=True):
            midnight = day * MINUTES_A_DAY * keys.MINUTE
            numbers = list(map(int, decoded(reply).split()))
            for minute, count in zip(numbers[::2], numbers[1::2], strict=True):
                at, place = midnight + minute * keys.MINUTE, (day * MINUTES_A_DAY + minute) // step
                if place not in points or count > points[place][1]:
                    points[place] = at, count, sse.iso(moment_of(at))
    return HighestMinutes(kind, step, last * keys.MINUTE, [*points.values()])


def as_json(history: HighestMinutes, hours: int) -> Response:
    """Return the response with the last hours of a history."""
    samples = [(at, count) for _, count, at in history.last(hours)]
    step = history.step * keys.MINUTE
    return facts({"kind": history.kind, "step": step, "samples": samples}, REVALIDATED)


def as_chart(history: HighestMinutes, hours: int, width: int, offset: int, colour: int) -> Response:
    """Return the response with a chart of the last hours of a history.

    `width` is in pixels. `offset` is how many minutes the reader's clock is ahead of UTC. `colour`
    is the number of the line's colour.
    """
    points, end = [(at, count) for at, count, _ in history.last(hours)], history.now
    peak = max(points, key=itemgetter(1), default=None)
    line = Series(history.kind, points, peak if peak and peak[1] else None, colour)
    gap = max(MIN_GAP, 2 * history.step) * keys.MINUTE
    body = draw([line], end - hours * 3600, end, gap=gap, width=width, offset=offset)
    return content("image/svg+xml", body.encode(), REVALIDATED)


def refusal(token: str, authorization: str | None) -> Response | None:
    """Return the response that refuses a reader; None if the reader has the token.

    `authorization` is the header of the request: the token as a bearer token, or as the password
    of HTTP Basic, for any user name. If `token` is empty, every reader is refused.
    """
    if not token:
        return problem(403, "listing people is disabled; set PRESENCE_BOARD_TOKEN to enable it")
    scheme, _, credentials = (authorization or "").partition(" ")
    secret = credentials.strip().encode("utf-8", "surrogateescape")
    is_bearer = scheme.lower() == "bearer"
    if not is_bearer:
        try:
            secret = b64decode(secret, validate=True).partition(b":")[2]
        except ValueError:
            secret = b""
    if hmac.compare_digest(secret, token.encode()):
        return None
    # With Basic, a browser shows a dialog for the token. A script that sent a bearer token has a
    # form of its own.
    challenge = f'Bearer {REALM}, error="invalid_token"' if is_bearer else f"Basic {REALM}"
    return problem(401, "listing people needs the board's token", ("WWW-Authenticate", challenge))


def _listed(online: list[Sighting]) -> list[dict[str, Any]]:
    return [each._asdict() for each in online]


def _first(query: Query, name: str) -> str | None:
    """Return the first value of a parameter, or None."""
    return query.get(name, [None])[0]


def _number(query: Query, name: str, default: int, least: int, most: int) -> int:
    """Return a whole number of the query. Raises `QueryError` if it is out of bounds."""
    value = _first(query, name) or str(default)
    if not re.fullmatch("-?[0-9]{1,6}", value) or not least <= int(value) <= most:
        accepted = f"a whole number from {least} to {most}"
        raise QueryError(f"{name} is {value[:20]!r}: {accepted} is accepted")
    return int(value)


def _file(name: str, **values: str) -> bytes:
    """Return a static file, with `values` in the places that it has for them."""
    text = files(__package__).joinpath("static", name).read_text("utf-8")
    return (Template(text).substitute(values) if values else text).encode()
