"""Small sites, each logging in as its framework does. Only one page uses presence.

All have the same pages:

- `/` looks neither at the user nor at the session; `/me` asks the framework who is logged in.
- `POST /login?user=42` and `POST /logout` do what their names say, the framework's way.
- `/online` asks for a number: the only one that knows that the site is wrapped.

Those of Django are also below `/async/`, as coroutines. Its sessions and users are in SQLite.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from inspect import isawaitable
from typing import Annotated, Any
from wsgiref.types import WSGIApplication

import bottle
import channels.auth
import flask
import jwt
from beaker.middleware import SessionMiddleware as BeakerMiddleware
from cachelib import SimpleCache
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.routing import ProtocolTypeRouter, URLRouter
from django.contrib import auth
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, HttpResponse
from django.urls import path, re_path
from fastapi import Depends, FastAPI
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from flask_login import LoginManager, UserMixin, current_user, login_user, logout_user
from flask_session import Session  # type: ignore[import-untyped]
from pyramid.authentication import AuthTktCookieHelper, SessionAuthenticationHelper
from pyramid.config import Configurator
from pyramid.security import forget, remember
from pyramid.session import SignedCookieSessionFactory
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from presence_middleware import presence_of
from presence_middleware.django import IdentifyWebSocketUser

SECRET = "what this site signs with and nobody else"
NOBODY = "nobody"

View = Callable[[Any], object]
"""What a page says to a request of the framework, perhaps as a coroutine."""


def pages(me: View, login: View, logout: View) -> list[tuple[str, str, View]]:
    """Return the path, the method and the view of each page."""
    return [
        ("/", "GET", lambda _: "hello"),
        ("/me", "GET", me),
        ("/login", "POST", login),
        ("/logout", "POST", logout),
        ("/online", "GET", lambda request: presence_of(request).count()),
    ]


def answer(said: object) -> str:
    return str(said or NOBODY)


def async_page(view: View, respond: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return a coroutine function that responds with what a view says."""

    async def page(request: Any) -> Any:
        said = view(request)
        return respond(answer(await said if isawaitable(said) else said))

    return page


# Flask: the id stands in the session, once by itself and once within mappings.


def flask_of(*views: View, cookie: str = "session") -> flask.Flask:
    app = flask.Flask("site")
    app.secret_key = SECRET
    app.config["SESSION_COOKIE_NAME"] = cookie
    for place, method, view in pages(*views):
        app.add_url_rule(
            place, place, lambda view=view: answer(view(flask.request)), methods=[method]
        )
    return app


def flask_site(cookie: str = "session") -> flask.Flask:
    def login(request: Any) -> None:
        id = request.args["user"]
        flask.session.update(user=id, account={"user": {"id": int(id)}})

    return flask_of(
        lambda _: flask.session.get("user"), login, lambda _: flask.session.clear(), cookie=cookie
    )


def flask_session_site() -> flask.Flask:
    app = flask_site()
    app.config.update(SESSION_TYPE="cachelib", SESSION_CACHELIB=SimpleCache())
    Session(app)
    return app


class User(UserMixin):  # type: ignore[misc]  # Flask-Login has no types
    """A user with an id."""

    def __init__(self, id: str) -> None:
        self.id = id


def flask_login_site() -> flask.Flask:
    """Make the site with Flask-Login, which keeps the id in the session as `_user_id`."""
    app = flask_of(
        lambda _: current_user.get_id(),
        lambda request: login_user(User(request.args["user"])),
        lambda _: logout_user(),
    )
    LoginManager(app).user_loader(User)
    return app


# Bottle with Beaker's sessions; the cookie holds no more than their key.


def beaker_site() -> WSGIApplication:
    def session() -> Any:
        return bottle.request.environ["beaker.session"]

    def login(request: Any) -> None:
        session()["user"] = request.query["user"]
        session().save()

    app = bottle.Bottle()
    for place, method, view in pages(
        lambda _: session().get("user"), login, lambda _: session().delete()
    ):
        app.route(place, method, callback=lambda view=view: answer(view(bottle.request)))
    wrapped: WSGIApplication = BeakerMiddleware(app, {"session.type": "memory"})
    return wrapped


# Pyramid, with a security policy over its signed session or over tickets (AuthTkt).


class Policy:
    """A security policy around a helper of Pyramid, and a function that finds who is logged in."""

    def __init__(self, helper: Any, find: View) -> None:
        self.remember, self.forget, self.authenticated_userid = helper.remember, helper.forget, find


def pyramid_of(policy: Policy) -> WSGIApplication:
    def login(request: Any) -> None:
        request.response.headerlist += remember(request, request.params["user"])

    def logout(request: Any) -> None:
        request.response.headerlist += forget(request)

    config = Configurator(session_factory=SignedCookieSessionFactory(SECRET, reissue_time=600))
    config.set_security_policy(policy)
    for place, method, view in pages(lambda request: request.authenticated_userid, login, logout):
        config.add_route(place, place)
        config.add_view(
            lambda request, view=view: answer(view(request)),
            route_name=place,
            request_method=method,
            renderer="string",
        )
    app: WSGIApplication = config.make_wsgi_app()
    return app


def pyramid_site() -> WSGIApplication:
    """Make an app that keeps the id in the session, under `auth.userid` by default."""
    helper = SessionAuthenticationHelper()
    return pyramid_of(Policy(helper, helper.authenticated_userid))


def ticket_site() -> WSGIApplication:
    """Make an app whose ids stand in a signed cookie of their own."""
    helper = AuthTktCookieHelper(SECRET, hashalg="sha512")
    return pyramid_of(
        Policy(helper, lambda request: (helper.identify(request) or {}).get("userid"))
    )


# Starlette's SessionMiddleware, alone or with its AuthenticationMiddleware over that session.


class SessionBackend(AuthenticationBackend):
    """Logs in the user of the session at every request."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        name = conn.session.get("member")
        return (AuthCredentials(["authenticated"]), SimpleUser(name)) if name else None


def starlette_site(*middleware: Middleware) -> Starlette:
    def me(request: Request) -> object:
        if "user" in request.scope:
            return request.user.display_name
        return request.session.get("member")

    def login(request: Request) -> None:
        request.session["member"] = request.query_params["user"]

    views = pages(me, login, lambda request: request.session.clear())
    return Starlette(
        routes=[
            Route(place, async_page(view, PlainTextResponse), methods=[method])
            for place, method, view in views
        ],
        middleware=[Middleware(SessionMiddleware, secret_key=SECRET), *middleware],
    )


def starlette_auth_site() -> Starlette:
    return starlette_site(Middleware(AuthenticationMiddleware, backend=SessionBackend()))


# FastAPI with a JWT in the Authorization header: HS256.

Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


def bearer_site() -> FastAPI:
    def me(request: Request) -> object:
        credentials = request.state.credentials
        return credentials and jwt.decode(credentials.credentials, SECRET, ["HS256"])["sub"]

    def login(request: Request) -> str:
        expires = datetime.now(UTC) + timedelta(hours=1)
        return jwt.encode({"sub": request.query_params["user"], "exp": expires}, SECRET, "HS256")

    app = FastAPI(default_response_class=PlainTextResponse)

    def add(place: str, method: str, view: View) -> None:
        respond = async_page(view, str)

        async def page(request: Request, credentials: Credentials) -> str:
            request.state.credentials = credentials
            said: str = await respond(request)
            return said

        app.add_api_route(place, page, methods=[method])

    # A logout has nothing to do: the token is the client's to throw away.
    for each in pages(me, login, lambda _: None):
        add(*each)
    return app


# Django, each page as a plain view and as a coroutine.


def login(request: HttpRequest) -> None:
    auth.login(request, auth.get_user_model().objects.get(pk=request.GET["user"]))


async def async_me(request: HttpRequest) -> object:
    return (await request.auser()).pk


async def async_login(request: HttpRequest) -> None:
    user = await auth.get_user_model().objects.aget(pk=request.GET["user"])
    await auth.alogin(request, user)


urlpatterns = [
    *(
        path(place[1:], lambda request, view=view: HttpResponse(answer(view(request))))
        for place, _, view in pages(lambda request: request.user.pk, login, auth.logout)
    ),
    *(
        path(f"async{place}", async_page(view, HttpResponse))
        for place, _, view in pages(async_me, async_login, auth.alogout)
    ),
]


class Socket(AsyncWebsocketConsumer):  # type: ignore[misc]  # Channels has no types
    """A client with an open WebSocket. It answers each command with the user."""

    async def receive(self, text_data: str) -> None:
        if text_data == "logout":
            await channels.auth.logout(self.scope)
        elif text_data != "me":
            user = await auth.get_user_model().objects.aget(pk=text_data)
            await channels.auth.login(self.scope, user)
        await self.send(answer(self.scope["user"].pk))


def channels_site() -> Any:
    """Make a site behind the routers of Channels, which pass on copies of the scope."""
    sockets = IdentifyWebSocketUser(URLRouter([path("socket", Socket.as_asgi())]))
    routes = {
        "http": URLRouter([re_path("", ASGIHandler())]),
        "websocket": channels.auth.AuthMiddlewareStack(sockets),
    }
    return ProtocolTypeRouter(routes)
