"""A plain WSGI app that shows who is online. It uses nothing but its visit and its readers.

Each page of `PAGES` is a room. Browsers get a page, other clients such as curl get lines of text.
`/online.json?page=/t/tea` holds the data of a page. `POST /login` takes a name and `POST /logout`
removes it, in place of a site's real accounts.
"""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from html import escape
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
from string import Template
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote
from wsgiref.types import StartResponse, WSGIEnvironment

from ..errors import PresenceError, QueryError
from ..settings import Settings
from ..stores import Sighting
from ..template import template_presence

COOKIE = "demo-name"
MAX_FORM_BYTES = 1000
MAX_NAME_CHARACTERS = 40
LISTED = 50  # ids of each kind
IN_TEXT = 3  # of these, for clients that are no browser

Response = tuple[str, list[tuple[str, str]], bytes]


class Topic(NamedTuple):
    """What a page is about."""

    title: str
    text: str


PAGES = {
    "/": Topic("Who is online", "Open this page in another browser, or go to one of the topics."),
    "/t/tea": Topic("Tea", "Green tea tastes bitter if the water is too hot: 75 °C is enough."),
    "/t/trains": Topic("Trains", "The night train from Lisbon to Madrid has not run since 2020."),
    "/t/stars": Topic("Stars", "On a clear night without a moon, some 2,500 stars are visible."),
}


class Site:
    """The demo site, to be wrapped by the middleware."""

    def __init__(self, crowd: int = 0) -> None:
        """`crowd` is the number of simulated visitors, which the pages mention."""
        self._crowd = crowd
        self._template = Template(_file("page.html").decode())
        self._routes: dict[str, Callable[[WSGIEnvironment], Response]] = {
            **{f"GET {path}": self._page for path in PAGES},
            "GET /demo.js": lambda _: _ok("text/javascript", _file("page.js")),
            "GET /online.json": self._json,
            "POST /login": _login,
            "POST /logout": _logout,
        }

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        """Serve a request. The cookie contains the name of a user who is logged in."""
        environ["presence_middleware.visit"].identify(_name(environ))
        route = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
        status, headers, body = self._routes.get(route, _not_found)(environ)
        start_response(status, [*headers, ("Content-Length", str(len(body)))])
        return [body]

    def _page(self, environ: WSGIEnvironment) -> Response:
        path = environ["PATH_INFO"]
        if "text/html" in environ.get("HTTP_ACCEPT", ""):
            return _ok("text/html", self._as_html(environ, path).encode())
        return _ok("text/plain", _as_text(self._state(environ, path)))

    def _json(self, environ: WSGIEnvironment) -> Response:
        path = parse_qs(environ.get("QUERY_STRING", "")).get("page", ["/"])[0]
        return _ok("application/json", json.dumps(self._state(environ, path)).encode())

    def _as_html(self, environ: WSGIEnvironment, path: str) -> str:
        # None in an outage: then the page leaves the sentence out.
        here = _people_in(template_presence(environ).counts, path)
        settings: Settings = environ["presence_middleware.visit"].recorder.settings
        texts = {
            "title": PAGES[path].title,
            "text": PAGES[path].text,
            "path": path,
            "here": "" if here is None else f"{_number(here, 'person', 'people')} on this page",
            "crowd": _crowd_note(self._crowd),
            "board": settings.board_path,
        }
        flags = {
            "not_front": "" if path == "/" else "hidden",
            "no_board": "" if settings.board_path else "hidden",
        }
        scripts = [f"{settings.pulse_path}.js"] if settings.pulse_path else []
        scripts += [f"{settings.board_path}/widget.js"] if settings.board_path else []
        links = "".join(_link(other, is_current=other == path) for other in PAGES)
        escaped = {name: escape(text) for name, text in texts.items()}
        return self._template.substitute(
            escaped, links=links, scripts="".join(map(_script, scripts)), **flags
        )

    def _state(self, environ: WSGIEnvironment, path: str) -> dict[str, Any]:
        """Return the data of a page, or an error if Redis does not answer."""
        reader, visit = (environ[f"presence_middleware.{name}"] for name in ("presence", "visit"))
        try:
            counts = reader.counts()
            pages = {each: _people_in(reader.counts, each) for each in PAGES}
            online = {
                kind: [_as_json(sighting) for sighting in reader.online(kind, limit=LISTED)]
                for kind in counts
                if kind != "bot"  # bots are counted, but not listed
            }
        except PresenceError as error:
            return {"error": str(error)}
        you = visit.identity
        return {
            "counts": counts,
            "crowd": _crowd_note(self._crowd),
            "here": pages.get(path),
            "pages": pages,
            "online": online,
            "you": {"kind": you.kind, "id": you.id} if you else None,
            "worker": os.getpid(),
        }


def _people_in(counts: Callable[..., dict[str, int] | None], path: str) -> int | None:
    """Return the number of people on a page. None in an outage, and if the site has no rooms.

    `counts` is a method of a reader. A reader of a handler raises `PresenceUnavailable` instead.
    """
    try:
        kinds = counts(room=path)
    except QueryError:
        return None
    return None if kinds is None else sum(kinds.values())


def _login(environ: WSGIEnvironment) -> Response:
    form = _form(environ)
    name = form.get("name", "").strip()[:MAX_NAME_CHARACTERS]
    environ["presence_middleware.visit"].identify(name)  # this request is the user's already
    return _redirect(form, f"{COOKIE}={quote(name)}; Path=/; HttpOnly; SameSite=Lax")


def _logout(environ: WSGIEnvironment) -> Response:
    if name := _name(environ):
        environ["presence_middleware.presence"].leave(name)
    return _redirect(_form(environ), f"{COOKIE}=; Path=/; Max-Age=0")


def _not_found(environ: WSGIEnvironment) -> Response:
    return "404 Not Found", [("Content-Type", "text/plain")], b"not found\n"


def _ok(type: str, body: bytes) -> Response:
    headers = [("Content-Type", f"{type}; charset=utf-8"), ("Cache-Control", "no-cache")]
    return "200 OK", headers, body


def _redirect(form: dict[str, str], cookie: str) -> Response:
    page = form.get("page", "/")
    location = page if page in PAGES else "/"
    return "303 See Other", [("Location", location), ("Set-Cookie", cookie)], b""


def _form(environ: WSGIEnvironment) -> dict[str, str]:
    length = min(int(environ.get("CONTENT_LENGTH") or 0), MAX_FORM_BYTES)
    fields = parse_qs(environ["wsgi.input"].read(length).decode(errors="replace"))
    return {name: values[0] for name, values in fields.items()}


def _name(environ: WSGIEnvironment) -> str:
    try:
        cookies: SimpleCookie = SimpleCookie(environ.get("HTTP_COOKIE", ""))
    except CookieError:
        return ""
    return unquote(cookies[COOKIE].value) if COOKIE in cookies else ""


def _link(path: str, *, is_current: bool) -> str:
    current = ' aria-current="page"' if is_current else ""
    return f'<a href="{path}"{current}>{PAGES[path].title} <b data-page="{path}"></b></a>\n'


def _script(address: str) -> str:
    return f'<script src="{address}" async></script>\n'


def _crowd_note(crowd: int) -> str:
    if not crowd:
        return ""
    visitors = _number(crowd, "visitor is", "visitors are")
    return f"{visitors} simulated, also in the chart: --crowd 0 switches them off"


def _number(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _as_json(sighting: Sighting) -> dict[str, Any]:
    age = 0.0  # minute sets store no times
    if sighting.last_seen is not None:
        age = (datetime.now(UTC) - sighting.last_seen).total_seconds()
    return {"id": sighting.id, "seconds": max(0, round(age))}


def _as_text(state: dict[str, Any]) -> bytes:
    if "error" in state:
        return f"The number online is unknown: {state['error']}\n".encode()
    lines = [f"{_number(n, kind, f'{kind}s')} online" for kind, n in state["counts"].items()]
    if state["here"] is not None:
        lines.append(f"{_number(state['here'], 'person', 'people')} on this page")
    if state["crowd"]:
        lines.append(state["crowd"])
    for kind, online in state["online"].items():
        lines += [f"  {kind} {each['id']}, {each['seconds']}s ago" for each in online[:IN_TEXT]]
        if (more := state["counts"][kind] - IN_TEXT) > 0:
            lines.append(f"  {_number(more, f'more {kind}', f'more {kind}s')}")
    you = state["you"]
    who = f"{you['kind']} {you['id']}" if you else "not recorded"
    lines.append(f"you are {who}, answered by worker {state['worker']}")
    return ("\n".join(lines) + "\n").encode()


def _file(name: str) -> bytes:
    return files(__package__).joinpath(name).read_bytes()
