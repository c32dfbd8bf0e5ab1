"""The classic: minute sets of User-Agents, with web.py.

PRESENCE_IDENTITY=user=user-agent:raw PRESENCE_STORE=minute-sets PRESENCE_BOTS=off \\
    python webpy_classic.py 8080
"""

import web

from presence_middleware import PresenceUnavailable, presence_of
from presence_middleware.wsgi import PresenceMiddleware

urls = ("/", "Visitor", "/online", "Online")
app = web.application(urls, globals())


class Visitor:
    def GET(self):  # noqa: N802
        return f"User:\t{web.ctx.env['HTTP_USER_AGENT']}"


class Online:
    def GET(self):  # noqa: N802
        try:
            online = presence_of(web.ctx.env).online(limit=None)
        except PresenceUnavailable:
            online = []
        return "".join(f"User agent: {sighting.id}\n" for sighting in online)


if __name__ == "__main__":
    app.run(PresenceMiddleware)
