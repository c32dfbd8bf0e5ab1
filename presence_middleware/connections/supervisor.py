"""The process that owns an embedded server: it starts the server, and stops it after its last user.

`launcher.py` runs this file by its path, in a session of its own, with the standard library only.
All files are in one directory. Three lock files show which processes are alive. They are never
deleted, and the kernel unlocks them however their owners die:

- `users.lock` is locked shared by every process that uses the server. A process that locks it
  exclusively is sure that there are no users, and that none can arrive before it is unlocked.
- `supervisor.lock` is locked exclusively by the supervisor.
- `server.lock` is locked exclusively by the server, which inherits it. So two servers never use
  the same data.

The server does not outlive its supervisor: Linux terminates it, and elsewhere a guard process does.
A process that finds no supervisor starts one, which waits for a server that is still ending.

The data is in an append-only file, the journal. A server that is killed, or whose machine crashes,
loses about a second. A missing journal is written from the data in memory. Until that is done, and
while the disk is full, the server saves snapshots instead, each minute and when it stops.
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
from collections.abc import Callable
from pathlib import Path

USERS_LOCK = "users.lock"
SUPERVISOR_LOCK = "supervisor.lock"
SERVER_LOCK = "server.lock"
SOCKET = "server.sock"
LOG = "server.log"
SNAPSHOT = "presence.rdb"

POLL_SECONDS = 0.1
JOURNAL_SECONDS = 1.0  # between two checks of the journal
ANSWER_SECONDS = 0.5
STOP_SECONDS = 30.0  # to write the data of millions of users to a slow disk
LOG_BYTES = 64 * 1024
REPLY_BYTES = 8192
STDERR = 2
PR_SET_PDEATHSIG = 1

SNAPSHOTS = "60 1"  # after 60 seconds with at least one change
SERVER_OPTIONS = {
    "port": "0",  # no network
    "unixsocket": SOCKET,  # relative to the directory: a whole path may be too long for a socket
    "unixsocketperm": "700",
    "daemonize": "no",
    "loglevel": "warning",
    "dbfilename": SNAPSHOT,
    "appendfsync": "everysec",
    "stop-writes-on-bgsave-error": "no",  # a full disk must not stop writes to memory
    "maxmemory-policy": "noeviction",
}
# The server tries to write a new journal until it succeeds, and works without one meanwhile.
NEW_JOURNAL = (
    "CONFIG SET appendonly no",
    f'CONFIG SET save "{SNAPSHOTS}"',
    "CONFIG SET shutdown-on-sigterm force",  # also if it cannot save; unknown to Redis 6
    "CONFIG SET appendonly yes",
)
COMPLETE_JOURNAL = {
    b"aof_enabled:1",
    b"aof_rewrite_in_progress:0",
    b"aof_rewrite_scheduled:0",
    b"aof_last_bgrewrite_status:ok",
}
# Each command is sent if the server refused the previous command. The server refuses to stop while
# it writes its first journal, and if it cannot save a snapshot.
SHUTDOWN_COMMANDS = ("SHUTDOWN", "CONFIG SET appendonly no", "SHUTDOWN SAVE", "SHUTDOWN NOSAVE")


def open_lock(path: str | os.PathLike[str]) -> int:
    """Open a lock file and return its descriptor. Create the file if it is missing.

    Each descriptor has a lock of its own, which executed programs do not inherit.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if descriptor > STDERR:
        return descriptor
    # The standard streams of this process were closed. Its output must not go to a lock file.
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, STDERR + 1)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock a descriptor, exclusively or with `LOCK_SH` shared. Never waits.

    Returns False if another descriptor holds a lock that excludes this one.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def send_command(command: str, seconds: float = ANSWER_SECONDS) -> bytes:
    """Send a command to the server in the current directory and return its reply.

    The reply is empty if none comes within `seconds`, or if the server ends.
    """
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.settimeout(seconds)
        connection.connect(SOCKET)
        connection.sendall(f"{command}\r\n".encode())
        return connection.recv(REPLY_BYTES)
    return b""


def has_journal() -> bool:
    """Return whether the current directory has a complete journal, and no newer snapshot.

    A server that starts with a journal loads no snapshot.
    """
    here = Path()
    # A server of version 7 or later writes a directory with a manifest, and older versions write a
    # single file.
    complete = [*here.glob("appendonlydir/*.manifest"), *here.glob("appendonly.aof")]
    files = [*complete, *here.glob("appendonlydir/*.aof")]
    written = [path.stat().st_mtime_ns for path in files]
    saved = [path.stat().st_mtime_ns for path in here.glob(SNAPSHOT)]
    return bool(complete) and max(written) >= max(saved, default=0)


def ending_with_parent() -> Callable[[], None] | None:
    """Return a function for a child that makes Linux terminate it as soon as this process ends.

    Return None on other systems.
    """
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            set_option = ctypes.CDLL(None).prctl
            parent = os.getpid()

            def in_child() -> None:
                set_option(PR_SET_PDEATHSIG, int(signal.SIGTERM))
                # The parent may have ended before the line above.
                if os.getppid() != parent:
                    os._exit(1)

            return in_child
    return None


class Server:
    """The server in the current directory: a new child, or a server of an earlier supervisor."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = open_lock(SERVER_LOCK)
        self._saves_snapshots = True
        self._next_check = 0.0

    def start(self, program: str) -> None:
        """Start `program` unless a server is alive, and have it end with this process."""
        in_child = ending_with_parent()
        if try_lock(self._lock):
            self._saves_snapshots = not has_journal()
            command = [program, *self._options()]
            self._child = subprocess.Popen(  # noqa: S603
                command,
                pass_fds=[self._lock],
                preexec_fn=in_child,  # noqa: PLW1509 (this process has one thread)
            )
            os.close(self._lock)  # only the server holds the lock now
            self._lock = open_lock(SERVER_LOCK)
        if self._child is None or in_child is None:
            start_guard()

    def _options(self) -> list[str]:
        options = {
            **SERVER_OPTIONS,
            "appendonly": "no" if self._saves_snapshots else "yes",
            "save": SNAPSHOTS if self._saves_snapshots else "",
        }
        return [
            word
            for name, value in options.items()
            for word in (f"--{name}", *(value.split() or [""]))
        ]

    def is_gone(self) -> bool:
        """Return whether the server and its children, which may be saving, have ended."""
        if self._child is not None:
            self._child.poll()  # leaves no zombie
        return try_lock(self._lock)

    def keep_journal(self) -> None:
        """Make the server write a journal, and snapshots while the journal is incomplete.

        Call this often: it asks the server at most once a second.
        """
        if time.monotonic() < self._next_check:
            return
        facts = set(send_command("INFO persistence").split(b"\r\n"))
        if b"loading:0" not in facts:
            return  # the server is still starting
        self._next_check = time.monotonic() + JOURNAL_SECONDS
        # After a failed write to the journal, the server refuses all writes.
        is_refused = b"aof_last_write_status:err" in facts
        if is_refused or b"aof_enabled:0" in facts:
            self._saves_snapshots = True
            for command in NEW_JOURNAL:
                send_command(command)
        elif self._saves_snapshots and facts >= COMPLETE_JOURNAL:
            self._saves_snapshots = False
            send_command('CONFIG SET save ""')
            Path(SNAPSHOT).unlink(missing_ok=True)  # its data is in the journal

    def stop(self) -> None:
        """Save the data and stop the server; kill it if it does not stop in time."""
        deadline = time.monotonic() + STOP_SECONDS
        if not self.is_gone():
            self._ask_to_stop(deadline)
        while not self.is_gone() and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def _ask_to_stop(self, deadline: float) -> None:
        if os.fstat(self._lock).st_nlink == 0 and self._child is not None:
            self._child.kill()  # its folder was deleted, so it has no place to save its data
            return
        for command in SHUTDOWN_COMMANDS:
            if not send_command(command, max(deadline - time.monotonic(), ANSWER_SECONDS)):
                break
        if self._child is not None:
            self._child.terminate()  # a server that was not listening yet got no command


def start_guard() -> None:
    """Fork a process that stops the server when this one ends, even if it is killed."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(reader)  # `writer` stays open for as long as this process lives
        return
    os.dup2(reader, 0)
    os.closerange(STDERR + 1, writer + 1)  # among them, the copies of the locks
    os.read(0, 1)  # returns when the supervisor has ended
    Server().stop()
    os._exit(0)


def watch(server: Server) -> None:
    """Return when the server has ended or has no users.

    In the second case, no user can arrive until this process exits.
    """
    users = open_lock(USERS_LOCK)  # never closed
    while not server.is_gone() and not try_lock(users):
        server.keep_journal()
        if os.fstat(STDERR).st_size > LOG_BYTES:
            os.ftruncate(STDERR, 0)
        time.sleep(POLL_SECONDS)


def take_over_lock(inherited: int) -> bool:
    """Replace the inherited lock with a new one. Return False if another starter was quicker.

    A process that the starter forked meanwhile has a copy of the descriptor `inherited`, and would
    hold that lock for as long as it lives.
    """
    own = open_lock(SUPERVISOR_LOCK)
    fcntl.flock(inherited, fcntl.LOCK_UN)
    os.close(inherited)
    return try_lock(own)


def main(directory: str, program: str, inherited: int) -> None:
    """Run the server `program` in `directory` until it has no users.

    `inherited` is a descriptor of the locked `supervisor.lock` of the directory.
    """
    os.chdir(directory)
    os.umask(0o077)
    # The starter waits for this process. The child is the supervisor, so no zombie remains.
    if not take_over_lock(inherited) or os.fork():
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the starter may have blocked signals
    server = Server()
    try:
        server.start(program)
        watch(server)
    finally:
        server.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
