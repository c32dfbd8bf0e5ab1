"""Run the demo site under gunicorn with two workers. No process is left when it ends."""

import os
import secrets
import socket
import sys
from pathlib import Path
from typing import Any

from gunicorn.app.base import BaseApplication

from ..connections import embedded
from ..errors import PresenceError
from ..settings import Settings
from ..wsgi import PresenceMiddleware
from .app import app

SHARED = {"PRESENCE_REDIS_URL": "embedded://demo", "PRESENCE_WINDOW": "1m"}
BOARD = {"PRESENCE_BOARD_PATH": "/presence"}


class Demo(BaseApplication):  # type: ignore[misc]
    """The demo site as an application of gunicorn."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._options.items():
            if name in self.cfg.settings:  # older gunicorns have no control socket
                self.cfg.set(name, value)

    def load(self) -> PresenceMiddleware:
        return PresenceMiddleware(app)


def serve(host: str, port: int) -> None:
    """Serve the demo site on `host` and `port` until Ctrl-C.

    Settings come from the environment; an embedded server is the default. Raises `PresenceError` if
    the port is taken, and `SettingsError` for invalid settings.
    """
    token = {"PRESENCE_BOARD_TOKEN": secrets.token_urlsafe(12)}
    os.environ.update({**SHARED, **BOARD, **token, **os.environ})
    url = Settings.from_env().redis_url
    _check_free(host, port)
    try:
        Demo(_options(host, port)).run()
    finally:
        if url.scheme == "embedded":
            embedded.wait_until_stopped(Path(url.target))


def _options(host: str, port: int) -> dict[str, Any]:
    return {
        "bind": f"{host}:{port}",
        "workers": 2,
        "loglevel": "warning",
        "control_socket_disable": True,
        "when_ready": lambda _: print(_welcome(host, port), flush=True),
    }


def _welcome(host: str, port: int) -> str:
    shell = " ".join(f"{name}={os.environ[name]}" for name in SHARED)
    board, token = (os.environ[f"PRESENCE_BOARD_{name}"] for name in ("PATH", "TOKEN"))
    return (
        f"Who is online: http://{host}:{port}/\n"
        f"  open it in a browser or two, and call it with curl\n"
        f"  the board: http://{host}:{port}{board}, its token: {token}\n"
        f"  in another shell: {shell} {sys.argv[0]} count guest\n"
        f"Press Ctrl-C to stop it."
    )


def _check_free(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PresenceError(
                f"cannot listen on {host}:{port} ({error.strerror}): pass another --port"
            ) from error
