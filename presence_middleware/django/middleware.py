"""The line of `MIDDLEWARE` that counts the visitors of a Django site. See `PresenceMiddleware`."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.contrib.auth.signals import user_logged_out
from django.core import mail
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse

from ..asgi import AsgiVisit
from ..board.cache import Cache, SharedRead
from ..board.messages import Request as BoardRequest
from ..board.messages import Response
from ..board.routes import Board
from ..connections.loops import at_once
from ..presence import AsyncPresence, Presence
from ..pulse import EMPTY, pulse_for
from ..recorder import Visit, recorder_for
from ..request import READER, USER, VISIT, AsgiRequest, WsgiRequest, text
from ..settings import Settings
from ..wsgi import WsgiVisit
from .identify import account_of, loaded_user, state_of


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

    sync_capable = True
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
        is_test = hasattr(mail, "outbox") and "PRESENCE_ENABLED" not in os.environ
        settings = Settings.from_env(**({"enabled": False} if is_test else {}))
        self.recorder = recorder_for(settings)
        self._pulse = pulse_for(settings, _request_of, _django_response)
        backend = self.recorder.backend
        self._board = Board(settings, backend.queries) if settings.board_path else None
        self._cache = Cache()
        self._sync_run, self._run = (
            Presence(backend=backend).run,
            AsyncPresence(backend=backend).run,
        )

    def __call__(self, request: HttpRequest) -> Any:
        answer = self._answer(request)
        return answer if self._is_async else at_once(answer)

    # The coroutines below wait for nothing in a synchronous layer.

    async def _answer(self, request: HttpRequest) -> Any:
        """Return the response to a request, and record it unless a wrapper does."""
        state = state_of(request)
        outer: Visit | None = state.get(VISIT)
        if outer is not None and not outer.is_over:
            return await self._respond(request, outer)
        state.pop(USER, None)  # of an earlier request, if the server uses an environ again
        if self._board and (path := self._board.below(request.path_info)) is not None:
            return await self._show_board(self._board, request, path)
        signal = self._pulse.receive(request.path_info, state) if self._pulse else None
        if isinstance(signal, HttpResponse):
            return signal
        visit_class = AsgiVisit if "type" in state else WsgiVisit
        visit = state[VISIT] = state[READER] = visit_class(self.recorder, state, signal)
        try:
            response = await self._respond(request, visit)
        except BaseException:
            visit.end()
            raise
        if response.streaming:
            response._resource_closers.append(_End(visit))
        else:
            visit.end()
        return response

    async def _respond(self, request: HttpRequest, visit: Visit) -> Any:
        """Return the response of the inner layers, and name the user to the visit."""
        state: Any = visit.state
        state[USER] = lambda: account_of(loaded_user(request, visit))
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
            state[USER] = partial(account_of, loaded_user(request, visit))

    async def _show_board(self, board: Board, request: HttpRequest, path: str) -> HttpResponse:
        query = text(request.META.get("QUERY_STRING", ""))
        asked = BoardRequest(request.method, path, query, request.headers.get)
        answer = board.answer(asked)
        if isinstance(answer, SharedRead) and self._is_async:
            answer = await self._cache.get_async(answer, self._run)
        elif isinstance(answer, SharedRead):
            answer = self._cache.get(answer, self._sync_run)
        return _django_response(answer.to(asked))


class _End:
    """Ends a visit when its response is closed, or dropped unclosed."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit

    def __call__(self) -> None:
        self._visit.end()

    def __del__(self) -> None:
        self._visit.abandon()  # does nothing after `end`


@receiver(user_logged_out)  # type: ignore[untyped-decorator]
def _log_out(request: HttpRequest | None, user: object, **_: object) -> None:
    """Have the visit of a request remember its user, before Django clears the session."""
    visit: Visit | None = state_of(request).get(VISIT)
    if visit is not None and user is not None:
        visit.log_out()


def _request_of(state: Any) -> AsgiRequest | WsgiRequest:
    return AsgiRequest(state) if "type" in state else WsgiRequest(state)


def _django_response(response: Response) -> HttpResponse:
    made = HttpResponse(response.body, status=response.status)
    del made["Content-Type"]
    for name, value in response.headers:
        made[name] = value
    return made
