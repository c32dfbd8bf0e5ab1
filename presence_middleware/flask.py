"""Flask: `init_app(app)` wraps an app and gives its templates `presence`."""

from typing import Any

from .connections import Clock
from .errors import importing
from .settings import Settings
from .template import TemplatePresence, template_presence
from .wsgi import PresenceMiddleware

with importing("flask"):
    from flask import Flask, has_request_context, request

EXTENSION = "presence_middleware"
"""The key of the middleware in `app.extensions`."""


def init_app(
    app: Flask,
    *,
    settings: Settings | None = None,
    client: Any = None,
    clock: Clock | None = None,
) -> PresenceMiddleware:
    """Wrap `app.wsgi_app`, and give the templates of `app` a `TemplatePresence` as `presence`.

    Return the middleware, which is also in `app.extensions["presence_middleware"]`. The arguments
    and errors are as for `presence_middleware.wsgi.PresenceMiddleware`. In a handler, use
    `presence_of(request)`.
    """
    middleware = PresenceMiddleware(app.wsgi_app, settings=settings, client=client, clock=clock)
    app.wsgi_app = middleware  # type: ignore[method-assign]
    app.extensions[EXTENSION] = middleware

    @app.context_processor
    def context() -> dict[str, TemplatePresence]:
        # Outside of a request, such as in a mail, all answers are None.
        return {"presence": template_presence(request if has_request_context() else None)}

    return middleware
