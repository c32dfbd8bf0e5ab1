"""Pyramid, with a security policy over its signed session or over tickets (AuthTkt)."""

from typing import Any
from wsgiref.types import WSGIApplication

from pyramid.authentication import AuthTktCookieHelper, SessionAuthenticationHelper
from pyramid.config import Configurator
from pyramid.security import forget, remember
from pyramid.session import SignedCookieSessionFactory

from . import answer, pages, secret


class Policy:
    """A security policy around a helper of Pyramid."""

    def __init__(self, helper: Any) -> None:
        self.remember, self.forget = helper.remember, helper.forget
        self._helper = helper

    def authenticated_userid(self, request: Any) -> object:
        if isinstance(self._helper, AuthTktCookieHelper):
            found = self._helper.identify(request)
            return found and found["userid"]
        return self._helper.authenticated_userid(request)


def login(request: Any) -> None:
    request.response.headerlist += remember(request, request.params["user"])


def logout(request: Any) -> None:
    request.response.headerlist += forget(request)


def _site(helper: Any) -> WSGIApplication:
    config = Configurator(session_factory=SignedCookieSessionFactory(secret(), reissue_time=600))
    config.set_security_policy(Policy(helper))
    for path, method, view in pages(lambda request: request.authenticated_userid, login, logout):
        config.add_route(path, path)
        config.add_view(
            lambda request, view=view: answer(view(request)),
            route_name=path,
            request_method=method,
            renderer="string",
        )
    app: WSGIApplication = config.make_wsgi_app()
    return app


def with_session() -> WSGIApplication:
    """Return an app that keeps the id in the session, under `auth.userid` by default."""
    return _site(SessionAuthenticationHelper())


def with_tickets() -> WSGIApplication:
    """The id stands in a signed cookie of its own."""
    return _site(AuthTktCookieHelper(secret(), hashalg="sha512"))
