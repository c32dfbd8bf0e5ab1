"""The reader and the visit of a request, from whatever a framework passes to its handlers."""

from collections.abc import Mapping
from typing import Any, Protocol, overload
from wsgiref.types import WSGIEnvironment

from .errors import NotWrapped, QueryError
from .presence import AsyncPresence, Presence
from .recorder import Visit
from .request import READER, VISIT


class HasEnviron(Protocol):
    """A request of a WSGI framework, such as Flask, Pyramid, Bottle, or Django under WSGI."""

    @property
    def environ(self) -> WSGIEnvironment: ...


class HasScope(Protocol):
    """A request or WebSocket of an ASGI framework, such as Starlette, or Django under ASGI."""

    @property
    def scope(self) -> Any: ...


@overload
def presence_of(source: HasScope) -> AsyncPresence: ...
@overload
def presence_of(  # type: ignore[overload-overlap]  # a dict is an environ, not a scope
    source: HasEnviron | WSGIEnvironment,
) -> Presence: ...
@overload
def presence_of(source: Mapping[str, Any]) -> AsyncPresence: ...
def presence_of(source: Any) -> Presence | AsyncPresence:
    """Return the reader of a request, whose answers include the request itself.

    `source` is a WSGI environ, an ASGI scope, or an object with `.environ` or `.scope`: a request
    of Flask, Pyramid, Django, Starlette or FastAPI, a WebSocket, a consumer of Channels. The server
    decides on the class: `Presence` under WSGI and `AsyncPresence` under ASGI, also in a
    synchronous view, which calls it with `asgiref.sync.async_to_sync`. For a type checker, a `dict`
    is an environ and any other mapping a scope.

    Raises `NotWrapped` if the middleware has not seen the request, and `QueryError` for another
    `source`.
    """
    reader: Presence | AsyncPresence = _entry(source, READER)
    return reader


def visit_of(source: HasScope | HasEnviron | Mapping[str, Any]) -> Visit:
    """Return the visit of a request, with which a layer or handler calls `identify`.

    `source` and the errors are as for `presence_of`.
    """
    visit: Visit = _entry(source, VISIT)
    return visit


def state_of(source: object) -> Mapping[str, Any]:
    """Return the environ or scope of a request. `source` and the errors are as for `presence_of`.

    It need not be wrapped.
    """
    for state in (getattr(source, "scope", None), getattr(source, "environ", None), source):
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
    raise NotWrapped(
        f"this request has not passed presence_middleware.{protocol}.PresenceMiddleware: wrap the "
        "app that the server, or the test client, calls"
    )
