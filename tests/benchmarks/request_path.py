"""What the middleware adds to a request, beside what sites do by hand, in one run.

    python -m tests.benchmarks.request_path [rounds]

The time added over a wrapper that only passes through, against one inline ZADD on loopback and
against the recipe's three commands. All are measured in turn, round by round; the median ratio of
the rounds is printed. The flush thread of the middleware runs and writes meanwhile.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import redis
import redis.asyncio

from presence_middleware import Settings, asgi, wsgi

from .machine import server

PEOPLE = 500
BROWSERS = 50  # different User-Agents
REQUESTS = 2000  # a round
COMMANDS = 200  # a round
AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140 Safari"
CHAINS = {
    "header": "user=header:X-User",
    "user-agent:raw": "user=user-agent:raw",
    "cookie": "user=cookie:sid",
    "visitor": "guest=visitor",
    "default chain": "user=auth, guest=visitor",
}
START = {"type": "http.response.start", "status": 200, "headers": []}
BODY = {"type": "http.response.body", "body": b"hello"}
Row = tuple[str, float, float]  # what, times less than one command, times less than three


def environs() -> list[dict[str, Any]]:
    """WSGI requests of some people."""
    return [
        {
            "REQUEST_METHOD": "GET",
            "SCRIPT_NAME": "",
            "PATH_INFO": "/",
            "REMOTE_ADDR": f"10.0.{i // 250}.{i % 250}",
            "HTTP_HOST": "www.example.com",
            "HTTP_X_USER": f"user{i}",
            "HTTP_USER_AGENT": f"{AGENT}/{i % BROWSERS}",
            "HTTP_COOKIE": f"theme=dark; sid=0123456789abcdef{i}; csrf=fedcba9876543210",
        }
        for i in range(PEOPLE)
    ]


def scopes() -> list[dict[str, Any]]:
    """The same requests as ASGI has them."""
    names = {b"host": "HTTP_HOST", b"x-user": "HTTP_X_USER", b"user-agent": "HTTP_USER_AGENT"}
    names[b"cookie"] = "HTTP_COOKIE"
    return [
        {
            "type": "http",
            "method": "GET",
            "path": "/",
            "client": (environ["REMOTE_ADDR"], 40000),
            "headers": [(name, environ[key].encode()) for name, key in names.items()],
        }
        for environ in environs()
    ]


class PassThrough:
    """The wrapper that does nothing."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def __call__(self, environ: Any, start_response: Any) -> Any:
        return self.app(environ, start_response)


class AsyncPassThrough:
    """The wrapper that does nothing, for ASGI."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        await self.app(scope, receive, send)


def wsgi_app(environ: Any, start_response: Any) -> list[bytes]:
    return [b"hello"]


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    await send(START)
    await send(BODY)


async def send(message: Any) -> None:
    """A server that takes a message and does nothing with it."""


def time_wsgi(app: Any, requests: list[dict[str, Any]]) -> float:
    """Seconds a request."""
    began = time.perf_counter()
    for i in range(REQUESTS):
        app(requests[i % PEOPLE].copy(), None)
    return (time.perf_counter() - began) / REQUESTS


async def time_asgi(app: Any, requests: list[dict[str, Any]]) -> float:
    """Seconds a request."""
    began = time.perf_counter()
    for i in range(REQUESTS):
        await app(requests[i % PEOPLE].copy(), None, send)
    return (time.perf_counter() - began) / REQUESTS


def time_commands(client: Any) -> tuple[float, float]:
    """Seconds for one inline ZADD, and for the recipe's ZADD, ZREMRANGEBYSCORE and ZCOUNT."""
    began = time.perf_counter()
    for i in range(COMMANDS):
        client.zadd("inline", {f"user{i % PEOPLE}": time.time()})
    middle = time.perf_counter()
    for i in range(COMMANDS):
        now = time.time()
        client.zadd("recipe", {f"user{i % PEOPLE}": now})
        client.zremrangebyscore("recipe", "-inf", now - 600)
        client.zcount("recipe", now - 600, "+inf")
    return (middle - began) / COMMANDS, (time.perf_counter() - middle) / COMMANDS


async def time_async_commands(client: Any) -> tuple[float, float]:
    """The same for coroutines."""
    began = time.perf_counter()
    for i in range(COMMANDS):
        await client.zadd("inline", {f"user{i % PEOPLE}": time.time()})
    middle = time.perf_counter()
    for i in range(COMMANDS):
        now = time.time()
        await client.zadd("recipe", {f"user{i % PEOPLE}": now})
        await client.zremrangebyscore("recipe", "-inf", now - 600)
        await client.zcount("recipe", now - 600, "+inf")
    return (middle - began) / COMMANDS, (time.perf_counter() - middle) / COMMANDS


def settings(url: str, chain: str) -> Settings:
    return Settings(redis_url=url, identity=chain, secret="a secret of a benchmark", prefix="bench")  # type: ignore[arg-type]


def wsgi_rows(url: str, rounds: int) -> Iterator[Row]:
    client = redis.Redis.from_url(url)
    requests = environs()
    for name, chain in CHAINS.items():
        app = wsgi.PresenceMiddleware(wsgi_app, settings=settings(url, chain))

        def one_round(app: Any = app) -> tuple[float, float, float]:
            added = time_wsgi(app, requests) - time_wsgi(PassThrough(wsgi_app), requests)
            return added, *time_commands(client)

        yield name, *ratios([one_round() for _ in range(rounds)])
        app.recorder.close()
    client.close()


async def asgi_rows(url: str, rounds: int) -> list[Row]:
    client = redis.asyncio.Redis.from_url(url)
    requests, rows = scopes(), []
    for name, chain in CHAINS.items():
        app = asgi.PresenceMiddleware(asgi_app, settings=settings(url, chain))
        measured = []
        for _ in range(rounds):
            added = await time_asgi(app, requests)
            added -= await time_asgi(AsyncPassThrough(asgi_app), requests)
            measured.append((added, *await time_async_commands(client)))
        rows.append((name, *ratios(measured)))
        app.recorder.close()
    await client.aclose()
    return rows


def ratios(rounds: list[tuple[float, float, float]]) -> tuple[float, float]:
    """The median over the rounds of each command's time by the time added."""
    one = statistics.median(command / added for added, command, _ in rounds)
    three = statistics.median(recipe / added for added, _, recipe in rounds)
    return one, three


def report(protocol: str, rows: list[Row]) -> None:
    print(f"{protocol}: time added to a request, times less than")
    print(f"  {'':16}{'one ZADD':>10}{'the recipe':>12}")
    for name, one, three in rows:
        print(f"  {name:16}{one:>9.0f}x{three:>11.0f}x")


def main(rounds: int) -> None:
    with server() as url:
        report("WSGI", list(wsgi_rows(url, rounds)))
        report("ASGI", asyncio.run(asgi_rows(url, rounds)))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
