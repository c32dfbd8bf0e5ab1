"""The process that owns an embedded server: starts it, waits for its last user, saves and stops it.

`launcher.py` runs this file by its path, in a session of its own, with the standard library only.
All that is kept lies in one directory. Three lock files in it say who is alive; they are never
deleted, and the kernel unlocks them however their holders die:

- `users.lock`: shared by every process that uses the server. Who gets it exclusively knows that
  nobody is left, and that nobody can arrive before it is let go.
- `supervisor.lock`: exclusive, the supervisor's.
- `server.lock`: exclusive, inherited by the server, so that its data never has two of them.

The supervisor lives exactly as long as its server. Whoever finds no supervisor starts one, which
takes over a server that is still alive.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time

USERS_LOCK = "users.lock"
SUPERVISOR_LOCK = "supervisor.lock"
SERVER_LOCK = "server.lock"
SOCKET = "server.sock"
LOG = "server.log"

POLL_SECONDS = 0.1
STOP_SECONDS = 30.0  # to write the data of millions of users to a slow disk
LOG_BYTES = 64 * 1024
STDERR = 2

SERVER_OPTIONS = {
    "port": "0",  # no network
    "unixsocket": SOCKET,  # relative to the directory: a whole path may be too long for a socket
    "unixsocketperm": "700",
    "daemonize": "no",
    "loglevel": "warning",
    "dbfilename": "presence.rdb",
    "save": "60 1",  # at the end, and each minute in case of a crash
    "appendonly": "no",
    "stop-writes-on-bgsave-error": "no",  # a full disk should not stop what is kept in memory
    "maxmemory-policy": "noeviction",
}


def open_lock(path: str | os.PathLike[str]) -> int:
    """A new open file description of the lock file, made when missing, and closed by `exec`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if descriptor > STDERR:
        return descriptor
    # This process had its standard streams closed, and what it prints must not go to a lock file.
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, STDERR + 1)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Take the lock, or say False at once when somebody holds it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _options() -> list[str]:
    return [
        word for name, value in SERVER_OPTIONS.items() for word in (f"--{name}", *value.split())
    ]


class Server:
    """The server in the current directory: a new child, or one that an earlier supervisor left."""

    def __init__(self, program: str) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = open_lock(SERVER_LOCK)
        if try_lock(self._lock):
            command = [program, *_options()]
            self._child = subprocess.Popen(command, pass_fds=[self._lock])  # noqa: S603
            os.close(self._lock)  # the lock is the server's alone now
            self._lock = open_lock(SERVER_LOCK)

    def is_gone(self) -> bool:
        """True once the server has ended, and a child of it that may be saving, too."""
        if self._child is not None:
            self._child.poll()  # leaves no zombie
        return try_lock(self._lock)

    def stop(self) -> None:
        """Have the data saved and the server ended; kill it when it cannot do so in time."""
        if not self.is_gone():
            self._ask_to_stop()
        deadline = time.monotonic() + STOP_SECONDS
        while not self.is_gone() and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def _ask_to_stop(self) -> None:
        if self._child is not None:
            deleted = os.fstat(self._lock).st_nlink == 0  # no folder to save to: it would refuse
            self._child.send_signal(signal.SIGKILL if deleted else signal.SIGTERM)  # TERM saves
            return
        # Not our child: its process id could be another's by now, or be of another container.
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
            connection.settimeout(STOP_SECONDS)
            connection.connect(SOCKET)
            connection.sendall(b"SHUTDOWN SAVE\r\n")
            connection.recv(1)  # nothing: it has ended


def watch(server: Server) -> None:
    """Return when the server has ended or has no users left; then none can come until we exit."""
    users = open_lock(USERS_LOCK)  # never closed
    while not server.is_gone() and not try_lock(users):
        if os.fstat(STDERR).st_size > LOG_BYTES:
            os.ftruncate(STDERR, 0)
        time.sleep(POLL_SECONDS)


def take_charge(handed: int) -> bool:
    """Trade the starter's lock for one of our own. A process that was forked from the starter at
    the wrong moment has a copy of `handed`, and would hold it for as long as it lives."""
    own = open_lock(SUPERVISOR_LOCK)
    fcntl.flock(handed, fcntl.LOCK_UN)
    os.close(handed)
    return try_lock(own)  # else another starter was quicker


def main(directory: str, program: str, handed: int) -> None:
    """Be the supervisor of `directory`. `handed` is a descriptor of its locked supervisor.lock."""
    os.chdir(directory)
    os.umask(0o077)
    # The starter waits for the first of us, so that it has no child left to reap.
    if not take_charge(handed) or os.fork():
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the starting thread may have blocked some
    server = Server(program)
    try:
        watch(server)
    finally:
        server.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
