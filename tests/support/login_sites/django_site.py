"""Django with its own users and sessions in SQLite; each page as a plain view and as a coroutine.

`presence_middleware.django.PresenceMiddleware` is the last of its MIDDLEWARE.
"""

from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.contrib import auth
from django.core.asgi import get_asgi_application
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

from tests.support.login_sites import (
    View,
    answer,
    answered,
    async_pages,
    pages,
    secret,
    setting,
)

USER, PASSWORD = 42, "only in this test"

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
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "presence_middleware.django.PresenceMiddleware",
    ],
)


def me(request: HttpRequest) -> object:
    return request.user.pk


def login(request: HttpRequest) -> None:
    name = f"user-{request.GET['user']}"
    auth.login(request, auth.authenticate(request, username=name, password=PASSWORD))


async def async_me(request: HttpRequest) -> object:
    return (await request.auser()).pk


async def async_login(request: HttpRequest) -> None:
    name = f"user-{request.GET['user']}"
    user = await auth.aauthenticate(request, username=name, password=PASSWORD)
    await auth.alogin(request, user)


def page(view: View) -> Any:
    def respond(request: HttpRequest) -> HttpResponse:
        return HttpResponse(answer(view(request)), content_type="text/plain")

    return respond


def async_page(view: View) -> Any:
    async def respond(request: HttpRequest) -> HttpResponse:
        return HttpResponse(await answered(view(request)), content_type="text/plain")

    return respond


urlpatterns = [
    *(path(place[1:], page(view)) for place, _, view in pages(me, login, auth.logout)),
    *(
        path(f"async{place}", async_page(view))
        for place, _, view in async_pages(async_me, async_login, auth.alogout)
    ),
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
