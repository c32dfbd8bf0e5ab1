"""The site of test_soak_site.py, for gunicorn and for uvicorn. A page is a room.

Under ASGI, `/events` is a stream that begins with a list of who is online.
"""

import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from presence_middleware import PresenceUnavailable, asgi, presence_of, wsgi
from presence_middleware.sse import HEADERS, server_sent_events


def wsgi_page(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "4")])
    return [b"page"]


async def asgi_page(_: Request) -> Response:
    return PlainTextResponse("page")


async def events(request: Request) -> Response:
    """Send a list, and then all events."""
    presence: Any = presence_of(request)
    found = presence.events()  # before the question, so that nothing is missed
    try:
        online = [who.id for who in await presence.online(limit=None)]
    except PresenceUnavailable:
        await found.aclose()
        return Response(status_code=503)

    async def messages() -> AsyncGenerator[str]:
        yield f"event: list\ndata: {json.dumps(online)}\n\n"
        async for message in server_sent_events(found):
            yield message

    return StreamingResponse(messages(), headers=HEADERS)


ROUTES = [Route("/events", events), Route("/{path:path}", asgi_page, methods=["GET", "POST"])]
wsgi_site = wsgi.PresenceMiddleware(wsgi_page)
asgi_site = asgi.PresenceMiddleware(Starlette(routes=ROUTES))
