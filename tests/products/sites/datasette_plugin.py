"""A plugin of Datasette that wraps it, so that its own command serves it."""

from datasette import hookimpl

from presence_middleware.asgi import PresenceMiddleware


@hookimpl
def asgi_wrapper(datasette: object) -> type[PresenceMiddleware]:
    return PresenceMiddleware
