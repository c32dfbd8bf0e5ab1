"""The board under WSGI."""

import warnings
from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIEnvironment

from ..presence import Presence
from ..request import WsgiRequest
from ..settings import Settings
from .answers import Answer, Board
from .messages import Request, Response
from .shared import Shared

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of `cgi`, which it imports
    import webob


class WsgiBoard:
    """Answers what is below the board's path; a thread waits for Redis once a second."""

    def __init__(self, settings: Settings, presence: Presence) -> None:
        self._board, self._read = Board(settings), Shared(presence)

    def serves(self, environ: WSGIEnvironment) -> bool:
        """Whether a request is for the board."""
        return self._board.below(environ.get("PATH_INFO", "")) is not None

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = self._board.below(environ.get("PATH_INFO", "")) or ""
        asked = webob.Request(environ)
        request = Request(asked.method, path, asked.query_string, WsgiRequest(environ).header)
        found = self._run(self._board.answer(request))
        response = webob.Response(
            status=found.status, headerlist=list(found.headers), app_iter=[found.body]
        )
        return response(environ, start_response)  # type: ignore[no-any-return]

    def _run(self, answer: Answer) -> Response:
        try:
            read = next(answer)
            while True:
                read = answer.send(self._read(read))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
