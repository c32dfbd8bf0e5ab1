"""The line of `MIDDLEWARE` that counts the visitors of a Django site, and a layer for Channels."""

import os
from collections.abc import AsyncIterator, Callable
from dataclasses import fields
from functools import partial
from inspect import getattr_static
from typing import Any
from weakref import finalize

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings as django_settings
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.signals import user_logged_out
from django.core import mail
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.utils.functional import LazyObject, empty

from ..asgi import AsgiVisit, UnrecordedAsgiVisit
from ..board import Response
from ..board.routes import Board
from ..connections.drivers import at_once
from ..pulse import EMPTY, Pulse
from ..recorder import Visit, recorder_for
from ..request import READER, USER, VISIT, request_of
from ..settings import Settings, variable
from ..wsgi import UnrecordedWsgiVisit, WsgiVisit


class PresenceMiddleware:
    """Records the visitors of a Django site, under WSGI and ASGI.

    Put `"presence_middleware.django.PresenceMiddleware"` last in `MIDDLEWARE`. It serves the pulse
    and the board, and takes users offline whom Django logs out. If the app is wrapped as well, it
    only names the user to the visit of the wrapper.

    It reads only data that Django has loaded for the request: it causes no query, no load of a
    session and no `Vary` header. Only a pulse, and a path of `PRESENCE_LOGOUT`, load the user. A
    visitor who has a session that the page does not load counts neither as a guest nor as a user.

    The id is the primary key. `PRESENCE_IDENTITY="user=auth:username, guest=visitor"` makes it the
    username, or any other field or property of the user, on pages that use `request.user`.

    In the tests of a site, nothing is recorded unless `PRESENCE_ENABLED` is set.
    """

    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        """Create the layer around `get_response`, synchronous or asynchronous; Django passes it.

        The settings are those of the environment. This opens no connection. Raises `SettingsError`
        with all problems if a setting is invalid.
        """
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)  # Django then awaits the result
        # Django makes an outbox when the tests of a site begin.
        is_test = hasattr(mail, "outbox") and not os.environ.get("PRESENCE_ENABLED")
        settings = Settings.from_env(**({"enabled": False} if is_test else {}))
        self.recorder = recorder_for(settings)
        names = [variable(setting.name) for setting in fields(Settings)]
        given = [name for name in names if hasattr(django_settings, name)]
        ignored = [name for name in given if not os.environ.get(name)]
        if ignored and not is_test:
            self.recorder.hints.warn("django", ", ".join(ignored))
        self._visit_classes = WsgiVisit, AsgiVisit
        if not settings.enabled:
            self._visit_classes = UnrecordedWsgiVisit, UnrecordedAsgiVisit
        self._pulse = Pulse(settings) if settings.pulse_path else None
        self._board = Board(self.recorder.backend) if settings.board_path else None

    def __call__(self, request: HttpRequest) -> Any:
        answer = self._answer(request)
        return answer if self._is_async else at_once(answer)

    # The coroutines below wait for nothing in a synchronous layer.

    async def _answer(self, request: HttpRequest) -> Any:
        """Return the response to a request, and record it unless a wrapper does."""
        state = _state_of(request)
        outer: Visit | None = state.get(VISIT)
        if outer is not None and not outer.is_over:
            return await self._respond(request, outer)
        # Until Django has a user, that of the server or of an earlier request is none of Django's.
        state[USER] = lambda: None
        if "type" in state:
            state["root_path"] = request.script_name  # FORCE_SCRIPT_NAME, or that of the server
        if self._board and self._board.below(request.path_info) is not None:
            asked = request_of(state)
            if self._is_async:
                return _django_response(await self._board.respond_beside_loop(asked))
            return _django_response(self._board.respond(asked))
        signal = self._pulse.receive(request.path_info, state) if self._pulse else None
        if isinstance(signal, Response):
            return _django_response(signal)
        visit_class = self._visit_classes["type" in state]
        visit = state[VISIT] = state[READER] = visit_class(self.recorder, state, signal)
        try:
            response = await self._respond(request, visit)
        except BaseException:
            visit.end()
            raise
        if response.streaming:
            response._resource_closers.append(visit.end)
            finalize(response, visit.abandon)  # Django does not close it after all errors
            if response.is_async:
                response.streaming_content = _until_end(response.streaming_content, visit)
        else:
            visit.end()
        return response

    async def _respond(self, request: HttpRequest, visit: Visit) -> Any:
        """Return the response of the inner layers, and name the user to the visit."""
        state: Any = visit.state
        state[USER] = lambda: _account_of(_loaded_user(request, visit))
        try:
            if visit.signal is not None or visit.is_logout:
                # No view of a pulse asks for the user, and the view of a logout forgets the user.
                load = partial(getattr, getattr(request, "user", None), "is_authenticated", None)
                await sync_to_async(load)() if self._is_async else load()
                visit.note_login()
            if visit.signal is not None and visit.signal.is_own:
                return _django_response(Response(204, EMPTY, b""))
            response = self._get_response(request)
            if self._is_async:
                response = await response
            if not visit.is_usual and visit.needs_status:
                visit.answered(response.status_code)
            return response
        finally:
            # The visit may last longer than the request, and must not refer to it.
            state[USER] = partial(_account_of, _loaded_user(request, visit))


async def _until_end(stream: AsyncIterator[bytes], visit: Visit) -> AsyncIterator[bytes]:
    """Yield the parts of a stream, and end the visit with it.

    Under ASGI, Django does not close a response whose stream fails, and the error keeps it until
    the garbage collector runs.
    """
    try:
        async for part in stream:
            yield part
    finally:
        visit.end()


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
            return _account_of(_unwrapped(scope.get("user")))

        visit: Any = scope.get(VISIT)
        if visit is not None and not visit.is_over:
            # The visit reads the scope of the server, of which this one may be a copy.
            visit.state[USER] = user
        return await self.inner(scope, receive, send)


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
        # Other descriptors read the database: fields that are not loaded, and related objects.
        is_property = isinstance(getattr_static(type(user), name, None), property)
        return getattr(user, name) if is_property else vars(user).get(name)


@receiver(user_logged_out)  # type: ignore[untyped-decorator]
def _log_out(request: HttpRequest | None, user: object, **_: object) -> None:
    """Have the visit of a request remember its user, before Django clears the session."""
    visit: Visit | None = _state_of(request).get(VISIT)
    if visit is not None and user is not None:
        visit.log_out()


def _django_response(response: Response) -> HttpResponse:
    made = HttpResponse(response.body, status=response.status)
    del made["Content-Type"]
    for name, value in response.headers:
        made[name] = value
    return made


def _state_of(request: Any) -> Any:
    """Return the scope or environ of a request, or an empty mapping for none."""
    # Under ASGI, a request that a synchronous layer receives has a scope as well.
    state = getattr(request, "scope", None)
    return getattr(request, "environ", {}) if state is None else state


def _loaded_user(request: Any, visit: Visit) -> Any:
    """Return the user that Django has loaded for a request, or the id in a loaded session.

    If there may be a user whose id has not been loaded, have the `visit` count no guest.
    """
    loaded = vars(request)
    session = _unwrapped(loaded.get("session"))
    # The second is that of `await request.auser()`.
    user = _unwrapped(loaded.get("user")) or loaded.get("_acached_user")
    visit.may_be_user = False
    if user is None and session is not None:
        user, is_loaded = _session_user(session), hasattr(session, "_session_cache")
        # A rule may need more than the id, which is all that a loaded session has. A layer of the
        # site may have put something else in place of Django's session.
        has_id = user if is_loaded else getattr(session, "session_key", None)
        visit.may_be_user = has_id is not None and visit.recorder.resolver.reads_user
        visit.is_usual = visit.is_usual and not visit.may_be_user
    return user


def _account_of(user: Any) -> Any:
    """Return the account of a user who is logged in, an id as it is, and None for nobody."""
    if user is None or isinstance(user, str):
        return user
    # A deleted user has no key.
    return Account(user) if user.is_authenticated and user.pk is not None else None


def _session_user(session: object) -> object:
    """Return the id that a session holds; None if nothing has loaded the session."""
    loaded = getattr(_unwrapped(session), "_session_cache", None)
    return loaded.get(SESSION_KEY) if loaded else None


def _unwrapped(value: Any) -> Any:
    """Return the object in a loaded lazy object, and other objects unchanged. Load nothing."""
    if isinstance(value, LazyObject):
        value = value._wrapped
    return None if value is empty else value
