"""Settings, URLs and app of a Django site: its admin, and what else is installed there.

That is an API of Django REST framework with tokens, or wagtail.
"""

import os
from importlib.util import find_spec
from typing import Any

import django
from django.contrib import admin, auth
from django.core.wsgi import get_wsgi_application
from django.urls import include, path

os.environ["DJANGO_SETTINGS_MODULE"] = __name__
HAS_API, HAS_WAGTAIL = find_spec("rest_framework"), find_spec("wagtail")
SECRET_KEY = os.environ["SITE_SECRET"]
ROOT_URLCONF = __name__
ALLOWED_HOSTS = ["127.0.0.1"]
STATIC_URL = "static/"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.sqlite3"}}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "presence_middleware.django.PresenceMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
if HAS_API:
    INSTALLED_APPS += ["rest_framework", "rest_framework.authtoken"]
    REST_FRAMEWORK = {
        "DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.TokenAuthentication"]
    }
if HAS_WAGTAIL:
    WAGTAIL_SITE_NAME, WAGTAILADMIN_BASE_URL = "A site", "http://127.0.0.1"
    INSTALLED_APPS += [
        *("wagtail.contrib.forms", "wagtail.contrib.redirects", "wagtail.embeds", "wagtail.sites"),
        *("wagtail.users", "wagtail.snippets", "wagtail.documents", "wagtail.images"),
        *("wagtail.search", "wagtail.admin", "wagtail", "modelcluster", "taggit"),
    ]

application = get_wsgi_application()
urlpatterns = [path("admin/", admin.site.urls)]

if HAS_API:
    from rest_framework.authtoken.views import obtain_auth_token
    from rest_framework.decorators import api_view
    from rest_framework.response import Response

    @api_view(["GET"])
    def me(request: Any) -> Any:
        return Response(request.user.get_username())

    @api_view(["POST"])
    def logout(request: Any) -> Any:
        """Log the user of a token out: `request` is not Django's own."""
        auth.logout(request)
        return Response("bye")

    urlpatterns += [
        path("api/token", obtain_auth_token),
        path("api/me", me),
        path("api/logout", logout),
    ]
if HAS_WAGTAIL:
    urlpatterns += [path("cms/", include("wagtail.admin.urls")), path("", include("wagtail.urls"))]


def prepare(name: str, password: str) -> None:
    from django.contrib.auth.models import User
    from django.core.management import call_command

    django.setup()
    call_command("migrate", run_syncdb=True, verbosity=0)
    User.objects.create_superuser(name, password=password)
