"""The users that Django and Channels have loaded. Nothing here loads a user or a session."""

from collections.abc import Callable
from inspect import getattr_static
from typing import Any

from django.contrib.auth import SESSION_KEY
from django.utils.functional import LazyObject, empty

from ..recorder import Visit
from ..request import USER, VISIT


class IdentifyWebSocketUser:
    """Identifies the users of Django Channels' WebSockets. Wrap the router of the sockets in it:

    ```python
    application = PresenceMiddleware(
        ProtocolTypeRouter(
            {
                "http": get_asgi_application(),
                "websocket": AuthMiddlewareStack(IdentifyWebSocketUser(URLRouter(routes))),
            }
        )
    )
    ```

    The layers of Channels put the user into copies of the scope, which the outermost layer does not
    see. A consumer's `channels.auth.login` and `logout` count as well. After such a login, only the
    primary key is available, so a rule such as `auth:username` finds no id until the next
    connection.
    """

    def __init__(self, inner: Callable[..., Any]) -> None:
        """Wrap `inner`, an ASGI app that has the user in its scope."""
        self.inner = inner

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        at_connect = _session_user(scope.get("session"))

        def user() -> object:
            # A login or logout in the consumer changes the session, which all copies of the scope
            # share, but the user only in the consumer's own copy.
            by_now = _session_user(scope.get("session"))
            if by_now != at_connect:
                return by_now
            return account_of(_unwrapped(scope.get("user")))

        visit: Visit | None = scope.get(VISIT)
        if visit is not None and not visit.is_over:
            # The visit reads the scope of the server, of which this one may be a copy.
            state: Any = visit.state
            state[USER] = user
        return await self.inner(scope, receive, send)


class Account:
    """A user who is logged in, as the `auth` source reads them. No attribute causes a query.

    Besides the attributes below, it has the fields that are loaded and the properties of the user.
    """

    is_authenticated = True

    def __init__(self, user: Any) -> None:
        """Wrap an instance of the site's user model that has a primary key."""
        self._user = user
        self.identity = str(user.pk)
        """The id of the user, which is the primary key."""

    def __getattr__(self, name: str) -> object:
        user = self._user
        loaded = vars(user)
        if name in loaded:
            return loaded[name]
        # Other descriptors read the database: fields that are not loaded, and related objects.
        is_property = isinstance(getattr_static(type(user), name, None), property)
        return getattr(user, name) if is_property else None


def state_of(request: Any) -> Any:
    """Return the scope or environ of a request, or an empty mapping for none."""
    # Under ASGI, a request that a synchronous layer receives has a scope as well.
    state = getattr(request, "scope", None)
    return getattr(request, "environ", {}) if state is None else state


def loaded_user(request: Any, visit: Visit) -> Any:
    """Return the user that Django has loaded for a request, or the id in a loaded session.

    If there may be a user whose id has not been loaded, have the `visit` count no guest.
    """
    loaded, attributes = vars(request), visit.recorder.resolver.user_attributes
    user, session = _unwrapped(loaded.get("user")), _unwrapped(loaded.get("session"))
    if user is None:
        user = loaded.get("_acached_user")  # of `await request.auser()`
    visit.may_be_user = False
    if user is None and session is not None:
        user = _session_user(session)
        if user is not None:
            visit.may_be_user = any(attributes)  # which the session does not hold
        elif "_session_cache" not in vars(session):
            visit.may_be_user = bool(attributes) and session.session_key is not None
    if visit.may_be_user:
        visit.is_usual = False
    return user


def account_of(user: Any) -> Any:
    """Return the account of a user who is logged in, an id as it is, and None for nobody."""
    if user is None or isinstance(user, str):
        return user
    # A deleted user has no key.
    return Account(user) if user.is_authenticated and user.pk is not None else None


def _session_user(session: object) -> object:
    """Return the id that a session holds; None if nothing has loaded the session."""
    session = _unwrapped(session)
    loaded = None if session is None else vars(session).get("_session_cache")
    return loaded.get(SESSION_KEY) if loaded else None


def _unwrapped(value: Any) -> Any:
    """Return the object in a loaded lazy object, and other objects unchanged. Load nothing."""
    if isinstance(value, LazyObject):
        value = value._wrapped
    return None if value is empty else value
