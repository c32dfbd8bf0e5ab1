"""The board: from a request to a response, without I/O.

An answer is a generator: it yields what it has to know of Redis and is sent the slot of that read.
WSGI and ASGI run the same answers.
"""

import re
from collections.abc import Callable, Generator
from datetime import datetime, timedelta
from importlib.resources import files
from string import Template

from ..errors import PresenceUnavailable, QueryError
from ..identity import known_kind, normalize_id
from ..settings import Settings
from ..stores import Sample
from ..values import format_duration
from . import reads
from .access import refusal
from .messages import Request, Response, facts, problem, text
from .reads import Found, Read
from .shared import Slot

Answer = Generator[Read, Slot, Response]

REVALIDATED = "private, no-cache"
A_DAY = 24  # hours
NEVER_KEPT = "no-store"  # whatever names somebody
EMBEDDED = "public, max-age=3600"


class Board:
    """What a site's board answers."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kinds = settings.kinds
        self._answers: dict[str, Callable[[Request], Answer]] = {
            # By a relative path, its files are found wherever the site is mounted.
            "": self._page(settings.board_path.rpartition("/")[2] + "/"),
            "/": self._page(""),
            "/board.css": _constant("css", _file("board.css"), REVALIDATED),
            "/board.js": _constant("javascript", _file("board.js"), REVALIDATED),
            "/widget.js": _constant("javascript", _file("widget.js"), EMBEDDED),
            "/counts": self._counts,
            "/history": self._history,
            "/peak": self._peak,
            "/online": self._named(self._online),
            "/last-seen": self._named(self._last_seen),
        }

    def below(self, path: str) -> str | None:
        """What of a path follows the board's own; None if it is another's."""
        own = self._settings.board_path
        if path == own or path.startswith(f"{own}/"):
            return path[len(own) :]
        return None

    def answer(self, request: Request) -> Answer:
        """The response to a request for the board."""
        try:
            response = yield from self._answer(request)
        except PresenceUnavailable:  # why is no reader's business
            response = problem(503, "Redis cannot tell who is online", ("Retry-After", "2"))
        except QueryError as error:
            response = problem(400, str(error))
        return response.to(request)

    def _answer(self, request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            return problem(405, "the board is for looking", ("Allow", "GET, HEAD"))
        if request.path not in self._answers:
            return problem(404, "there is nothing here")
        return (yield from self._answers[request.path](request))

    def _named(self, answer: Callable[[Request], Answer]) -> Callable[[Request], Answer]:
        """The answer, for those who may see names."""

        def checked(request: Request) -> Answer:
            token = self._settings.board_token
            if no := refusal(token, request.header("authorization")):
                return no
            return (yield from answer(request))

        return checked

    def _page(self, base: str) -> Callable[[Request], Answer]:
        """The page; what it shows is not in it, but asked for by its script, and put in as text."""
        settings = self._settings
        given = {
            "base": base,
            "kinds": " ".join(self._kinds),
            "listed": " ".join(filter(self._is_listed, self._kinds)),
            "window": format_duration(settings.window),
            "names": "on" if settings.board_token else "off",
        }
        filled = Template(_file("board.html").decode()).substitute(given)
        return _constant("html", filled.encode(), REVALIDATED)

    def _counts(self, request: Request) -> Answer:
        slot = yield Read(reads.counts)
        return facts({"counts": slot.result()}, REVALIDATED)

    def _history(self, request: Request) -> Answer:
        kind, hours = self._kind(request), self._hours(request)
        # Of all that may be asked, a day and everything are read, and shared by more readers.
        read = A_DAY if hours <= A_DAY else self._settings.history / 3600
        found: Found = (yield Read(reads.history, (kind, read), reads.SAMPLED)).result()
        since = found.now - timedelta(hours=hours)
        samples = [[_written(each.at), each.count] for each in found.what if each.at > since]
        return facts({"kind": kind, "samples": samples}, REVALIDATED)

    def _peak(self, request: Request) -> Answer:
        kind = self._kind(request)
        found: Sample | None = (yield Read(reads.peak, (kind,), reads.SAMPLED)).result()
        peak = {"at": _written(found.at), "count": found.count} if found else None
        return facts({"kind": kind, "peak": peak}, REVALIDATED)

    def _online(self, request: Request) -> Answer:
        kind = self._kind(request)
        found: Found = (yield Read(reads.online, (kind,))).result()
        shown = [{"id": each.id, "last_seen": _written(each.last_seen)} for each in found.what]
        return facts({"kind": kind, "online": shown}, NEVER_KEPT, _written(found.now))

    def _last_seen(self, request: Request) -> Answer:
        kind, id = self._kind(request), normalize_id(request.parameter("id") or "")
        if not id:
            raise QueryError("id is missing: last-seen?id=42")
        has_times = self._settings.store_of(kind) == "sorted-set"
        found: Found = (yield Read(reads.search, (kind, id, has_times))).result()
        is_online, seen = found.what
        shown = {"kind": kind, "id": id, "online": is_online, "last_seen": _written(seen)}
        return facts(shown, NEVER_KEPT, _written(found.now))

    def _hours(self, request: Request) -> int:
        """How far back a history goes; never further than it is kept."""
        asked = request.parameter("hours") or str(A_DAY)
        if not re.fullmatch("[1-9][0-9]{0,5}", asked):
            raise QueryError(f"hours is {asked!r}: a whole number of at least 1")
        return int(asked)

    def _kind(self, request: Request) -> str:
        return known_kind(request.parameter("kind") or self._kinds[0], self._kinds)

    def _is_listed(self, kind: str) -> bool:
        return self._settings.store_of(kind) != "hyperloglog"


def _constant(type: str, content: bytes, cache: str) -> Callable[[Request], Answer]:
    """The answer that is always the same."""
    response = text(type, content, cache)

    def answer(request: Request) -> Answer:
        yield from ()
        return response

    return answer


def _written(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


def _file(name: str) -> bytes:
    return files(__package__).joinpath("static", name).read_bytes()
