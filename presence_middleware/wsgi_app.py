"""`application` is the WSGI app that `PRESENCE_APP` names, wrapped.

Servers load it as `presence_middleware.wsgi_app:application`. Importing this module loads the site,
so the site itself must not import it.
"""

from .loading import load_app
from .wsgi import PresenceMiddleware

application = PresenceMiddleware(load_app())
