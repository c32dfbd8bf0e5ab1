"""Run the demo site under gunicorn with two workers. No process is left when it ends."""

import os
import secrets
import shlex
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from gunicorn.app.base import BaseApplication

from .. import embedded
from ..errors import PresenceError, PresenceUnavailable, SettingsError
from ..settings import Settings
from ..wsgi import PresenceMiddleware
from .app import Site, crowd_note
from .crowd import run_crowd

DEFAULTS = {
    "PRESENCE_REDIS_URL": "embedded://demo",
    "PRESENCE_WINDOW": "1m",
    "PRESENCE_BOARD_PATH": "/presence",
}
# Whatever the environment has: the pages need these.
FIXED = {
    "PRESENCE_STORE": "sorted-set",
    "PRESENCE_IDENTITY": "user=auth, guest=visitor",
    "PRESENCE_ROOMS": "/,/t/{topic}",
    "PRESENCE_PULSE_PATH": "/pulse",
    "PRESENCE_EVENTS": "user,guest",
    # An embedded server keeps its keys: with another number, the next demo could not read them.
    "PRESENCE_SHARDS": "1",
}
# Never that of a site whose settings are in the environment. Simulated visitors have a prefix of
# their own, so that a demo without them counts none that a demo before it has left.
SITE_PREFIX, CROWD_PREFIX = "demo", "demo-crowd"
IN_ANOTHER_SHELL = ("PRESENCE_REDIS_URL", "PRESENCE_PREFIX", "PRESENCE_WINDOW", *FIXED)
STOP_SECONDS = 5  # at most, for workers that write what waits
START_SECONDS = 25.0  # for the embedded server, on a busy machine


class Demo(BaseApplication):  # type: ignore[misc]
    """The demo site as an application of gunicorn. A worker has its site as `callable`."""

    def __init__(self, crowd: int, **options: Any) -> None:
        """`crowd` is the number of simulated visitors; `options` are settings of gunicorn."""
        self._crowd, self._options = crowd, options
        super().__init__()

    def load_config(self) -> None:
        hooks = (self.pre_fork, self.post_worker_init, self.worker_exit)
        for name, value in {**self._options, **{each.__name__: each for each in hooks}}.items():
            if name in self.cfg.settings:  # older gunicorns have no control socket
                self.cfg.set(name, value)

    def load(self) -> PresenceMiddleware:
        """Return the site, wrapped. Each worker calls this once."""
        # A terminal sends its signals to all processes, and the first of them stops the workers by
        # another. A worker that gets two signals at once may hang.
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        site = PresenceMiddleware(Site(self._crowd))
        # The first request would otherwise wait for imports, which take longer on a busy machine
        # than a page may wait. Redis may be away meanwhile.
        with suppress(PresenceUnavailable):
            site.presence.counts()
        return site

    def pre_fork(self, arbiter: Any, worker: Any) -> None:
        """Give the crowd to a new worker, unless another worker has it."""
        others = arbiter.WORKERS.values()
        worker.has_crowd = self._crowd > 0 and not any(each.has_crowd for each in others)

    def post_worker_init(self, worker: Any) -> None:
        """Start the crowd in its worker."""
        if worker.has_crowd:
            crowd = (self.callable, self._crowd)
            Thread(target=run_crowd, args=crowd, name="demo-crowd", daemon=True).start()

    def worker_exit(self, _: object, __: object) -> None:
        """End a worker. It waits neither for browsers nor for the embedded server."""
        if self.callable is not None:  # not in the parent, which may call this, too
            self.callable.recorder.close()
            os._exit(0)


def serve(host: str, port: int, crowd: int) -> None:
    """Serve the demo site on `host` and `port` until Ctrl-C, with `crowd` simulated visitors.

    SIGTERM and SIGHUP end it as Ctrl-C does. Raises `PresenceError` if the port is taken or the
    embedded server does not start, and `SettingsError` for invalid settings.
    """
    prefix = {"PRESENCE_PREFIX": CROWD_PREFIX if crowd else SITE_PREFIX}
    token = {"PRESENCE_BOARD_TOKEN": secrets.token_urlsafe(12)}
    given = {name: value for name, value in os.environ.items() if value}  # empty counts as unset
    os.environ.update({**DEFAULTS, **token, **given, **FIXED, **prefix})
    url = Settings.from_env().redis_url
    if url.scheme == "memory":
        raise SettingsError(
            "memory:// is inside a single process, and the demo has several: leave "
            "PRESENCE_REDIS_URL out, and it starts a server of its own"
        )
    family, shown = (socket.AF_INET6, f"[{host}]") if ":" in host else (socket.AF_INET, host)
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise PresenceError(
            f"cannot listen on {host}:{port} ({error.strerror}): pass another --port"
        ) from error

    def when_ready(arbiter: Any) -> None:
        # On SIGTERM, gunicorn would wait for open connections; on SIGHUP, it would start again.
        arbiter.handle_term = arbiter.handle_hup = arbiter.handle_int
        print(_welcome(f"http://{shown}:{port}", crowd), flush=True)

    demo = Demo(
        crowd,
        bind=f"fd://{listener.fileno()}",
        workers=2,
        # Browsers open connections ahead of requests. One would occupy a worker without threads.
        worker_class="gthread",
        threads=4,
        keepalive=0,  # so that both workers answer
        graceful_timeout=STOP_SECONDS,
        loglevel="warning",
        control_socket_disable=True,
        when_ready=when_ready,
    )
    parent = os.getpid()
    try:
        if url.scheme == "embedded":
            # A first visitor would wait for it, and no page waits for long.
            embedded.serve(Path(url.target), seconds=START_SECONDS)
        demo.run()
    finally:
        if url.scheme == "embedded" and os.getpid() == parent:
            embedded.wait_until_stopped(Path(url.target))


def _welcome(url: str, crowd: int) -> str:
    shell = " ".join(f"{name}={shlex.quote(os.environ[name])}" for name in IN_ANOTHER_SHELL)
    board, token = (os.environ[f"PRESENCE_BOARD_{name}"] for name in ("PATH", "TOKEN"))
    lines = [
        f"Who is online: {url}/",
        "  open it in a browser or two, and call it with curl",
        f"  the board: {url}{board}, its token: {token}",
        f"  in another shell: {shell} {sys.argv[0]} count guest",
        "    or, in place of `count guest`: watch, events guest, doctor",
    ]
    if crowd:
        lines.append(f"  {crowd_note(crowd)}")
    return "\n".join([*lines, "Press Ctrl-C to stop it."])
