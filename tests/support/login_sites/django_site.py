"""Django with its own users and sessions in SQLite; each page as a plain view and as a coroutine.

`presence_middleware.django.PresenceMiddleware` is the last of its MIDDLEWARE, unless SITE_BARE is
set. Every response says how many queries its process has made so far.
"""

from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.contrib import auth
from django.core.asgi import get_asgi_application
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.db.backends.signals import connection_created
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.deprecation import MiddlewareMixin

from tests.support.login_sites import answer, names, secret, setting

USER, PASSWORD = 42, "only in this test"
LINE = [] if setting("BARE", "") else ["presence_middleware.django.PresenceMiddleware"]

settings.configure(
    SECRET_KEY=secret(),
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    USE_TZ=True,
    INSTALLED_APPS=[
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.sessions",
    ],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": Path(setting("FOLDER", "")) / "site.sqlite3",
        }
    },
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],  # quick
    MIDDLEWARE=[
        f"{__name__}.CountQueries",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        *LINE,
    ],
)
queries: list[str] = []


class CountQueries(MiddlewareMixin):  # type: ignore[misc]  # Django has no types
    """Sends the number of queries of this process, from all requests, in a header."""

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        response["X-Queries"] = str(len(queries))
        return response


def _count(execute: Any, sql: str, *rest: Any) -> Any:
    queries.append(sql)
    return execute(sql, *rest)


def _watch(connection: Any, **_: object) -> None:
    if _count not in connection.execute_wrappers:
        connection.execute_wrappers.append(_count)


connection_created.connect(_watch)


def _text(said: object) -> HttpResponse:
    return HttpResponse(answer(said), content_type="text/plain")


def home(request: HttpRequest) -> HttpResponse:
    return _text("hello")


def me(request: HttpRequest) -> HttpResponse:
    return _text(request.user.pk)


def login(request: HttpRequest) -> HttpResponse:
    name = f"user-{request.GET['user']}"
    auth.login(request, auth.authenticate(request, username=name, password=PASSWORD))
    return _text("welcome")


def logout(request: HttpRequest) -> HttpResponse:
    auth.logout(request)
    return _text("bye")


def online(request: HttpRequest) -> HttpResponse:
    found = request.environ["presence_middleware.presence"].online()
    return HttpResponse(names(seen.id for seen in found), content_type="text/plain")


async def async_home(request: HttpRequest) -> HttpResponse:
    return _text("hello")


async def async_me(request: HttpRequest) -> HttpResponse:
    return _text((await request.auser()).pk)


async def async_login(request: HttpRequest) -> HttpResponse:
    name = f"user-{request.GET['user']}"
    user = await auth.aauthenticate(request, username=name, password=PASSWORD)
    await auth.alogin(request, user)
    return _text("welcome")


async def async_logout(request: HttpRequest) -> HttpResponse:
    await auth.alogout(request)
    return _text("bye")


async def async_online(request: HttpRequest) -> HttpResponse:
    found = await request.scope["presence_middleware.presence"].online()
    return HttpResponse(names(seen.id for seen in found), content_type="text/plain")


urlpatterns = [
    path("", home),
    path("me", me),
    path("login", login),
    path("logout", logout),
    path("online", online),
    path("async/", async_home),
    path("async/me", async_me),
    path("async/login", async_login),
    path("async/logout", async_logout),
    path("async/online", async_online),
]


def wsgi() -> Any:
    return get_wsgi_application()


def asgi() -> Any:
    return get_asgi_application()


def prepare() -> None:
    django.setup()
    call_command("migrate", verbosity=0)
    users = auth.get_user_model().objects
    users.create_user(f"user-{USER}", password=PASSWORD, id=USER)
