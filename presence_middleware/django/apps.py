"""The app of `INSTALLED_APPS`, without models."""

from django.apps import AppConfig


class PresenceConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """Adds the template tags `{% load presence %}`."""

    name = "presence_middleware.django"
    label = "presence_middleware"
