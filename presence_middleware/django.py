"""Count the users that Django has logged in.

Put `"presence_middleware.django.identify_user"` last in `MIDDLEWARE`. It reads only what Django
has loaded for the request: it causes no query, no load of a session and no `Vary` header. A page
that uses neither `request.user` nor `request.session` loads neither, so its visitors are counted as
guests, also those who are logged in. Where such pages matter, use `identify_every_user` instead.

Channels needs a line more: see `IdentifyWebSocketUser`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.contrib.auth import SESSION_KEY
from django.http import HttpRequest
from django.utils.decorators import sync_and_async_middleware
from django.utils.functional import LazyObject, empty

from .request import USER, VISIT

GetResponse = Callable[[HttpRequest], Any]


@sync_and_async_middleware  # type: ignore[untyped-decorator]  # Django has no types
def identify_user(get_response: GetResponse) -> GetResponse:
    """Return a middleware that identifies the user whom Django loads during the request.

    For a path of `PRESENCE_LOGOUT` it does what `identify_every_user` does.
    """

    every_user = identify_every_user(get_response)

    def middleware(request: HttpRequest) -> Any:
        visit = _state(request).get(VISIT)
        if visit is not None and visit.is_logout:  # the view forgets who it was
            return every_user(request)
        _identify_later(_state(request), partial(_user, request))
        return get_response(request)

    if iscoroutinefunction(get_response):  # what it returns is then awaited
        markcoroutinefunction(middleware)
    return middleware


@sync_and_async_middleware  # type: ignore[untyped-decorator]
def identify_every_user(get_response: GetResponse) -> GetResponse:
    """Return a middleware that identifies the user of every request, by its session.

    It loads the session of each request that has a session cookie. That is a query where sessions
    are in the database; a view that uses the session then needs none of its own. No account is
    loaded and no `Vary: Cookie` is added. A user whose account was deactivated is counted until a
    page uses `request.user`. Under ASGI it requires Django 5.1.
    """

    def middleware(request: HttpRequest) -> Any:
        _identify_later(_state(request), partial(_user, request))
        accessed = request.session.accessed
        request.session.get(SESSION_KEY)
        request.session.accessed = accessed  # the page itself does not depend on the session
        _note_login(_state(request))
        return get_response(request)

    async def async_middleware(request: HttpRequest) -> Any:
        _identify_later(_state(request), partial(_user, request))
        accessed = request.session.accessed
        await request.session.aget(SESSION_KEY)
        request.session.accessed = accessed
        _note_login(_state(request))
        return await get_response(request)

    return async_middleware if iscoroutinefunction(get_response) else middleware


class IdentifyWebSocketUser:
    """Identifies the users of Django Channels' WebSockets. Wrap the router of the sockets in it:

    ```python
    application = PresenceMiddleware(
        ProtocolTypeRouter(
            {
                "http": get_asgi_application(),
                "websocket": AuthMiddlewareStack(IdentifyWebSocketUser(URLRouter(routes))),
            }
        )
    )
    ```

    The layers of Channels put the user into copies of the scope, which the outermost layer does not
    see. A consumer's `channels.auth.login` and `logout` count as well.
    """

    def __init__(self, inner: Callable[..., Any]) -> None:
        """Wrap `inner`, an ASGI app that has the user in its scope."""
        self.inner = inner

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        at_connect = _session_user(scope.get("session"))
        _identify_later(scope, partial(_socket_user, scope, at_connect))
        return await self.inner(scope, receive, send)


def _state(request: HttpRequest) -> Any:
    """Return the scope or environ of a request."""
    return request.scope if hasattr(request, "scope") else request.environ


def _note_login(state: Any) -> None:
    """Have the visit note who is logged in, where the view may log them out."""
    visit = state.get(VISIT)
    if visit is not None:
        visit.note_login()


def _identify_later(state: Any, user: Callable[[], object]) -> None:
    """Have the `auth` source call `user` when it needs to know who is logged in.

    `state` may be a copy of the scope or environ that the visit reads, as Channels' routers make.
    """
    visit = state.get(VISIT)
    if visit is not None and not visit.is_over:
        state = visit.state
    state[USER] = user


def _user(request: HttpRequest) -> object:
    """Return the id of the user of a request, as far as Django has loaded one."""
    loaded = vars(request)
    user = _unwrapped(loaded.get("user"))
    if user is None:
        user = loaded.get("_acached_user")  # `await request.auser()`
    if user is None:
        return _session_user(loaded.get("session"))
    return _account_id(user)


def _socket_user(scope: Any, at_connect: object) -> object:
    """Return the id of the user of a WebSocket; `at_connect` is the session's user of then.

    A login or logout in the consumer changes the session, which all copies of the scope share.
    The user it changes only in the consumer's own copy.
    """
    by_now = _session_user(scope.get("session"))
    if by_now != at_connect:
        return by_now
    user = _unwrapped(scope.get("user"))
    return None if user is None else _account_id(user)


def _account_id(user: Any) -> str | None:
    """Return the primary key of a user who is logged in; a deleted account has none."""
    return str(user.pk) if user.is_authenticated and user.pk is not None else None


def _session_user(session: object) -> object:
    """Return the id that a session holds; None if nothing has loaded the session."""
    session = _unwrapped(session)
    loaded = None if session is None else vars(session).get("_session_cache")
    return loaded.get(SESSION_KEY) if loaded else None


def _unwrapped(value: Any) -> Any:
    """Return what a lazy object has loaded, and other objects as they are; never load anything."""
    if isinstance(value, LazyObject):
        value = value._wrapped
    return None if value is empty else value
