"""The board: pages and JSON about who is online. It is off unless `PRESENCE_BOARD_PATH` is set.

Here are its requests and responses, independent of WSGI and ASGI.
"""

from datetime import datetime
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qs
from wsgiref.types import StartResponse, WSGIEnvironment

from ..errors import QueryError
from ..request import Request, query_of
from ..sse import to_json
from ..svg import STYLE_HASH

Headers = tuple[tuple[str, str], ...]

# Parsing a longer query could hold an event loop for several milliseconds.
MAX_QUERY = 8192  # characters
MAX_PARAMETERS = 101  # 100 ids and a kind
EVERYWHERE: Headers = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    (
        "Content-Security-Policy",
        f"default-src 'none'; script-src 'self'; style-src 'self' {STYLE_HASH}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
)


def raw_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return headers as ASGI sends them."""
    return [(name.lower().encode(), value.encode()) for name, value in headers]


Query = dict[str, list[str]]
"""The values of each parameter."""


def parameters(request: Request) -> Query:
    """Return the parameters of a request. Raises `QueryError` if they are too many or too long."""
    query = query_of(request.state)
    if len(query) > MAX_QUERY:
        raise QueryError(f"the query is longer than {MAX_QUERY} characters")
    try:
        return parse_qs(query, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise QueryError(f"the query has more than {MAX_PARAMETERS} parameters") from None


class Response(NamedTuple):
    """A response to a GET request."""

    status: int
    headers: Headers
    body: bytes
    follows: tuple[str, str] | None = None
    """A kind and a cursor: the events after it follow, and the response stays open for them."""

    def to(self, request: Request) -> "Response":
        """Return the response to send: a 304 if the reader has this body, and no body for HEAD."""
        headers = (*self.headers, *EVERYWHERE)
        etag = dict(self.headers).get("ETag")
        known = request.header("if-none-match")
        # It is a list of quoted strings. A layer that compresses the body puts W/ before ours.
        if etag and known and (etag in known or known.strip() == "*"):
            rest = tuple(pair for pair in headers if pair[0] != "Content-Type")
            return Response(304, rest, b"")
        if self.follows is None:  # nobody knows the length of others
            headers = *headers, ("Content-Length", str(len(self.body)))
        body, follows = (b"", None) if request.method == "HEAD" else (self.body, self.follows)
        return Response(self.status, headers, body, follows)

    def wsgi(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        """Send this response, as a WSGI app."""
        start_response(f"{self.status} {HTTPStatus(self.status).phrase}", list(self.headers))
        return [self.body]

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        """Send this response, as an ASGI app. If events follow it, more can be sent."""
        start = {"type": "http.response.start", "status": self.status}
        await send({**start, "headers": raw_headers(self.headers)})
        body = {"type": "http.response.body", "body": self.body}
        await send({**body, "more_body": self.follows is not None})


def content(type: str, body: bytes, cache: str, unchanging: bytes | None = None) -> Response:
    """Return a response with a body of a MIME type; `cache` is the Cache-Control header.

    `unchanging` is what the ETag depends on, by default the body.
    """
    digest = blake2b(body if unchanging is None else unchanging, digest_size=12).hexdigest()
    headers = (("Content-Type", type), ("Cache-Control", cache), ("ETag", f'"{digest}"'))
    return Response(200, headers, body)


def facts(values: dict[str, Any], cache: str, now: datetime | None = None) -> Response:
    """Return a response with JSON; `cache` is the Cache-Control header.

    `now` is the time of the read, and does not change the ETag.
    """
    unchanging = to_json(values).encode()
    body = unchanging if now is None else to_json({**values, "now": now}).encode()
    return content("application/json", body, cache, unchanging)


def problem(status: int, reason: str, *headers: tuple[str, str]) -> Response:
    """Return a response with the reason of an error as JSON, which no cache stores."""
    fixed = (("Content-Type", "application/json"), ("Cache-Control", "no-store"))
    return Response(status, (*fixed, *headers), to_json({"error": reason}).encode())


BUSY = problem(503, "too many rooms are asked for at once", ("Retry-After", "1"))
UNAVAILABLE = problem(503, "Redis does not answer", ("Retry-After", "2"))
