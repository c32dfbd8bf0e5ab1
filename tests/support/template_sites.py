"""A site in each framework whose pages are templates with `presence`.

Each site has the pages `/nothing`, which does not use it, `/count`, `/among`, which shows who of
`USERS` is online, and `/nobody`, which shows who of no users is.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import django
import flask
import httpx
from django.conf import settings as django_settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path
from jinja2 import DictLoader, Environment
from pyramid.config import Configurator
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.templating import Jinja2Templates

from presence_middleware import Settings, WouldBlock, asgi, wsgi
from presence_middleware.flask import init_app
from presence_middleware.starlette import presence_context
from tests.support.transports import AsgiTransport

SESSION = "django.contrib.sessions.middleware.SessionMiddleware"
LAYERS = (SESSION, "django.contrib.auth.middleware.AuthenticationMiddleware")
LINE = "presence_middleware.django.PresenceMiddleware"
USERS = ["7", "8", "9"]
JINJA = {
    "nothing": "nothing",
    "count": "{{ presence.count() }}",
    "among": "{{ presence.online_among(['7', '8', '9']) }}",
    "nobody": "{{ presence.online_among([]) }}",
}
DJANGO = {
    "nothing": "{% load presence %}nothing",
    "count": "{% load presence %}{% online_count as n %}{{ n }}",
    "shown": "{% load presence %}({% online_count %})",
    "variable": "{{ presence.count }}",
    "among": "{% load presence %}{% online_among users as here %}{{ here }}",
    "nobody": "{% load presence %}{% online_among nobody as here %}{{ here }}",
}


class Account(NamedTuple):
    """A user as a model of the site has it."""

    pk: int | None
    username: str = ""


ACCOUNTS = [Account(int(id)) for id in USERS]

Get = Callable[[str], httpx.Response]


def over_wsgi(app: Any) -> Get:
    return httpx.Client(transport=httpx.WSGITransport(app), base_url="http://test").get


def over_asgi(app: Any) -> Get:
    return httpx.Client(transport=AsgiTransport(app, asyncio.run), base_url="http://test").get


def flask_site(settings: Settings) -> Get:
    app = flask.Flask(__name__)
    app.testing = True
    init_app(app, settings=settings)

    @app.get("/<name>")
    def page(name: str) -> str:
        return flask.render_template_string(JINJA[name])

    return over_wsgi(app)


def starlette_site(settings: Settings) -> Get:
    """Starlette with the context processor; handlers without `async`, and one with."""
    environment = Environment(loader=DictLoader(JINJA), autoescape=True)
    templates = Jinja2Templates(env=environment, context_processors=[presence_context])

    def page(request: Request) -> Response:
        return templates.TemplateResponse(request, request.path_params["name"])

    async def in_loop(request: Request) -> Response:
        try:
            return page(request)
        except WouldBlock as error:
            return Response(str(error))

    app = Starlette(routes=[Route("/{name}", page), Route("/in-loop/{name}", in_loop)])
    return over_asgi(asgi.PresenceMiddleware(app, settings=settings))


def pyramid_site(settings: Settings) -> Get:
    """Pyramid with `config.include`, and Jinja2 as a renderer."""
    environment = Environment(loader=DictLoader(JINJA))

    def factory(_: object) -> Callable[[Any, Any], str]:
        return lambda value, system: environment.get_template(value).render(**system)

    with Configurator() as config:
        config.include("presence_middleware.pyramid")
        config.add_renderer("jinja", factory)
        config.add_route("page", "/{name}")
        config.add_view(
            lambda request: request.matchdict["name"], route_name="page", renderer="jinja"
        )
        app = config.make_wsgi_app()
    return over_wsgi(wsgi.PresenceMiddleware(app, settings=settings))


def page(request: HttpRequest, name: str) -> HttpResponse:
    return render(request, name, {"users": ACCOUNTS})


async def in_loop(request: HttpRequest, name: str) -> HttpResponse:
    try:
        return page(request, name)
    except WouldBlock as error:
        return HttpResponse(str(error))


urlpatterns = [path("<name>", page), path("in-loop/<name>", in_loop)]


def configure_django() -> None:
    if django_settings.configured:
        return
    contrib = [f"django.contrib.{name}" for name in ("auth", "contenttypes", "sessions")]
    options = {
        "context_processors": ["presence_middleware.django.context_processors.presence"],
        "loaders": [("django.template.loaders.locmem.Loader", DJANGO)],
    }
    backend = "django.template.backends.django.DjangoTemplates"
    django_settings.configure(
        SECRET_KEY="only in this test",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        DEBUG_PROPAGATE_EXCEPTIONS=True,
        INSTALLED_APPS=[*contrib, "presence_middleware.django"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3"}},
        SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
        TEMPLATES=[{"BACKEND": backend, "OPTIONS": options}],
    )
    django.setup()


def django_site(settings: Settings) -> Get:
    configure_django()
    return over_wsgi(wsgi.PresenceMiddleware(get_wsgi_application(), settings=settings))


def django_async_site(settings: Settings) -> Get:
    configure_django()
    return over_asgi(asgi.PresenceMiddleware(get_asgi_application(), settings=settings))


SITES: dict[str, Callable[[Settings], Get]] = {
    "flask": flask_site,
    "starlette": starlette_site,
    "pyramid": pyramid_site,
    "django": django_site,
    "django-async": django_async_site,
}
