"""Explain who a request counts as, and why. Contacts no app and no Redis."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from .identity.resolver import IdentityResolver, Matcher, RuleMatcher
from .recorder.recorder import resolver_for
from .recorder.request_filter import RequestFilter, why_no_visit
from .recorder.setup_hints import SetupHints, mistakes
from .recorder.verdict import LOGOUTS, Purpose
from .request import WsgiRequest
from .rooms import Rooms
from .settings import Settings
from .signals import read_signal

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


class Sent(NamedTuple):
    """A request as a client sends it."""

    method: str = "GET"
    target: str = "/"
    """The path, with the query if there is one."""
    headers: Sequence[tuple[str, str]] = ()
    address: str = "127.0.0.1"
    """The address at the other end of the connection."""


class Step(NamedTuple):
    """A step of the search for an identity, and what came of it."""

    name: str
    result: str


def parse_header(line: str) -> tuple[str, str]:
    """Return the name and the value of a header `Name: value`. Raises `ValueError` otherwise."""
    name, colon, value = line.partition(":")
    if not colon or not name.strip():
        raise ValueError("expected NAME: VALUE")
    return name.strip(), value.strip()


def parse_request(text: str, address: str) -> Sent:
    """Return a request from its text, such as `GET /x HTTP/1.1` and headers; a body is ignored.

    Raises `ValueError` if it is no request.
    """
    head = text.replace("\r\n", "\n").lstrip().partition("\n\n")[0]
    first, *lines = head.rstrip("\n").split("\n")
    method, _, rest = first.partition(" ")
    target, _, version = rest.partition(" ")
    if not target or not version.startswith("HTTP/"):
        raise ValueError("expected a request that begins like GET / HTTP/1.1")
    return Sent(method.upper(), target, [parse_header(line) for line in lines], address)


def explain(settings: Settings, sent: Sent) -> Iterator[str | Step]:
    """Yield what a request is, each step of the search for who sent it, and what it counts as.

    Names of keys are shown, but no secret and no value, except the id that would be stored.
    Raises `SettingsError` if a function that `PRESENCE_IDENTITY` names cannot be imported.
    """
    resolver = resolver_for(settings)
    request = WsgiRequest(_environ(sent))
    request.locate = resolver.locate
    request.arrive(request.state)
    hints = SetupHints(settings, resolver)
    board, pulse, path = settings.board_path, settings.pulse_path, request.path
    signal = read_signal(request, is_own=path == pulse) if pulse else None
    is_board = bool(board) and f"{path}/".startswith(f"{board}/")
    purpose = RequestFilter(settings, hints).purpose_of(request, signal)
    refusal = ""
    if not settings.enabled:
        purpose, refusal = Purpose.NO_VISIT, "PRESENCE_ENABLED is off"
    elif is_board or (pulse and signal is None and path in (pulse, f"{pulse}.js")):
        purpose, refusal = Purpose.NO_VISIT, "the middleware itself answers it"
    elif purpose is Purpose.NO_VISIT:
        sender = "a page of another site sent it" if signal else ""
        refusal = why_no_visit(request) or sender or "its path is in PRESENCE_EXCLUDE"
    room = Rooms(settings.rooms).name_of((signal and signal.page) or request.app_path)
    what = "excluded" if "PRESENCE_EXCLUDE" in refusal else _PURPOSES.get(purpose, "no visit")
    yield f"{what}, room {room}" if room and not refusal else what
    found: list[tuple[Matcher, str]] = []
    may_be_other = False
    for matcher in resolver.matchers:
        if found and not found[-1][0].is_checked:
            yield Step(str(matcher), "not asked")
        elif not matcher.is_visible:
            may_be_other = True
            yield Step(str(matcher), SET_BY_APP)
        elif id := matcher.find(request):
            kind = resolver.claimed((matcher.kind, id))[0] if matcher.kind else ""
            found.append((matcher, kind))
            shown = resolver.resolve_id(id) or "with an id that is hashed with a key in Redis"
            yield Step(str(matcher), f"{kind or 'crawler'} {shown}")
        else:
            no = matcher.why_not(request)
            better = matcher.better(no) if isinstance(matcher, RuleMatcher) else ""
            instead = f" (try {better.partition('=')[2]})" if better else ""
            yield Step(str(matcher), f"no: {no.reason}{instead}")
    yield _conclusion(purpose, refusal, found, resolver, may_be_other=may_be_other)
    for hint in mistakes(settings, request, found[0][1] if found else None):
        yield f"hint: {hint.message}: {hint.remedy}"


def _environ(sent: Sent) -> dict[str, str]:
    """Return the WSGI environ of a request. Its text is bytes decoded as Latin-1 (PEP 3333)."""
    path, _, query = sent.target.partition("?")
    environ = {
        "REQUEST_METHOD": sent.method.upper(),
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "QUERY_STRING": query,
        "REMOTE_ADDR": sent.address,
    }
    for name, value in sent.headers:
        key = f"HTTP_{name.upper().replace('-', '_')}"
        latin = value.encode("utf-8", "surrogateescape").decode("latin-1")
        joint = "; " if key == "HTTP_COOKIE" else ","
        environ[key] = f"{environ[key]}{joint}{latin}" if key in environ else latin
    return environ


def _conclusion(
    purpose: Purpose,
    refusal: str,
    found: list[tuple[Matcher, str]],
    resolver: IdentityResolver,
    *,
    may_be_other: bool,
) -> str:
    """Return what a request counts as, given the matchers that found somebody, and the kinds.

    The kind of a crawler that does not count is empty.
    """
    kinds = [kind for _, kind in found]
    unless = ", unless the app shows another user" if may_be_other else ""
    if refusal:
        return f"not counted: {refusal}"
    if purpose in LOGOUTS:
        user = next((kind for kind in kinds if kind in resolver.user_kinds), "nobody")
        return f"not counted: a logout, which takes {user} offline if it succeeds{unless}"
    if not kinds:
        return f"not counted: no rule finds an id{unless}"
    counted = [f"counted as {kind}" if kind else "not counted: a crawler" for kind in kinds]
    if not found[0][0].is_checked:
        return counted[0] + unless
    accepted = "if the response has a status of 200 to 299, 101 or 304"
    refused = "not counted" if found[-1][0].is_checked else counted[-1]
    return f"{counted[0]} {accepted}; with 401 or 403 {refused}{unless}"
