"""The board: pages and JSON about who is online. It is off unless `PRESENCE_BOARD_PATH` is set."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ..errors import SettingsError
from ..presence import AsyncPresence, Presence


def board_for(presence: Presence | AsyncPresence) -> Any:
    """Return the board of a site: a WSGI app or, for `AsyncPresence`, an ASGI app.

    Return None if it is off. Raises `SettingsError` if a module that it needs is not installed.
    """
    if not presence.backend.settings.board_path:
        return None
    extra, needed = ("wsgi", "webob") if isinstance(presence, Presence) else ("asgi", "starlette")
    if find_spec(needed) is None:
        raise SettingsError(f"PRESENCE_BOARD_PATH needs pip install 'presence_middleware[{extra}]'")
    return import_module(f".{extra}", __name__).App(presence)
