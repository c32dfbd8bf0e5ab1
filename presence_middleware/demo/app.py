"""A plain WSGI app that shows who is online. It uses nothing but its visit and its reader.

`/` is a page, or lines of text for clients such as curl. `/online.json` holds the data of the page.
`POST /login` takes a name and `POST /logout` removes it, in place of a site's real accounts.
"""

import json
import os
from datetime import UTC, datetime
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, quote, unquote
from wsgiref.types import StartResponse, WSGIEnvironment

from ..errors import PresenceError
from ..stores import Sighting

COOKIE = "demo-name"
PAGE = files(__package__).joinpath("page.html").read_bytes()
MAX_FORM_BYTES = 1000
MAX_NAME_CHARACTERS = 40
LISTED = 50  # ids of each kind

Response = tuple[str, list[tuple[str, str]], bytes]


def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    """Serve a request. The cookie contains the name of a user who is logged in."""
    environ["presence_middleware.visit"].identify(_name(environ))
    route = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
    status, headers, body = ROUTES.get(route, _not_found)(environ)
    start_response(status, [*headers, ("Content-Length", str(len(body)))])
    return [body]


def _home(environ: WSGIEnvironment) -> Response:
    if "text/html" in environ.get("HTTP_ACCEPT", ""):
        return "200 OK", [("Content-Type", "text/html; charset=utf-8")], PAGE
    return "200 OK", [("Content-Type", "text/plain; charset=utf-8")], _as_text(_online(environ))


def _json(environ: WSGIEnvironment) -> Response:
    headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]
    return "200 OK", headers, json.dumps(_online(environ)).encode()


def _login(environ: WSGIEnvironment) -> Response:
    length = min(int(environ.get("CONTENT_LENGTH") or 0), MAX_FORM_BYTES)
    form = parse_qs(environ["wsgi.input"].read(length).decode(errors="replace"))
    name = form.get("name", [""])[0].strip()[:MAX_NAME_CHARACTERS]
    return _redirect(f"{COOKIE}={quote(name)}; Path=/; HttpOnly; SameSite=Lax")


def _logout(environ: WSGIEnvironment) -> Response:
    if name := _name(environ):
        environ["presence_middleware.presence"].leave(name)
    return _redirect(f"{COOKIE}=; Path=/; Max-Age=0")


def _not_found(environ: WSGIEnvironment) -> Response:
    return "404 Not Found", [("Content-Type", "text/plain")], b"not found\n"


ROUTES = {
    "GET /": _home,
    "GET /online.json": _json,
    "POST /login": _login,
    "POST /logout": _logout,
}


def _redirect(cookie: str) -> Response:
    return "303 See Other", [("Location", "/"), ("Set-Cookie", cookie)], b""


def _name(environ: WSGIEnvironment) -> str:
    try:
        cookies: SimpleCookie = SimpleCookie(environ.get("HTTP_COOKIE", ""))
    except CookieError:
        return ""
    return unquote(cookies[COOKIE].value) if COOKIE in cookies else ""


def _online(environ: WSGIEnvironment) -> dict[str, Any]:
    """Return the data of the page, or an error if Redis does not answer."""
    reader, visit = environ["presence_middleware.presence"], environ["presence_middleware.visit"]
    try:
        counts = reader.counts()
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
        "online": online,
        "you": {"kind": you.kind, "id": you.id} if you else None,
        "worker": os.getpid(),
    }


def _as_json(sighting: Sighting) -> dict[str, Any]:
    age = 0.0  # minute sets store no times
    if sighting.last_seen is not None:
        age = (datetime.now(UTC) - sighting.last_seen).total_seconds()
    return {"id": sighting.id, "seconds": max(0, round(age))}


def _as_text(state: dict[str, Any]) -> bytes:
    if "error" in state:
        return f"The number online is unknown: {state['error']}\n".encode()
    counts = state["counts"].items()
    lines = [f"{count} {kind if count == 1 else kind + 's'} online" for kind, count in counts]
    for kind, online in state["online"].items():
        lines += [f"  {kind} {shown['id']}, {shown['seconds']}s ago" for shown in online]
    you = state["you"]
    lines.append(f"you are {you['kind']} {you['id']}, answered by worker {state['worker']}")
    return ("\n".join(lines) + "\n").encode()
