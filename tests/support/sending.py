"""Send a request of any bytes through the wrapper of a protocol, to an app that says hello."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from presence_middleware import Settings, asgi, wsgi
from tests.support.asking import Answer, Inner, State, exchange_asgi, exchange_wsgi, nothing

OWN = b"the app's own"


Send = Callable[..., Answer]
NO_HEADERS: Mapping[str, str] = {}


def over_wsgi(
    settings: Settings,
    url: str | bytes = "/",
    method: str = "GET",
    headers: Mapping[str, str] = NO_HEADERS,
    *,
    root: str = "",
    inner: Inner = nothing,
) -> Answer:
    """Send a request to an app mounted at `root`, which calls `inner` with the environ."""
    path, query = _split(url)
    environ = {
        **{"REQUEST_METHOD": method, "SCRIPT_NAME": root, "PATH_INFO": path.decode("latin-1")},
        **{"QUERY_STRING": query.decode("latin-1"), "REMOTE_ADDR": "192.0.2.7"},
        **{"HTTP_HOST": "site", "wsgi.url_scheme": "http"},
        **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()},
    }

    def app(environ: State, start_response: Any) -> list[bytes]:
        inner(environ)
        start_response("200 OK", [])
        return [OWN]

    return exchange_wsgi(wsgi.PresenceMiddleware(app, settings=settings), environ)


def over_asgi(
    settings: Settings,
    url: str | bytes = "/",
    method: str = "GET",
    headers: Mapping[str, str] = NO_HEADERS,
    *,
    root: str = "",
    inner: Inner = nothing,
    type: str = "http",
) -> Answer:
    """The same, with the scope."""
    path, query = _split(url)
    given = {"host": "site", **headers}
    scope: Any = {
        **{"type": type, "method": method, "query_string": query, "root_path": root},
        **{"path": root + path.decode(errors="replace"), "client": ("192.0.2.7", 1)},
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }

    async def app(scope: Any, _: Any, send: Any) -> None:
        found = inner(scope)
        if inspect.isawaitable(found):
            await found
        if type == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": OWN})

    return exchange_asgi(asgi.PresenceMiddleware(app, settings=settings), scope)


def over_websocket(*args: Any, **given: Any) -> Answer:
    return over_asgi(*args, **given, type="websocket")


def _split(url: str | bytes) -> tuple[bytes, bytes]:
    path, _, query = (url.encode() if isinstance(url, str) else url).partition(b"?")
    return unquote_to_bytes(path), query
