"""The board under WSGI."""

import warnings
from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIEnvironment

from ..connections.drivers import at_once
from ..presence import Presence
from ..request import WsgiRequest
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
        status, headers, body, _ = at_once(self.respond(WsgiRequest(environ), self._run))
        response = webob.Response(status=status, headerlist=list(headers), app_iter=[body])
        return response(environ, start_response)  # type: ignore[no-any-return]
