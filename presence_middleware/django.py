"""For Django: whom it logged in. `presence_middleware.django.identify_user` in `MIDDLEWARE`, last.

It looks at what Django has found out by itself for this request, and never makes it look: no
query, no load of a session, no `Vary`. A page that asks neither for the user nor for the session
says nothing of them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.contrib.auth import SESSION_KEY
from django.http import HttpRequest
from django.utils.decorators import sync_and_async_middleware
from django.utils.functional import LazyObject, empty

from .request import USER


@sync_and_async_middleware  # type: ignore[untyped-decorator]  # Django has no types
def identify_user(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Has the `auth` source ask, late, who `request.user` turned out to be."""

    def middleware(request: HttpRequest) -> Any:
        state = request.scope if hasattr(request, "scope") else request.environ
        state[USER] = partial(_user, request)
        return get_response(request)

    if iscoroutinefunction(get_response):  # what it returns is then awaited
        markcoroutinefunction(middleware)
    return middleware


def _user(request: HttpRequest) -> object:
    known = vars(request)
    user = known.get("user")
    if isinstance(user, LazyObject):
        user = user._wrapped
    if user is None or user is empty:
        user = known.get("_acached_user")  # `await request.auser()`
    if user is None:
        return _session_user(known.get("session"))
    # By its key alone: an account that was deleted has none, and its name may be another's key.
    return str(user.pk) if user.is_authenticated and user.pk is not None else None


def _session_user(session: object) -> object:
    """Whom the session names, if a view or another middleware has loaded it."""
    loaded = vars(session).get("_session_cache") if session is not None else None
    return loaded.get(SESSION_KEY) if loaded else None
