"""What the board is asked and what it answers: values, of no protocol."""

import json
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, NamedTuple
from urllib.parse import parse_qs

Headers = tuple[tuple[str, str], ...]

EVERYWHERE: Headers = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
)


class Request(NamedTuple):
    """What somebody asks the board: `path` is what follows the board's own."""

    method: str
    path: str
    query: str
    header: Callable[[str], str | None]

    def parameter(self, name: str) -> str | None:
        """A parameter of the query; None if it is not there."""
        found = parse_qs(self.query, keep_blank_values=True, encoding="utf-8", errors="replace")
        return found[name][0] if name in found else None


class Response(NamedTuple):
    """A whole answer."""

    status: int
    headers: Headers
    body: bytes

    def to(self, request: Request) -> "Response":
        """What is really sent: not again what the reader has, and no body to HEAD."""
        headers = (*self.headers, *EVERYWHERE)
        etag = dict(self.headers).get("ETag")
        if etag is not None and _has(request.header("if-none-match"), etag):
            kept = tuple(pair for pair in headers if pair[0] != "Content-Type")
            return Response(304, kept, b"")
        length = ("Content-Length", str(len(self.body)))
        return Response(
            self.status, (*headers, length), b"" if request.method == "HEAD" else self.body
        )


def text(type: str, body: bytes, cache: str) -> Response:
    """A page or a script."""
    kept = ("Cache-Control", cache), ("ETag", _etag(body))
    return Response(200, (("Content-Type", f"text/{type}; charset=utf-8"), *kept), body)


def facts(found: dict[str, Any], cache: str, now: str | None = None) -> Response:
    """JSON; the time at which it was read makes it no other answer."""
    body = _json(found if now is None else {**found, "now": now})
    kept = ("Cache-Control", cache), ("ETag", _etag(_json(found)))
    return Response(200, (("Content-Type", "application/json"), *kept), body)


def problem(status: int, why: str, *headers: tuple[str, str]) -> Response:
    """JSON that says why there is no other answer."""
    never = ("Cache-Control", "no-store")
    return Response(
        status, (("Content-Type", "application/json"), never, *headers), _json({"error": why})
    )


def _json(found: dict[str, Any]) -> bytes:
    """ASCII alone: whatever an id holds, no terminal, log or old browser takes it for its own."""
    return json.dumps(found, ensure_ascii=True, separators=(",", ":")).encode()


def _etag(body: bytes) -> str:
    return f'"{blake2b(body, digest_size=12).hexdigest()}"'


def _has(known: str | None, etag: str) -> bool:
    """Whether an If-None-Match names it; layers that compress make it a weak one."""
    names = [name.strip().removeprefix("W/") for name in (known or "").split(",")]
    return etag in names or "*" in names
