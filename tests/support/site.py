"""The site of the tests on real servers, without a framework, once for WSGI and once for ASGI.

What a path does is in `page`; every other path says hello. `X-User` is who is logged in, where the
settings say so.
"""

import json
import os
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any
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
<s data-presence="guest" data-room></s> <em data-presence></em>
<s data-presence="guest" data-room="{MOUNT}/t/caf%C3%A9?page=2#last"></s>
""" + "".join(f'<script src="{MOUNT}/{name}.js" async></script>' for name in SCRIPTS)
HEADERS = [
    ("Content-Type", "text/html" if HTML else "text/plain"),
    ("Content-Security-Policy", "default-src 'none'; script-src 'self'; connect-src 'self'"),
    ("X-Site", "plain"),
]


def page(path: str) -> str | None:
    """Return what is on a page; None if the reader must be asked."""
    if path == "/count":
        return None
    if path == "/pid":
        return str(os.getpid())
    return PAGE if HTML else f"hello {path}"


def wsgi_app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    path, presence = environ["PATH_INFO"], environ.get(READER)
    if path.startswith("/metrics"):
        answer: Iterable[bytes] = metrics("wsgi")(environ, start_response)
        return answer
    start_response("200 OK", [*HEADERS])
    text = page(path)
    if text is None:
        assert presence is not None
        text = json.dumps(presence.counts())
    return iter([text[:2].encode(), text[2:].encode()]) if path == "/parts" else [text.encode()]


async def asgi_app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        kind = ""
        while kind != "lifespan.shutdown":
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
        return
    path, presence = scope["path"].removeprefix(scope.get("root_path", "")), scope.get(READER)
    if path.startswith("/metrics"):
        await metrics("asgi")(scope, receive, send)
        return
    own = [(name.lower().encode(), value.encode()) for name, value in HEADERS]
    await send({"type": "http.response.start", "status": 200, "headers": own})
    text = page(path)
    if text is None:
        assert presence is not None
        text = json.dumps(await presence.counts())
    for part in (text[:2], text[2:]) if path == "/parts" else (text,):
        await send({"type": "http.response.body", "body": part.encode(), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@cache
def metrics(protocol: str) -> Any:
    from prometheus_client import REGISTRY, make_wsgi_app

    from presence_middleware.prometheus import PresenceCollector, make_asgi_app

    REGISTRY.register(PresenceCollector())
    return make_wsgi_app() if protocol == "wsgi" else make_asgi_app()


wsgi_site, asgi_site = wsgi.PresenceMiddleware(wsgi_app), asgi.PresenceMiddleware(asgi_app)
print("[ready]", file=sys.stderr, flush=True)  # a worker of gunicorn that loads this obeys signals
