"""Small sites, each logging in as its framework does. Only one page uses presence.

All have the same pages:

- `/` looks neither at the user nor at the session; `/me` asks the framework who is logged in.
- `POST /login?user=42` and `POST /logout` do what their names say, the framework's way.
- `/online` says who is online: the only one that knows that the site is wrapped.
"""

import os
from collections.abc import Iterable

NOBODY = "nobody"


def secret() -> str:
    return os.environ["SITE_SECRET"]


def setting(name: str, default: str) -> str:
    """A site's own choice, such as the name of its cookie."""
    return os.environ.get(f"SITE_{name}", default)


def answer(said: object) -> str:
    return str(said or NOBODY)


def names(ids: Iterable[str]) -> str:
    return answer(",".join(ids))
