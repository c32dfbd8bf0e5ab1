"""The board under WSGI."""

import warnings
from collections.abc import Iterable
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

from ..presence import Presence
from ..request import WsgiRequest, text
from ..settings import Settings
from .cache import Cache, SharedRead
from .messages import Request
from .routes import Board

with warnings.catch_warnings():
    # WebOb imports `cgi`, which is deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import webob


class WsgiBoard:
    """A WSGI app that answers requests below the board's path."""

    def __init__(self, settings: Settings, presence: Presence) -> None:
        """Serve the board of `settings`, and read through `presence`."""
        self._board, self._cache = Board(settings, presence.backend.queries), Cache()
        self._run = presence.run

    def receive(self, path: str, environ: WSGIEnvironment) -> Any:
        """Return an app for the board's paths, and None for others."""
        return None if self._board.below(path) is None else self

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = self._board.below(environ.get("PATH_INFO", "")) or ""
        query = text(environ.get("QUERY_STRING", ""))
        request = Request(environ["REQUEST_METHOD"], path, query, WsgiRequest(environ).header)
        answer = self._board.answer(request)
        if isinstance(answer, SharedRead):
            answer = self._cache.get(answer, self._run)
        status, headers, body, _ = answer.to(request)
        response = webob.Response(status=status, headerlist=list(headers), app_iter=[body])
        return response(environ, start_response)  # type: ignore[no-any-return]
