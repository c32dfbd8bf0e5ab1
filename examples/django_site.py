"""Django: gunicorn django_site:wsgi_application, or uvicorn django_site:asgi_application"""

from asgiref.sync import async_to_sync, iscoroutinefunction
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, JsonResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.deprecation import MiddlewareMixin

from presence_middleware import PresenceUnavailable, presence_of, visit_of

settings.configure(
    SECRET_KEY="change me",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
    INSTALLED_APPS=["presence_middleware.django"],
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "OPTIONS": {
                "context_processors": ["presence_middleware.django.context_processors.presence"]
            },
        }
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "presence_middleware.django.PresenceMiddleware",
        f"{__name__}.Identify",  # not with django.contrib.auth, whose users are found anyway
    ],
)


FRIENDS = ["ann", "bob", "eve"]  # users of your model, or their ids
PAGE = """{% load presence %}<title>Django</title>
{% online_count as n %}{% if n is not None %}<p>{{ n }} online</p>{% endif %}
{% for seen in presence.online %}<li>{{ seen.id }}</li>{% endfor %}
{% online_among friends as here %}
{% for name in friends %}<p>{{ name }}{% if name in here %} is here{% endif %}</p>{% endfor %}
"""


class Identify(MiddlewareMixin):
    def process_request(self, request):
        visit_of(request).identify(request.session.get("user"))


def ask(read, *args, **kwargs):
    """Return what Redis answers, or None while it cannot: pages then do without."""
    if iscoroutinefunction(read):  # under ASGI, a plain view waits for the reader like this
        read = async_to_sync(read)
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
    presence = presence_of(request)
    who = [seen.id for seen in ask(presence.online, limit=50) or []]
    return JsonResponse({"online": ask(presence.counts), "who": who})


async def async_home(request):
    presence = presence_of(request)
    who = [seen.id for seen in await async_ask(presence.online(limit=50)) or []]
    return JsonResponse({"online": await async_ask(presence.counts()), "who": who})


def page(request):
    """Let Django render the page, in a thread under ASGI. An outage is None in templates."""
    return TemplateResponse(request, engines["django"].from_string(PAGE), {"friends": FRIENDS})


def login(request, name):
    request.session["user"] = name
    visit_of(request).identify(name)
    return HttpResponse(f"welcome {name}")


def logout(request):
    name = request.session.pop("user", None)
    visit_of(request).identify(None)
    ask(presence_of(request).leave, name)
    return HttpResponse("bye")


urlpatterns = [
    path("", home),
    path("async", async_home),  # under ASGI, where the reader is awaited
    path("page", page),
    path("login/<name>", login),
    path("logout", logout),
]
wsgi_application = get_wsgi_application()
asgi_application = get_asgi_application()
