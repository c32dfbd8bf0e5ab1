"""The app of pyramid_site.ini, where two lines wrap it, and of paste_site.ini."""

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


def identify(event):
    request = event.request
    visit_of(request).identify(request.session.get("user"))


def home(request):
    who = [seen.id for seen in ask(request.presence.online, limit=50) or []]
    return {"online": ask(request.presence.counts), "who": who}


def login(request):
    request.session["user"] = request.matchdict["name"]
    visit_of(request).identify(request.session["user"])
    return HTTPFound("/")


def logout(request):
    request.presence.leave(request.session.pop("user", None))
    return "bye"


def main(global_config, secret="change me", **settings):
    with Configurator(settings=settings) as config:
        config.include("presence_middleware.pyramid")
        config.set_session_factory(SignedCookieSessionFactory(secret))
        config.add_subscriber(identify, "pyramid.events.NewRequest")
        for path, view in {"/": home, "/login/{name}": login, "/logout": logout}.items():
            config.add_route(view.__name__, path)
            config.add_view(view, route_name=view.__name__, renderer="json")
        return config.make_wsgi_app()
