"""The site of the tests on real servers, without a framework, once for WSGI and once for ASGI.

What a path does is in `page`; every other path says hello. Under ASGI, `/events` is a stream that
begins with a list of who is online. `X-User` is who is logged in, where the settings say so.
"""

import json
import os
import sys
from collections.abc import AsyncGenerator, Iterable
from wsgiref.types import StartResponse, WSGIEnvironment

if "WITHOUT_THREADS" in os.environ:
    sys.modules["uwsgi"].has_threads = 0  # type: ignore[attr-defined]  # as in an older uWSGI

from presence_middleware import asgi, wsgi
from presence_middleware.asgi import Receive, Scope, Send

READER = "presence_middleware.presence"
MOUNT, HTML = os.environ.get("MOUNT", ""), "HTML" in os.environ
SCRIPTS = ["presence/widget", *(["pulse"] if "PRESENCE_PULSE_PATH" in os.environ else [])]
PAGE = f"""<!doctype html><title>Shop</title>
<b data-presence data-room></b> <i data-presence data-room="{MOUNT}/t/2"></i>
<u data-presence data-room="/else/t/1"></u> <s data-presence="guest"></s>
<s data-presence="guest" data-room>?</s> <em data-presence></em>
<s data-presence="guest" data-room="/t/caf%C3%A9&+?page=2#last"></s>
""" + "".join(f'<script src="{MOUNT}/{name}.js" async></script>' for name in SCRIPTS)
HEADERS = [
    ("Content-Type", "text/html" if HTML else "text/plain"),
    ("Content-Security-Policy", "default-src 'none'; script-src 'self'; connect-src 'self'"),
    ("X-Site", "plain"),
]


def headers(text: str) -> list[tuple[str, str]]:
    return [*HEADERS, ("Content-Length", str(len(text.encode())))]


def page(path: str) -> str | None:
    """Return what is on a page; None if the reader must be asked."""
    if path == "/count":
        return None
    if path == "/pid":
        return str(os.getpid())
    return PAGE if HTML else f"hello {path}"


def wsgi_app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    path, presence = environ["PATH_INFO"], environ.get(READER)
    text = page(path)
    if text is None:
        assert presence is not None
        text = json.dumps(presence.counts())
    start_response("200 OK", headers(text))
    return iter([text[:2].encode(), text[2:].encode()]) if path == "/parts" else [text.encode()]


async def asgi_app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        kind = ""
        while kind != "lifespan.shutdown":
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
        return
    path, presence = scope["path"].removeprefix(scope.get("root_path", "")), scope.get(READER)
    if path == "/events":
        await events(scope, receive, send)
        return
    text = page(path)
    if text is None:
        assert presence is not None
        text = json.dumps(await presence.counts())
    own = [(name.lower().encode(), value.encode()) for name, value in headers(text)]
    await send({"type": "http.response.start", "status": 200, "headers": own})
    for part in (text[:2], text[2:]) if path == "/parts" else (text,):
        await send({"type": "http.response.body", "body": part.encode(), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def events(scope: Scope, receive: Receive, send: Send) -> None:
    """Send a list of who is online, and then all events."""
    from starlette.responses import Response, StreamingResponse

    from presence_middleware import PresenceUnavailable, sse

    found = scope[READER].events()  # before the question, so that nothing is missed
    try:
        online = [who.id for who in await scope[READER].online(limit=None)]
    except PresenceUnavailable:
        await found.aclose()
        await Response(status_code=503)(scope, receive, send)
        return

    async def messages() -> AsyncGenerator[str]:
        yield f"event: list\ndata: {json.dumps(online)}\n\n"
        async for message in sse.server_sent_events(found):
            yield message

    await StreamingResponse(messages(), headers=sse.HEADERS)(scope, receive, send)


wsgi_site, asgi_site = wsgi.PresenceMiddleware(wsgi_app), asgi.PresenceMiddleware(asgi_app)
print("[ready]", file=sys.stderr, flush=True)  # a worker of gunicorn that loads this obeys signals
