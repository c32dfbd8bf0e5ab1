"""Pyramid: `config.include("presence_middleware.pyramid")`.

It adds `request.presence`, the reader of the request, and gives templates a `TemplatePresence` as
`presence`. It does not wrap the app: that is done by `filter-with` in an ini file, or by
`PresenceMiddleware`.
"""

from typing import Any

from .errors import importing
from .lookup import presence_of, template_presence

with importing("pyramid"):
    from pyramid.events import BeforeRender


def includeme(config: Any) -> None:
    """Add `request.presence` and the template variable `presence` to a site.

    `config` is its `pyramid.config.Configurator`. `request.presence` raises `NotWrapped` if the
    request has not passed the middleware, and `PresenceUnavailable` in an outage.
    """
    config.add_request_method(presence_of, "presence", reify=True)

    def add_presence(event: Any) -> None:
        # Values of the view with this name remain.
        event["presence"] = template_presence(event.get("request"))

    config.add_subscriber(add_presence, BeforeRender)
