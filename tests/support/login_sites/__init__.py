"""Small sites, each logging in as its framework does. Only one page uses presence.

All have the same pages:

- `/` looks neither at the user nor at the session; `/me` asks the framework who is logged in.
- `POST /login?user=42` and `POST /logout` do what their names say, the framework's way.
- `/online` says who is online: the only one that knows that the site is wrapped.
"""

import os
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

NOBODY = "nobody"
PRESENCE = "presence_middleware.presence"

View = Callable[[Any], object]
"""What a page says to a request of the framework, perhaps as a coroutine."""


def secret() -> str:
    return os.environ["SITE_SECRET"]


def setting(name: str, default: str) -> str:
    """A site's own choice, such as the name of its cookie."""
    return os.environ.get(f"SITE_{name}", default)


def pages(me: View, login: View, logout: View) -> list[tuple[str, str, View]]:
    """Return the path, the method and the view of each page."""
    return [
        ("/", "GET", lambda _: "hello"),
        ("/me", "GET", me),
        ("/login", "POST", login),
        ("/logout", "POST", logout),
        ("/online", "GET", lambda request: names(request.environ[PRESENCE].online())),
    ]


def async_pages(me: View, login: View, logout: View) -> list[tuple[str, str, View]]:
    """The same of an ASGI site."""

    async def online(request: Any) -> str:
        return names(await request.scope[PRESENCE].online())

    return [*pages(me, login, logout)[:-1], ("/online", "GET", online)]


def answer(said: object) -> str:
    return str(said or NOBODY)


async def answered(said: object) -> str:
    return answer(await said if isawaitable(said) else said)


def names(online: Any) -> str:
    return ",".join(seen.id for seen in online)
