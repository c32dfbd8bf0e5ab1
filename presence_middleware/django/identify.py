"""Count the users that Django has logged in.

Put `"presence_middleware.django.identify_user"` last in `MIDDLEWARE`. It reads only data that
Django has loaded for the request: it causes no query, no load of a session and no `Vary` header. A
page that uses neither `request.user` nor `request.session` loads neither, so all of its visitors
count as guests, also logged-in users. If such pages matter, use `identify_every_user` instead.

The id is the primary key. `PRESENCE_IDENTITY="user=auth:username, guest=visitor"` makes it the
username, or any other field or property of the user. A session holds the primary key alone, so with
`identify_user` a page must use `request.user` to count its user. `identify_every_user` loads the
account of every request that has a session. That is an additional query on a page that does not use
`request.user` itself.

Channels needs another line: see `IdentifyWebSocketUser`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import getattr_static
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.contrib.auth import SESSION_KEY
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_and_async_middleware
from django.utils.functional import LazyObject, empty

from ..recorder import Visit
from ..request import USER, VISIT

GetResponse = Callable[[HttpRequest], Any]


@sync_and_async_middleware  # type: ignore[untyped-decorator]  # Django has no types
def identify_user(get_response: GetResponse) -> GetResponse:
    """Return a middleware that identifies the user that Django loads during the request.

    `get_response` is the next layer, synchronous or asynchronous; Django passes it. For a path of
    `PRESENCE_LOGOUT`, and for a pulse, the middleware works like `identify_every_user`.
    """

    every_user = identify_every_user(get_response)

    def middleware(request: HttpRequest) -> Any:
        visit = _identify_later(_state(request), partial(_user, request))
        # The view of a logout forgets its user, and no view of a pulse asks for it.
        is_special = visit is not None and (visit.is_logout or visit.signal is not None)
        return (every_user if is_special else get_response)(request)

    if iscoroutinefunction(get_response):  # Django then awaits the result
        markcoroutinefunction(middleware)
    return middleware


@sync_and_async_middleware  # type: ignore[untyped-decorator]
def identify_every_user(get_response: GetResponse) -> GetResponse:
    """Return a middleware that identifies the user of every request, by its session.

    `get_response` is the next layer, synchronous or asynchronous; Django passes it. The middleware
    loads the session of each request that has a session cookie. If sessions are in the database,
    this is a query, which a view that uses the session then saves. It adds no `Vary: Cookie`. Under
    ASGI it requires Django 5.1.

    It loads an account only for a rule such as `auth:username`: after the view if the view has not,
    or before it on a path of `PRESENCE_LOGOUT`. Until then the user counts as a guest, also in the
    numbers that the view reads. Without such a rule, the user of a deactivated account counts until
    a page uses `request.user`.

    A request to `PRESENCE_PULSE_PATH`, which no view has, gets an empty response.
    """

    def middleware(request: HttpRequest) -> Any:
        visit = _identify_later(_state(request), partial(_user, request))
        session = request.session
        with _unaccessed(session):
            needs_account = session.get(SESSION_KEY) is not None and _needs_account(visit)
            if needs_account and visit is not None and visit.is_logout:
                request.user.is_authenticated  # noqa: B018  # loads the account
        response = _begin(visit) or get_response(request)
        # Not before the view, unless that logs out: it would find a loaded user and not touch the
        # session, so that the response would lack its `Vary: Cookie`.
        if needs_account and _loaded_user(request) is None:
            with _unaccessed(session):
                request.user.is_authenticated  # noqa: B018
        return response

    async def async_middleware(request: HttpRequest) -> Any:
        visit = _identify_later(_state(request), partial(_user, request))
        session = request.session
        with _unaccessed(session):
            needs_account = await session.aget(SESSION_KEY) is not None and _needs_account(visit)
            if needs_account and visit is not None and visit.is_logout:
                await request.auser()
        response = _begin(visit) or await get_response(request)
        if needs_account and _loaded_user(request) is None:
            with _unaccessed(session):
                await request.auser()
        return response

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
    see. A consumer's `channels.auth.login` and `logout` count as well. After such a login, only the
    primary key is available, so a rule such as `auth:username` finds no id until the next
    connection.
    """

    def __init__(self, inner: Callable[..., Any]) -> None:
        """Wrap `inner`, an ASGI app that has the user in its scope."""
        self.inner = inner

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        at_connect = _session_user(scope.get("session"))

        def user() -> object:
            # A login or logout in the consumer changes the session, which all copies of the scope
            # share, but the user only in the consumer's own copy.
            by_now = _session_user(scope.get("session"))
            if by_now != at_connect:
                return by_now
            user = _unwrapped(scope.get("user"))
            return None if user is None else _account(user)

        _identify_later(scope, user)
        return await self.inner(scope, receive, send)


def _state(request: HttpRequest) -> Any:
    """Return the scope or environ of a request."""
    return request.scope if hasattr(request, "scope") else request.environ


def _identify_later(state: Any, user: Callable[[], object]) -> Visit | None:
    """Have the `auth` source call `user` when it needs the logged-in user. Return the visit.

    `state` may be a copy of the scope or environ that the visit reads, as Channels' routers make.
    """
    visit: Visit | None = state.get(VISIT)
    if visit is not None and not visit.is_over:
        state = visit.state
    state[USER] = user
    return visit


def _needs_account(visit: Visit | None) -> bool:
    """Return whether a rule reads an attribute of the user, for which an id is not enough."""
    return visit is not None and visit.recorder.resolver.needs_account


def _begin(visit: Visit | None) -> HttpResponse | None:
    """Note who is logged in before the view, which may log them out.

    Return the response of `PRESENCE_PULSE_PATH`, which no view has, and None for other requests.
    """
    if visit is None:
        return None
    visit.note_login()
    is_pulse = visit.signal is not None and visit.signal.is_own
    return HttpResponse(status=204) if is_pulse else None


@contextmanager
def _unaccessed(session: Any) -> Iterator[None]:
    """Have a session not count as accessed, because the page itself does not depend on it."""
    accessed = session.accessed
    yield
    session.accessed = accessed


class Account:
    """A user who is logged in, as the `auth` source reads them. No attribute causes a query.

    Besides the attributes below, it has the fields that are loaded and the properties of the user.
    """

    is_authenticated = True

    def __init__(self, user: Any) -> None:
        """Wrap an instance of the site's user model that has a primary key."""
        self._user = user
        self.identity = str(user.pk)
        """The id of the user, which is the primary key."""

    def __getattr__(self, name: str) -> object:
        user = self._user
        loaded = vars(user)
        if name in loaded:
            return loaded[name]
        # Other descriptors read the database: fields that are not loaded, and related objects.
        is_property = isinstance(getattr_static(type(user), name, None), property)
        return getattr(user, name) if is_property else None


def _user(request: HttpRequest) -> object:
    """Return the account that Django has loaded for a request, or the id in a loaded session."""
    user = _loaded_user(request)
    return _session_user(vars(request).get("session")) if user is None else _account(user)


def _loaded_user(request: HttpRequest) -> Any:
    """Return the user that Django has loaded for a request, also an anonymous one, or None."""
    loaded = vars(request)
    user = _unwrapped(loaded.get("user"))
    return loaded.get("_acached_user") if user is None else user  # `await request.auser()`


def _account(user: Any) -> Account | None:
    """Return the account of a user who is logged in; None for a deleted one, which has no key."""
    return Account(user) if user.is_authenticated and user.pk is not None else None


def _session_user(session: object) -> object:
    """Return the id that a session holds; None if nothing has loaded the session."""
    session = _unwrapped(session)
    loaded = None if session is None else vars(session).get("_session_cache")
    return loaded.get(SESSION_KEY) if loaded else None


def _unwrapped(value: Any) -> Any:
    """Return the object in a loaded lazy object, and other objects unchanged. Load nothing."""
    if isinstance(value, LazyObject):
        value = value._wrapped
    return None if value is empty else value
