"""The sites that are measured: bare, wrapped, and one that sends a ZADD with each request."""

import os
import time
from typing import Any

import flask
import redis
import redis.asyncio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from presence_middleware import asgi, wsgi

REDIS = "PRESENCE_REDIS_URL"


def flask_bare() -> flask.Flask:
    app = flask.Flask(__name__)
    app.add_url_rule("/", view_func=lambda: "hello")
    return app


def flask_wrapped() -> flask.Flask:
    app = flask_bare()
    app.wsgi_app = wsgi.PresenceMiddleware(app.wsgi_app)  # type: ignore[method-assign]
    return app


def flask_zadd() -> flask.Flask:
    app, client = flask.Flask(__name__), redis.Redis.from_url(os.environ[REDIS])

    @app.route("/")
    def hello() -> str:
        client.zadd("online", {flask.request.headers["X-User"]: time.time()})
        return "hello"

    return app


async def starlette_hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


def starlette_bare() -> Starlette:
    return Starlette(routes=[Route("/", starlette_hello)])


def starlette_wrapped() -> Starlette:
    return Starlette(
        routes=[Route("/", starlette_hello)], middleware=[Middleware(asgi.PresenceMiddleware)]
    )


def starlette_zadd() -> Starlette:
    client = redis.asyncio.Redis.from_url(os.environ[REDIS])

    async def hello(request: Request) -> PlainTextResponse:
        await client.zadd("online", {request.headers["X-User"]: time.time()})
        return PlainTextResponse("hello")

    return Starlette(routes=[Route("/", hello)])


def plain_wrapped() -> Any:
    """Without a framework, for when only the traffic to Redis matters."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "5")])
        return [b"hello"]

    return wsgi.PresenceMiddleware(app)
