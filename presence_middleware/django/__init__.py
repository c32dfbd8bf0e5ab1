"""Django: a line of `MIDDLEWARE` that counts visitors, and `presence` for templates.

`"presence_middleware.django.PresenceMiddleware"` is that line, and `IdentifyWebSocketUser` is for
the WebSockets of Channels.

As one of `INSTALLED_APPS`, `"presence_middleware.django"` adds the template tags of
`{% load presence %}`. `"presence_middleware.django.context_processors.presence"` is the context
processor.
"""

from typing import TYPE_CHECKING, Any

# `runserver` imports the settings' layers in one thread and the URLs in another. Python would load
# this package while the other thread is still within the one around it, and both could fail. This
# waits for the other thread.
import presence_middleware  # noqa: F401

from ..errors import importing

with importing("django"):
    import django  # noqa: F401

__all__ = ["Account", "IdentifyWebSocketUser", "PresenceMiddleware"]

if TYPE_CHECKING:
    from .middleware import Account, IdentifyWebSocketUser, PresenceMiddleware


def __getattr__(name: str) -> Any:
    # Django imports this package with INSTALLED_APPS. The rest is imported when it is used.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import middleware

    return getattr(middleware, name)
