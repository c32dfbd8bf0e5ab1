"""The site of test_metrics.py, once for WSGI and once for ASGI, with its metrics at /metrics."""

from flask import Flask
from prometheus_client import REGISTRY, make_wsgi_app
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from presence_middleware import asgi, wsgi
from presence_middleware.prometheus import PresenceCollector, make_asgi_app

REGISTRY.register(PresenceCollector())


async def home(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


flask_site = Flask(__name__)
flask_site.get("/")(lambda: "hello")
metrics = DispatcherMiddleware(flask_site.wsgi_app, {"/metrics": make_wsgi_app()})
flask_site.wsgi_app = wsgi.PresenceMiddleware(metrics)  # type: ignore[method-assign]

starlette_site = Starlette(
    routes=[Route("/", home), Mount("/metrics", make_asgi_app())],
    middleware=[Middleware(asgi.PresenceMiddleware)],
)
