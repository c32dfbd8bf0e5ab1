"""A plain WSGI app that shows who is online. It uses nothing but its visit and its readers.

Each page of `PAGES` is a room. Browsers get a page, other clients such as curl get lines of text.
`/online.json?page=/t/tea` holds the data of a page. `POST /login` takes a name and `POST /logout`
removes it, in place of a site's real accounts.
"""

import os
import time
from html import escape
from importlib.resources import files
from string import Template
from typing import Any
from urllib.parse import parse_qsl, quote, unquote
from wsgiref.types import StartResponse, WSGIEnvironment

from webob import Request, Response

from ..errors import PresenceError
from ..parsers import format_duration
from ..settings import Settings

COOKIE = "demo-name"
MAX_FORM_BYTES = 1000
MAX_NAME_CHARACTERS = 40
LISTED = 50  # ids of each kind
IN_TEXT = 3  # of these, for clients that are no browser


PAGES = {
    "/": ("Who is online", "Open this page in another browser, or go to one of the topics."),
    "/t/tea": ("Tea", "Green tea tastes bitter if the water is too hot: 75 °C is enough."),
    "/t/trains": ("Trains", "The night train from Lisbon to Madrid has not run since 2020."),
    "/t/stars": ("Stars", "On a clear night without a moon, some 2,500 stars are visible."),
}
"""By path, the title of a page and a sentence about its topic."""

LINKS = "".join(
    f'<a href="{path}">{title}<small data-page="{path}"></small></a>\n'
    for path, (title, _) in PAGES.items()
)
PACKAGE = files("presence_middleware")


class Site:
    """The demo site, to be wrapped by the middleware."""

    def __init__(self, crowd: int = 0) -> None:
        """`crowd` is the number of simulated visitors, which the pages mention."""
        self._crowd = crowd_note(crowd) if crowd else ""
        self._template = Template(PACKAGE.joinpath("demo/page.html").read_text("utf-8"))
        self._fixed = {
            "crowd": self._crowd.replace("--crowd 0", "<code>--crowd 0</code>"),
            "links": LINKS,
            "style": PACKAGE.joinpath("board/static/board.css").read_text("utf-8"),
        }

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        """Serve a request. The cookie contains the name of a user who is logged in."""
        visit = environ["presence_middleware.visit"]
        name = unquote(visit.cookie(COOKIE) or "")
        visit.identify(name)
        request = Request(environ)
        path = environ["PATH_INFO"]
        response = Response(charset="utf-8", cache_control="no-cache")
        match request.method, path:
            case "GET", "/demo.js":
                response.content_type = "text/javascript"
                response.body = PACKAGE.joinpath("demo/page.js").read_bytes()
            case "GET", "/online.json":
                # Unlike WebOb, this also reads a query that is not in UTF-8.
                page = dict(parse_qsl(request.query_string)).get("page", "/")
                response.content_type = "application/json"
                response.json = self._state(environ, page)
            case "GET", _ if path in PAGES and "text/html" in environ.get("HTTP_ACCEPT", ""):
                response.text = self._as_html(environ, path, name)
            case "GET", _ if path in PAGES:
                response.content_type = "text/plain"
                response.text = _as_text(self._state(environ, path))
            case "POST", "/login" | "/logout":
                length = min(request.content_length or 0, MAX_FORM_BYTES)
                form = dict(parse_qsl(request.body_file.read(length).decode(errors="replace")))
                page = form.get("page", "/")
                response = Response(status=303, location=page if page in PAGES else "/")
                entered = form.get("name", "").strip()[:MAX_NAME_CHARACTERS]
                if entered:
                    visit.identify(entered)  # this request is the user's already
                elif name:
                    environ["presence_middleware.presence"].leave(name)
                response.set_cookie(COOKIE, quote(entered), httponly=True, samesite="Lax")
            case _:
                response = Response(b"not found\n", status=404, content_type="text/plain")
        start_response(response.status, response.headerlist)
        return [response.body]

    def _as_html(self, environ: WSGIEnvironment, path: str, user: str) -> str:
        # None in an outage: then the page leaves the sentence out.
        here = self._state(environ, path).get("here")
        settings: Settings = environ["presence_middleware.visit"].recorder.settings
        (title, sentence), board = PAGES[path], escape(settings.board_path)
        return self._template.substitute(
            self._fixed,
            title=title,
            text=sentence,
            path=path,
            here="" if here is None else _people(here),
            board=board,
            widget=f'<script src="{board}/widget.js" async></script>' if board else "",
            name=escape(user),
            window=format_duration(settings.window),
        )

    def _state(self, environ: WSGIEnvironment, path: str) -> dict[str, Any]:
        """Return the data of a page, or an error if Redis does not answer."""
        reader, visit = (environ[f"presence_middleware.{name}"] for name in ("presence", "visit"))
        now = time.time()
        try:
            counts = reader.counts()
            pages = {each: sum(reader.counts(room=each).values()) for each in PAGES}
            online = {
                kind: [
                    {"id": each.id, "seconds": max(0, round(now - each.last_seen.timestamp()))}
                    for each in reader.online(kind, limit=LISTED)
                ]
                for kind in counts
                if kind != "bot"  # bots are counted, but not listed
            }
        except PresenceError as error:
            return {"error": str(error)}
        return {
            "counts": counts,
            "crowd": self._crowd,
            "here": pages.get(path),
            "pages": pages,
            "online": online,
            "you": visit.identity and visit.identity._asdict(),
            "worker": os.getpid(),
        }


def crowd_note(size: int) -> str:
    """Return that a crowd of `size` visitors is simulated, and how to do without it."""
    visitors = _number(size, "visitor is", "visitors are")
    return f"{visitors} simulated, also in the chart: --crowd 0 switches them off"


def _people(count: int) -> str:
    return f"{_number(count, 'person', 'people')} on this page"


def _number(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _as_text(state: dict[str, Any]) -> str:
    if "error" in state:
        return f"The number online is unknown: {state['error']}\n"
    lines = [f"{_number(n, kind, f'{kind}s')} online" for kind, n in state["counts"].items()]
    lines.append(_people(state["here"]))
    if state["crowd"]:
        lines.append(state["crowd"])
    for kind, online in state["online"].items():
        lines += [f"  {kind} {each['id']}, {each['seconds']}s ago" for each in online[:IN_TEXT]]
        if (more := state["counts"][kind] - IN_TEXT) > 0:
            lines.append(f"  {_number(more, f'more {kind}', f'more {kind}s')}")
    you = state["you"]
    who = f"{you['kind']} {you['id']}" if you else "not recorded"
    return "\n".join([*lines, f"you are {who}, answered by worker {state['worker']}", ""])
