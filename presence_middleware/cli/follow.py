"""`presence follow`: record the visits of any site from its access log, as it grows."""

import os
import signal
import socket
import time
from pathlib import Path
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse

import click

from ..board import board_for
from ..errors import SettingsError
from ..presence import Presence
from ..replay.files import GZIP
from ..replay.follower import Follower
from ..replay.growing import GrowingLog, Pipe
from ..replay.lines import Parser
from ..settings import Settings
from . import context
from .replay import blind_rules, logs_argument

POLL_SECONDS = 0.2  # between two looks at logs that do not grow
BOARD_PATH = "/presence"  # unless PRESENCE_BOARD_PATH is set


@click.command()
@logs_argument
@click.option(
    "--since",
    metavar="DURATION",
    type=context.duration,
    help="Begin with the lines of the last 10m, for example, not at the end.",
)
@click.option("--board", metavar="HOST:PORT", help="Serve the board at this address.")
def follow(paths: tuple[str, ...], since: float | None, board: str | None) -> None:
    """Record who is online on any site, from its access log as it grows, until Ctrl-C.

    Logs are those of nginx, Apache or Caddy: common, combined or JSON. They may be rotated by
    renaming or by truncation; - is a pipe, such as from journalctl -f. Each line counts at its own
    time, by this host's clock, and the settings (PRESENCE_*) apply as on a site. Guests are
    addresses with a User-Agent; users are those that the log names.
    """
    settings = context.site_settings()
    if not settings.enabled:
        raise SettingsError("PRESENCE_ENABLED=0: follow would record nothing")
    if board and not settings.board_path:
        settings = context.site_settings(board_path=BOARD_PATH)
    if not board:
        context.site_client(settings)  # nobody could read memory://
    if blind := blind_rules(settings):
        raise SettingsError(
            f"PRESENCE_IDENTITY: {', '.join(blind)} can find nobody, because a log has no such "
            "field; set rules with auth, ip, visitor or user-agent, such as the default "
            "user=auth, guest=visitor"
        )
    begin = None if since is None else time.time() - since
    follower, parser = Follower(settings, _say), Parser(_say)
    if board:
        _serve_board(settings, board)
    try:
        sources = [
            _growing(path, begin)
            if Path(path).is_file()
            else Pipe(0 if path == "-" else os.open(path, os.O_RDONLY))
            for path in dict.fromkeys(paths)
        ]
    except OSError as error:
        raise click.FileError(str(error.filename), error.strerror) from error
    stopped: list[int] = []
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda signum, _: stopped.append(signum))
    _say(f"following {', '.join(paths)}; Ctrl-C ends")
    while not stopped and not all(source.has_ended for source in sources):
        lines = [line for source in sources for line in source.read()]
        for line in filter(None, map(parser.parse, lines)):
            follower.add(line)
        if not follower.write_if_due() and not lines:
            time.sleep(POLL_SECONDS)
    follower.recorder.close()
    _say(
        f"lines: {parser.lines:,}; in no known format: {parser.unreadable:,}; older than the "
        f"window: {follower.old:,}; of the future: {follower.ahead:,}; past the quota of new "
        f"guests per address: {follower.refused:,}"
    )
    if follower.recorder.has_pending:
        raise click.exceptions.Exit(context.UNAVAILABLE)


def _growing(path: str, since: float | None) -> GrowingLog:
    with Path(path).open("rb") as log:
        if log.read(len(GZIP)) == GZIP:
            raise click.UsageError(f"{path} is compressed and will not grow: use presence replay")
    return GrowingLog(path, since, _say)


def _say(text: str) -> None:
    click.echo(text, err=True)


class _Handler(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Log no request."""


def _serve_board(settings: Settings, address: str) -> None:
    """Serve the board in a thread; other paths lead to it. Raises `SettingsError` if it cannot."""
    serve = board_for(Presence(settings))

    def app(environ: dict[str, Any], start_response: StartResponse) -> Any:
        if serve is not None and serve.below(environ["PATH_INFO"]) is not None:
            return serve(environ, start_response)
        start_response("303 See Other", [("Location", settings.board_path)])
        return []

    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise SettingsError(f"--board {address}: expected HOST:PORT, such as 127.0.0.1:8001")

    class Server(ThreadingMixIn, WSGIServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

    try:
        server = make_server(host.strip("[]"), int(port), app, Server, _Handler)
    except (OSError, OverflowError) as error:
        raise SettingsError(f"--board {address}: cannot listen ({error})") from error
    Thread(target=server.serve_forever, name="presence-board", daemon=True).start()
    _say(f"the board: http://{address}{settings.board_path}")
