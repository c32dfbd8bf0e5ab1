"""Explain who a request counts as, and why. Contacts no app and no Redis."""

from collections.abc import Collection, Iterable
from ipaddress import ip_address
from typing import Any
from urllib.parse import unquote_to_bytes

from .identity.resolver import Matcher, RuleMatcher
from .recorder.recorder import resolver_for
from .recorder.request_filter import EXCLUDED, RequestFilter
from .recorder.setup_hints import Mistakes, SetupHints
from .recorder.verdict import LOGOUTS, Answer, Purpose, answer_of
from .request import WsgiRequest
from .rooms import Rooms, read_signal
from .settings import Settings

SET_BY_APP = (
    "set by the app, so it cannot be seen from outside: ask in a handler with visit.identity"
)
_PURPOSES = {
    Purpose.PAGE: "page",
    Purpose.PULSE: "pulse: a page is still open",
    Purpose.GOODBYE: "pulse: a page was closed",
    Purpose.LOGOUT: "logout",
    Purpose.EXCLUDED_LOGOUT: "logout",
}


def environ_of(request: str, headers: Iterable[str], address: str) -> dict[str, str]:
    """Return the WSGI environ of a request. Its text is bytes decoded as Latin-1 (PEP 3333).

    `request` begins like `GET /x HTTP/1.1`; headers may follow, and a body, which is ignored.
    `headers` are further lines `Name: value`. `address` is that at the other end of the connection,
    empty for a Unix socket. Raises `ValueError` if one of them is none.
    """
    head = request.replace("\r\n", "\n").lstrip().partition("\n\n")[0]
    first, *lines = head.rstrip("\n").split("\n")
    method, _, rest = first.partition(" ")
    target, _, version = rest.rpartition(" ")
    if not target or not version.startswith("HTTP/"):
        raise ValueError("expected a request that begins like GET / HTTP/1.1")
    if address:
        ip_address(address)
    path, _, query = target.partition("?")
    environ = {
        "REQUEST_METHOD": method.upper(),
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(path.encode("utf-8", "surrogateescape")).decode("latin-1"),
        "QUERY_STRING": query,
        "REMOTE_ADDR": address,
    }
    for line in (*lines, *headers):
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise ValueError("expected NAME: VALUE")
        key = f"HTTP_{name.strip().upper().replace('-', '_')}"
        latin = value.strip().encode("utf-8", "surrogateescape").decode("latin-1")
        joint = "; " if key == "HTTP_COOKIE" else ","
        environ[key] = f"{environ[key]}{joint}{latin}" if key in environ else latin
    return environ


def explain(settings: Settings, environ: dict[str, str]) -> dict[str, Any]:
    """Return what the `request` is, the `rules` asked for who sent it, the `conclusion`, `hints`.

    Each rule has a `name` and a `result`, and the conclusion is what the request counts as. Names
    of keys are shown, but no secret and no value, except the id that would be stored. Raises
    `SettingsError` if a function that `PRESENCE_IDENTITY` names cannot be imported.
    """
    resolver = resolver_for(settings)
    request = WsgiRequest(environ, resolver.locate)
    hints = SetupHints(settings, resolver)
    board, pulse, path = settings.board_path, settings.pulse_path, request.path
    signal = read_signal(request, is_own=path == pulse) if pulse else None
    is_board = bool(board) and f"{path}/".startswith(f"{board}/")
    purpose, refusal = RequestFilter(settings, hints).ruling(request, signal)
    if not settings.enabled:
        purpose, refusal = Purpose.NO_VISIT, "PRESENCE_ENABLED is off"
    elif is_board or (pulse and signal is None and path in (pulse, f"{pulse}.js")):
        purpose, refusal = Purpose.NO_VISIT, "the middleware itself answers it"
    room = Rooms(settings.rooms).name_of((signal and signal.page) or request.app_path)
    what = "excluded" if refusal == EXCLUDED else _PURPOSES.get(purpose, "no visit")
    rules, found, unless = list[dict[str, str]](), list[tuple[Matcher, str]](), ""
    for matcher in resolver.search.matchers:
        if found and not found[-1][0].is_checked:
            result = "not asked"
        elif not matcher.is_visible:
            unless, result = ", unless the app shows another user", SET_BY_APP
        elif id := matcher.find(request):
            kind = resolver.claimed((matcher.kind, id))[0] if matcher.kind else ""
            found.append((matcher, kind))
            shown = resolver.resolve_id(id) or "with an id that is hashed with a key in Redis"
            result = f"{kind or 'crawler'} {shown}"
        else:
            no = matcher.why_not(request)
            better = matcher.better(no) if isinstance(matcher, RuleMatcher) else ""
            instead = f" (try {better.partition('=')[2]})" if better else ""
            result = f"no: {no.reason}{instead}"
        rules.append({"name": str(matcher), "result": result})
    shows = Mistakes(settings).shown_by(request, found[0][1] if found else None)
    counts_as = _conclusion(request.method, purpose, found, resolver.user_kinds) + unless
    return {
        "request": f"{what}, room {room}" if room and not refusal else what,
        "rules": rules,
        "conclusion": f"not counted: {refusal}" if refusal else counts_as,
        "hints": [f"hint: {mistake}" for mistake in shows],
    }


def _conclusion(
    method: str, purpose: Purpose, found: list[tuple[Matcher, str]], user_kinds: Collection[str]
) -> str:
    """Return what a request counts as, given the matchers that found somebody, and the kinds.

    The kind of a crawler that does not count is empty.
    """
    user = next((kind for _, kind in found if kind in user_kinds), "")
    # A logout that finds no user is a visit like any other, unless its path is excluded.
    if purpose is Purpose.EXCLUDED_LOGOUT or (user and purpose in LOGOUTS):
        return f"not counted: a logout, which takes {user or 'nobody'} offline if it succeeds"
    if not found:
        return "not counted: no rule finds an id"
    counted = [f"counted as {kind}" if kind else "not counted: a crawler" for _, kind in found]
    if not found[0][0].is_checked:
        return counted[0]
    refused = "not counted" if found[-1][0].is_checked else counted[-1]
    if answer_of(200, method) is not Answer.ACCEPTED:
        return f"not counted: no response to {method} accepts a login; with 401 or 403 {refused}"
    accepted = "if the response has a status of 200 to 299, 101 or 304"
    return f"{counted[0]} {accepted}; with 401 or 403 {refused}"
