"""`application` is the ASGI app that `PRESENCE_APP` names, wrapped.

Servers load it as `presence_middleware.asgi_app:application`. Importing this module loads the site,
so the site itself must not import it.
"""

from .asgi import PresenceMiddleware
from .loading import load_app

application = PresenceMiddleware(load_app())
