"""The site of test_events_chaos.py, under WSGI and ASGI. Each response is the worker's process id.

Visits, logouts and goodbyes are recorded as the settings of the site say. Some of the replies of
Redis are lost.
"""

import os
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from presence_middleware import asgi, wsgi
from tests.support.event_worker import lose_replies


def wsgi_page(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """Answer a request."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]


async def asgi_page(request: Request) -> PlainTextResponse:
    """Answer a request."""
    return PlainTextResponse(str(os.getpid()))


def wsgi_site() -> wsgi.PresenceMiddleware:
    """Return the site for gunicorn."""
    lose_replies()
    return wsgi.PresenceMiddleware(wsgi_page)


def asgi_site() -> asgi.PresenceMiddleware:
    """Return the site for uvicorn."""
    lose_replies()
    routes = [Route("/{path:path}", asgi_page, methods=["GET", "POST"])]
    return asgi.PresenceMiddleware(Starlette(routes=routes))
