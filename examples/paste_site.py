"""The app of paste_site.ini, which wraps it, and has the settings of both."""

from pyramid.config import Configurator
from pyramid.httpexceptions import HTTPFound
from pyramid.session import SignedCookieSessionFactory

from presence_middleware import PresenceUnavailable, visit_of


def ask(read, *args, **kwargs):
    """Return what Redis answers, or None while it cannot: pages then do without."""
    try:
        return read(*args, **kwargs)
    except PresenceUnavailable:
        return None


def home(request):
    who = [seen.id for seen in ask(request.presence.online, limit=50) or []]
    return {"online": ask(request.presence.counts), "who": who}


def login(request):
    request.session["user"] = request.matchdict["name"]
    # Without this line, the login itself counts as a guest, and the user from the next request on.
    visit_of(request).identify(request.session["user"])
    return HTTPFound("/")


def logout(request):
    request.presence.leave(request.session.pop("user", None))
    return "bye"


def main(global_config, secret, **settings):
    with Configurator(settings=settings) as config:
        config.include("presence_middleware.pyramid")
        config.set_session_factory(SignedCookieSessionFactory(secret))
        for path, view in {"/": home, "/login/{name}": login, "/logout": logout}.items():
            config.add_route(view.__name__, path)
            config.add_view(view, route_name=view.__name__, renderer="json")
        return config.make_wsgi_app()
