"""Django: middleware that identifies users, and `presence` for templates.

Three layers identify users: `identify_user`, `identify_every_user` and, for Channels,
`IdentifyWebSocketUser`. See `presence_middleware.django.identify`.

As one of `INSTALLED_APPS`, `"presence_middleware.django"` adds the template tags of
`{% load presence %}`. `"presence_middleware.django.context_processors.presence"` is the context
processor.
"""

from typing import TYPE_CHECKING, Any

from ..errors import importing

with importing("django"):
    import django  # noqa: F401

__all__ = ["Account", "IdentifyWebSocketUser", "identify_every_user", "identify_user"]

if TYPE_CHECKING:
    from .identify import Account, IdentifyWebSocketUser, identify_every_user, identify_user
else:

    def __getattr__(name: str) -> Any:
        # Django imports this package with INSTALLED_APPS. The layers are imported only for a site
        # that has one in its MIDDLEWARE.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import identify

        return getattr(identify, name)
