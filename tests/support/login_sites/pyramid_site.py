"""Pyramid, with a security policy over its signed session or over tickets (AuthTkt)."""

from collections.abc import Callable
from typing import Any
from wsgiref.types import WSGIApplication

from pyramid.authentication import AuthTktCookieHelper, SessionAuthenticationHelper
from pyramid.config import Configurator
from pyramid.response import Response
from pyramid.security import forget, remember
from pyramid.session import SignedCookieSessionFactory

from . import answer, names, secret

View = Callable[[Any], Any]


class Policy:
    """A security policy around a helper of Pyramid."""

    def __init__(self, helper: Any) -> None:
        self.remember, self.forget = helper.remember, helper.forget
        self._helper = helper

    def identity(self, request: Any) -> object:
        if isinstance(self._helper, AuthTktCookieHelper):
            found = self._helper.identify(request)
            return found and found["userid"]
        return self._helper.authenticated_userid(request)

    authenticated_userid = identity

    def permits(self, request: Any, context: object, permission: str) -> bool:
        return self.identity(request) is not None


def home(request: Any) -> Any:
    return Response(answer("hello"))


def me(request: Any) -> Any:
    return Response(answer(request.authenticated_userid))


def login(request: Any) -> Any:
    user = request.params["user"]
    return Response(answer("welcome"), headerlist=[*PLAIN, *remember(request, user)])


def logout(request: Any) -> Any:
    return Response(answer("bye"), headerlist=[*PLAIN, *forget(request)])


def online(request: Any) -> Any:
    return Response(
        names(seen.id for seen in request.environ["presence_middleware.presence"].online())
    )


PLAIN = [("Content-Type", "text/plain; charset=utf-8")]
PAGES: dict[str, View] = {"": home, "me": me, "online": online}
FORMS: dict[str, View] = {"login": login, "logout": logout}


def _site(helper: Any) -> WSGIApplication:
    config = Configurator(session_factory=SignedCookieSessionFactory(secret(), reissue_time=600))
    config.set_security_policy(Policy(helper))
    for name, view in {**PAGES, **FORMS}.items():
        config.add_route(name or "home", f"/{name}")
        method = "POST" if name in FORMS else "GET"
        config.add_view(view, route_name=name or "home", request_method=method)
    app: WSGIApplication = config.make_wsgi_app()
    return app


def with_session() -> WSGIApplication:
    """Return an app that keeps the id in the session, under `auth.userid` by default."""
    return _site(SessionAuthenticationHelper())


def with_tickets() -> WSGIApplication:
    """The id stands in a signed cookie of its own."""
    return _site(AuthTktCookieHelper(secret(), hashalg="sha512"))
