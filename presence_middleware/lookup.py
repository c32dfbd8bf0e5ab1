"""The reader and the visit of a request, from whatever a framework passes to its handlers.

A template has a reader of its own, with plain calls under WSGI and ASGI alike, and None in an
outage.
"""

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload
from wsgiref.types import WSGIEnvironment

from .connections.loops import is_in_loop
from .errors import NotWrapped, PresenceUnavailable, QueryError, UnsupportedQuery, WouldBlock
from .identity.ids import attribute
from .presence import AsyncPresence, Presence, Query, presented
from .queries import Queries
from .recorder import Visit
from .request import READER, VISIT

P = ParamSpec("P")
T = TypeVar("T")
_STATES = ("scope", "environ", "env", "wsgi_environ", "asgi_scope", "_scope")


class HasEnviron(Protocol):
    """A request of a WSGI framework, such as Flask, Pyramid, Bottle, or Django under WSGI."""

    @property
    def environ(self) -> WSGIEnvironment: ...


class HasScope(Protocol):
    """A request or WebSocket of an ASGI framework, such as Starlette, or Django under ASGI."""

    @property
    def scope(self) -> Any: ...


class HasMeta(Protocol):
    """A request of Django, under WSGI or ASGI, as `HttpRequest` declares it."""

    @property
    def META(self) -> Any: ...  # noqa: N802


@overload
def presence_of(source: HasScope) -> AsyncPresence: ...
@overload
def presence_of(  # type: ignore[overload-overlap]  # a dict is an environ, not a scope
    source: HasEnviron | WSGIEnvironment,
) -> Presence: ...
@overload
def presence_of(source: Mapping[str, Any]) -> AsyncPresence: ...
@overload
def presence_of(source: HasMeta) -> Any: ...
def presence_of(source: Any) -> Presence | AsyncPresence:
    """Return the reader of a request, whose answers include the request itself.

    `source` is a WSGI environ, an ASGI scope, or an object with `.environ` or `.scope`: a request
    of Flask, Pyramid, Django, Starlette or FastAPI, a WebSocket, a consumer of Channels. The server
    decides on the class: `Presence` under WSGI and `AsyncPresence` under ASGI, also in a
    synchronous view, which calls it with `asgiref.sync.async_to_sync`. For a type checker, a `dict`
    is an environ and any other mapping a scope; the reader of an `HttpRequest` is `Any`.

    Raises `NotWrapped` if the middleware has not seen the request, and `QueryError` for another
    `source`.
    """
    reader: Presence | AsyncPresence = _entry(source, READER)
    return reader


def visit_of(source: HasScope | HasEnviron | HasMeta | Mapping[str, Any]) -> Visit:
    """Return the visit of a request, with which a layer or handler calls `identify`.

    `source` is a WSGI environ, an ASGI scope, or an object with `.environ` or `.scope`. Raises
    `NotWrapped` if the middleware has not seen the request, and `QueryError` for another `source`.
    """
    visit: Visit = _entry(source, VISIT)
    return visit


def state_of(source: object) -> Mapping[str, Any]:
    """Return the environ or scope of a request, which need not have passed the middleware.

    `source` is one of both, or an object with `.environ` or `.scope`, or with the `.env` of Falcon
    under WSGI, the `.wsgi_environ` of CherryPy, the `.asgi_scope` of Microdot or the `._scope` of
    Emmett. Raises `QueryError` for another.
    """
    # A request of Starlette is a mapping, too, but no dict.
    names = () if type(source) is dict else _STATES
    for state in chain((attribute(source, name) for name in names), (source,)):
        if isinstance(state, Mapping):
            return state
    raise QueryError(
        f"a {type(source).__name__} is no request: pass a WSGI environ, an ASGI scope, or an "
        "object with .environ or .scope"
    )


def _entry(source: object, key: str) -> Any:
    state = state_of(source)
    if key in state:
        return state[key]
    # Every scope has a type; an environ has none.
    protocol = "asgi" if "type" in state else "wsgi"
    remedy = "wrap the app that the server, or the test client, calls"
    if attribute(source, "META") is not None:
        remedy = "add that at the end of MIDDLEWARE, and in tests use django.test.Client"
        protocol = "django"
    raise NotWrapped(
        f"this request has not passed presence_middleware.{protocol}.PresenceMiddleware: {remedy}"
    )


def template_question(
    query: Query[P, T],
) -> Callable[Concatenate["TemplatePresence", P], T | None]:
    """Return the method of `TemplatePresence` that returns the result of a query, or None."""

    def ask(reader: "TemplatePresence", /, *arguments: P.args, **named: P.kwargs) -> T | None:
        visit = reader.visit
        if visit is None:
            return None
        if isinstance(visit, AsyncPresence) and is_in_loop():
            raise WouldBlock(
                "a template asked who is online inside the event loop: render it in a thread (in a "
                "handler with `def`, or as a TemplateResponse of Django), or await the answer in "
                "the handler and pass it to the template"
            )
        try:
            return visit.read(query(visit.backend.queries, *arguments, **named))
        except UnsupportedQuery as error:
            # The settings changed, perhaps, and the template did not. The page shows the rest.
            visit.recorder.hints.warn("template", query.__name__, error)
        except PresenceUnavailable:
            pass  # the page is shown without the number
        return None

    return presented(ask, "TemplatePresence", query, or_none=True)


class TemplatePresence:
    """Reads who is online for the template of a request, and asks Redis only when it is used.

    All methods return None if Redis does not answer; a page waits for an outage once. They return
    None if the request has not passed the middleware, as in the tests of a site, and for what the
    site does not store; that is logged once. They raise `QueryError` for invalid arguments, and
    `WouldBlock` in an event loop.
    """

    def __init__(self, visit: Visit | None) -> None:
        """Create a reader for the request of `visit`; None if the request has no visit."""
        self.visit = visit

    count = template_question(Queries.count)
    counts = template_question(Queries.counts)
    active = template_question(Queries.active)
    online = template_question(Queries.online)
    is_online = template_question(Queries.is_online)
    last_seen = template_question(Queries.last_seen)
    last_seen_among = template_question(Queries.last_seen_among)
    online_among = template_question(Queries.online_among)
    online_friends = template_question(Queries.online_friends)
    history = template_question(Queries.history)
    peak = template_question(Queries.peak)


def template_presence(source: Any) -> TemplatePresence:
    """Return a template reader of a request.

    `source` is a WSGI environ, an ASGI scope, or an object with `.environ` or `.scope`; None stands
    for a template outside of a request. Sends nothing to Redis. Raises `QueryError` if `source` is
    no request.
    """
    return TemplatePresence(None if source is None else state_of(source).get(VISIT))
