"""Pages and JSON about who is online, which the middleware serves itself: off unless asked for."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..errors import SettingsError
from ..presence import AsyncPresence, Presence
from ..settings import Settings

if TYPE_CHECKING:
    from .asgi import AsgiBoard
    from .wsgi import WsgiBoard


def wsgi_board(settings: Settings, presence: Presence) -> "WsgiBoard | None":
    """The board under WSGI, if `PRESENCE_BOARD_PATH` is set."""
    if not settings.board_path:
        return None
    _need("webob", "wsgi")
    from .wsgi import WsgiBoard

    return WsgiBoard(settings, presence)


def asgi_board(settings: Settings, presence: AsyncPresence) -> "AsgiBoard | None":
    """The board under ASGI, if `PRESENCE_BOARD_PATH` is set."""
    if not settings.board_path:
        return None
    _need("starlette", "asgi")
    from .asgi import AsgiBoard

    return AsgiBoard(settings, presence)


def _need(module: str, extra: str) -> None:
    if find_spec(module) is None:
        raise SettingsError(f"PRESENCE_BOARD_PATH needs pip install 'presence_middleware[{extra}]'")
