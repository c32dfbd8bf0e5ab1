"""The board: pages and JSON about who is online. It is off unless `PRESENCE_BOARD_PATH` is set."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..errors import SettingsError
from ..presence import AsyncPresence, Presence
from ..settings import Settings

if TYPE_CHECKING:
    from .asgi import AsgiBoard
    from .wsgi import WsgiBoard


def wsgi_board(settings: Settings, presence: Presence) -> "WsgiBoard | None":
    """Return the board under WSGI; None if it is off.

    Raises `SettingsError` if a module that it needs is not installed.
    """
    if not _is_on(settings, "webob", "wsgi"):
        return None
    from .wsgi import WsgiBoard

    return WsgiBoard(settings, presence)


def asgi_board(settings: Settings, presence: AsyncPresence) -> "AsgiBoard | None":
    """Return the board under ASGI; None if it is off.

    Raises `SettingsError` if a module that it needs is not installed.
    """
    if not _is_on(settings, "starlette", "asgi"):
        return None
    from .asgi import AsgiBoard

    return AsgiBoard(settings, presence)


def _is_on(settings: Settings, module: str, extra: str) -> bool:
    if settings.board_path and find_spec(module) is None:
        raise SettingsError(f"PRESENCE_BOARD_PATH needs pip install 'presence_middleware[{extra}]'")
    return bool(settings.board_path)
