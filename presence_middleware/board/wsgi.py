"""The board under WSGI."""

import warnings
from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIEnvironment

from ..connections.loops import at_once
from ..presence import Presence
from ..request import WsgiRequest, text
from .messages import Request
from .routes import Board

with warnings.catch_warnings():
    # WebOb imports `cgi`, which is deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import webob


class App(Board):
    """A WSGI app that answers requests below the board's path."""

    def __init__(self, presence: Presence) -> None:
        """Serve the board of a site, and read through `presence`."""
        super().__init__(presence.backend.queries)
        self._run = presence.run

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = self.below(environ.get("PATH_INFO", "")) or ""
        query = text(environ.get("QUERY_STRING", ""))
        request = Request(environ["REQUEST_METHOD"], path, query, WsgiRequest(environ).header)
        status, headers, body, _ = at_once(self.respond(request, self._run))
        response = webob.Response(status=status, headerlist=list(headers), app_iter=[body])
        return response(environ, start_response)  # type: ignore[no-any-return]
