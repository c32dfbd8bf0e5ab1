"""Flask: `init_app(app)` wraps an app, finds its users, and gives its templates `presence`."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from wsgiref.types import WSGIEnvironment

from .connections import Clock
from .errors import SettingsError, importing
from .identity.ids import No, as_id, item, session_user, walk
from .lookup import TemplatePresence, template_presence
from .recorder import Visit
from .request import SESSION, USER, VISIT, variable
from .settings import Settings
from .wsgi import PresenceMiddleware

with importing("flask"):
    from flask import Flask, Response, g, has_request_context, request
    from flask.globals import request_ctx

REFUSED = No("Flask-Login has no user, or no active user, with the id in the session")


def init_app(
    app: Flask,
    *,
    settings: Settings | None = None,
    client: Any = None,
    clock: Clock | None = None,
) -> PresenceMiddleware:
    """Wrap `app.wsgi_app`, and give the templates of `app` a `TemplatePresence` as `presence`.

    The source `auth` finds the user of the session that Flask has opened for the request, whatever
    its interface, and of Flask-Login. It reads what is loaded: no query, no load of a session, no
    `Vary`. A request that logs its user out takes them offline, without `PRESENCE_LOGOUT`.

    `settings` are by default those of the environment. `client` is a `redis.Redis` to use instead
    of `PRESENCE_REDIS_URL`. `clock` returns seconds since the epoch and replaces the time of the
    server. Return the middleware, which is also in `app.extensions["presence_middleware"]`. In a
    handler, use `presence_of(request)`.

    Raises `SettingsError` with all problems if a setting is invalid, or if `app` is no Flask app.
    """
    if not isinstance(app, Flask):
        raise SettingsError("init_app needs the Flask app itself, not its wsgi_app: init_app(app)")
    middleware = PresenceMiddleware(app.wsgi_app, settings=settings, client=client, clock=clock)
    app.wsgi_app = middleware  # type: ignore[method-assign]
    app.extensions["presence_middleware"] = middleware
    # The keys of a session under which rules find users, besides the usual keys.
    rules = middleware.recorder.settings.identity
    of_session = [rule for rule in rules if rule.source in ("session", "flask-session")]
    keys = [rule.argument.partition("@")[0] for rule in of_session]
    # Flask runs the functions before a view in this order, those for the values of URLs before all
    # others, and those after it in reverse: a session is not changed before the first, nor after
    # the second.
    app.url_value_preprocessors.setdefault(None, []).insert(0, partial(_begin, keys))
    app.after_request_funcs.setdefault(None, []).insert(0, _settle)

    @app.context_processor
    def context() -> dict[str, TemplatePresence]:
        # Outside of a request, such as in a mail, all answers are None.
        return {"presence": template_presence(request if has_request_context() else None)}

    return middleware


class Login:
    """The login of a request while it is open, as the source `auth` reads it.

    It holds neither the request nor a context of Flask: these have the environ, which has this.
    """

    def __init__(
        self, session: Any, loaded: Any, environ: WSGIEnvironment, keys: Sequence[str]
    ) -> None:
        """Begin before the view. `loaded` is Flask's `g`, where Flask-Login keeps its user.

        `keys` are those of users in the session, besides the usual keys.
        """
        self.session, self._loaded, self._server = session, loaded, environ.get("REMOTE_USER")
        self._keys = keys
        self.before: dict[str, Any] = {}
        """The session before the view, if it had a user."""
        with suppress(Exception):  # of a session interface, which the source `auth` reports
            self.before = dict(session) if self.in_session() else {}

    def in_session(self) -> str | None:
        """Return the id of the user who is in the session now, under any key, or None."""
        ids = (as_id(walk(self.session, key)) for key in self._keys)
        return session_user(self.session) or next(filter(None, ids), None)

    def in_app(self) -> str | None:
        """Return the id of the user who is logged in to the app now, or None.

        A user without a session has the id that Flask-Login would put into one. A session whose
        user Flask-Login has looked for in vain shows nobody.
        """
        user = vars(self._loaded).get("_login_user")
        if id := session_user(self.session):
            is_refused = not getattr(user, "is_authenticated", True)
            return REFUSED if is_refused and item(self.session, "_user_id") else id
        id = None if user is None else user.get_id()
        return str(id) if id else None

    def __call__(self) -> str | None:
        """Return the id of the user of the app now, else of the server, or None."""
        id = self.in_app()
        return variable(self._server) if self._server and not id else id


def _begin(keys: Sequence[str], *_: object) -> None:
    context: Any = request_ctx._get_current_object()  # type: ignore[attr-defined]
    environ = context.request.environ
    visit: Visit | None = environ.get(VISIT)
    if visit is None or visit.is_over:
        return
    # From Flask 3.1.3 on, the attribute `session` notes an access, which adds `Vary: Cookie`.
    session = vars(context)["_session" if "_session" in vars(context) else "session"]
    state: Any = visit.state  # a layer between may have copied the environ
    state[SESSION] = session
    state[USER] = Login(session, g._get_current_object(), environ, keys)


def _settle(response: Response) -> Response:
    """Note the user who is logged in after the view, while everything is still loaded."""
    visit: Visit | None = request.environ.get(VISIT)
    state: Any = {} if visit is None else visit.state
    login = state.get(USER)
    if visit is None or not isinstance(login, Login):
        return response
    try:
        user = login()
        is_logout = login.before and not (login.in_app() or login.in_session())
    except Exception:  # of the site's user class, which the source `auth` reports
        return response
    if is_logout:
        state[SESSION], state[USER] = login.before, lambda: session_user(login.before)
        visit.log_out()
        visit.answered(response.status_code)
        visit.end()  # not after the response, for the next page may show who is online
        state[SESSION] = login.session
    state[USER] = lambda: user
    return response
