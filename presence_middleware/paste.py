"""Paste entry points: a Pyramid site adds two lines of ini.

A filter's own lines are settings without the prefix, such as `window = 15m`.
"""

from collections.abc import Callable
from wsgiref.types import WSGIApplication

from .settings import Settings
from .wsgi import PresenceMiddleware


def filter_factory(
    global_conf: dict[str, str], **local_conf: str
) -> Callable[[WSGIApplication], PresenceMiddleware]:
    """`paste.filter_factory`: for a `[pipeline:main]`."""
    settings = Settings.from_env(None, local_conf)
    return lambda app: PresenceMiddleware(app, settings=settings)


def filter_app_factory(
    app: WSGIApplication, global_conf: dict[str, str], **local_conf: str
) -> PresenceMiddleware:
    """`paste.filter_app_factory`: for `filter-with` and `[filter-app:…]`."""
    return filter_factory(global_conf, **local_conf)(app)
