"""The demo's site: a plain WSGI app that says who is online, by the visit and the reader alone.

`/` is the page, or lines of text for curl and its like; `/online.json` what the page shows;
`POST /login` takes a name and `POST /logout` forgets it: a stand-in for a site's own accounts.
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

COOKIE = "demo-name"
PAGE = files(__package__).joinpath("page.html").read_bytes()
LONGEST_FORM = 1000  # bytes

Response = tuple[str, list[tuple[str, str]], bytes]


def site(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    """The app. A name in the cookie is who the visitor is."""
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
    length = min(int(environ.get("CONTENT_LENGTH") or 0), LONGEST_FORM)
    form = parse_qs(environ["wsgi.input"].read(length).decode(errors="replace"))
    name = form.get("name", [""])[0].strip()[:40]
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
    """What the page shows, with the reason instead when Redis cannot answer."""
    reader, visit = environ["presence_middleware.presence"], environ["presence_middleware.visit"]
    try:
        counts = reader.counts()
        named = [kind for kind in counts if kind != "bot"]  # bots are a number without names
        online = {kind: [_shown(s) for s in reader.online(kind, limit=50)] for kind in named}
    except PresenceError as error:
        return {"error": str(error)}
    you = visit.identity
    return {
        "counts": counts,
        "online": online,
        "you": {"kind": you.kind, "id": you.id} if you else None,
        "worker": os.getpid(),
    }


def _shown(sighting: Any) -> dict[str, Any]:
    age = (datetime.now(UTC) - sighting.last_seen).total_seconds()
    return {"id": sighting.id, "seconds": max(0, round(age))}


def _as_text(state: dict[str, Any]) -> bytes:
    if "error" in state:
        return f"Nobody knows who is online: {state['error']}\n".encode()
    counts = state["counts"].items()
    lines = [f"{count} {kind}{'s' * (count != 1)} online" for kind, count in counts]
    for kind, online in state["online"].items():
        lines += [f"  {kind} {someone['id']}, {someone['seconds']}s ago" for someone in online]
    you = state["you"]
    lines.append(f"you are {you['kind']} {you['id']}, answered by worker {state['worker']}")
    return ("\n".join(lines) + "\n").encode()
