"""The site of test_processes.py, for WSGI and for ASGI: it answers by which process."""

import os
import sys
from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIEnvironment

if "WITHOUT_THREADS" in os.environ:
    sys.modules["uwsgi"].has_threads = 0  # type: ignore[attr-defined]  # as in an older uWSGI

from presence_middleware import asgi, wsgi
from presence_middleware.asgi import Receive, Scope, Send
from tests.support.live_site import live, respond


def wsgi_site(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    if environ["PATH_INFO"] == "/count":
        environ["presence_middleware.presence"].count()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"%d" % os.getpid()]


async def asgi_site(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await live(receive, send)
        return
    if scope["path"] == "/count":
        await scope["presence_middleware.presence"].count()
    await respond(send, b"%d" % os.getpid())


wsgi_wrapped = wsgi.PresenceMiddleware(wsgi_site)
asgi_wrapped = asgi.PresenceMiddleware(asgi_site)
