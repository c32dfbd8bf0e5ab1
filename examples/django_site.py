"""Django: gunicorn django_site:wsgi_application, or uvicorn django_site:asgi_application"""

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, JsonResponse
from django.urls import path
from django.utils.deprecation import MiddlewareMixin

from presence_middleware import PresenceUnavailable, asgi, wsgi

settings.configure(
    SECRET_KEY="change me",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        f"{__name__}.Identify",
    ],
)


class Identify(MiddlewareMixin):
    def process_request(self, request):
        request.server = getattr(request, "scope", request.META)  # of ASGI, or of WSGI
        request.server["presence_middleware.visit"].identify(request.session.get("user"))


def ask(read, *args, **kwargs):
    """Return what Redis answers, or None while it cannot: pages then do without."""
    try:
        return read(*args, **kwargs)
    except PresenceUnavailable:
        return None


async def async_ask(reading):
    """Do the same for a reader that is awaited."""
    try:
        return await reading
    except PresenceUnavailable:
        return None


def home(request):
    presence = request.server["presence_middleware.presence"]
    who = [seen.id for seen in ask(presence.online, limit=50) or []]
    return JsonResponse({"online": ask(presence.counts), "who": who})


async def async_home(request):
    presence = request.server["presence_middleware.presence"]
    who = [seen.id for seen in await async_ask(presence.online(limit=50)) or []]
    return JsonResponse({"online": await async_ask(presence.counts()), "who": who})


def login(request, name):
    request.session["user"] = name
    request.server["presence_middleware.visit"].identify(name)
    return HttpResponse(f"welcome {name}")


urlpatterns = [
    path("", home),
    path("async", async_home),  # under ASGI, where the reader is awaited
    path("login/<name>", login),
]
wsgi_application = wsgi.PresenceMiddleware(get_wsgi_application())
asgi_application = asgi.PresenceMiddleware(get_asgi_application())
