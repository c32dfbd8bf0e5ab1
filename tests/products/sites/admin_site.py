"""Settings, URLs and app of a Django site that is nothing but its admin."""

import os

import django
from django.contrib import admin
from django.core.wsgi import get_wsgi_application
from django.urls import path

os.environ["DJANGO_SETTINGS_MODULE"] = __name__
SECRET_KEY = os.environ["SITE_SECRET"]
ROOT_URLCONF = __name__
ALLOWED_HOSTS = ["127.0.0.1"]
STATIC_URL = "static/"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "admin.sqlite3"}}
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
    "presence_middleware.django.identify_user",
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

application = get_wsgi_application()
urlpatterns = [path("admin/", admin.site.urls)]


def prepare(name: str, password: str) -> None:
    """Make the tables and one who may log in."""
    from django.contrib.auth.models import User
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    User.objects.create_superuser(name, password=password)
