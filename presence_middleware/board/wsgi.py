"""The board under WSGI."""

import warnings
from collections.abc import Iterable
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

from ..presence import Presence
from ..request import WsgiRequest, text
from ..settings import Settings
from .cache import SharedReads
from .messages import Request, Response
from .reads import Read
from .routes import Answer, Board

with warnings.catch_warnings():
    # WebOb imports `cgi`, which is deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import webob


class WsgiBoard:
    """A WSGI app that answers requests below the board's path."""

    def __init__(self, settings: Settings, presence: Presence) -> None:
        """Serve the board of `settings`, and read through `presence`."""

        def run(read: Read) -> Any:
            return presence.run(read.plan(presence.backend.queries))

        self._board, self._read = Board(settings), SharedReads(run)

    def receive(self, path: str, environ: WSGIEnvironment) -> Any:
        """Return an app for the board's paths, and None for others."""
        return None if self._board.below(path) is None else self

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = self._board.below(environ.get("PATH_INFO", "")) or ""
        query = text(environ.get("QUERY_STRING", ""))
        request = Request(environ["REQUEST_METHOD"], path, query, WsgiRequest(environ).header)
        answer = self._run(self._board.answer(request))
        response = webob.Response(
            status=answer.status, headerlist=list(answer.headers), app_iter=[answer.body]
        )
        return response(environ, start_response)  # type: ignore[no-any-return]

    def _run(self, answer: Answer) -> Response:
        try:
            read = next(answer)
            while True:
                read = answer.send(self._read(read))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
