"""The sites that are measured: bare and wrapped."""

import flask
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from presence_middleware import asgi, wsgi


def flask_bare() -> flask.Flask:
    app = flask.Flask(__name__)
    app.add_url_rule("/", view_func=lambda: "hello")
    return app


def flask_wrapped() -> flask.Flask:
    app = flask_bare()
    app.wsgi_app = wsgi.PresenceMiddleware(app.wsgi_app)  # type: ignore[method-assign]
    return app


async def starlette_hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


def starlette_bare() -> Starlette:
    return Starlette(routes=[Route("/", starlette_hello)])


def starlette_wrapped() -> Starlette:
    return Starlette(
        routes=[Route("/", starlette_hello)], middleware=[Middleware(asgi.PresenceMiddleware)]
    )
