"""The process that owns an embedded server: it starts the server, and stops it after its last user.

The package runs this file by its path, in a session of its own, with the standard library only.
All files are in one directory. Three lock files show which processes are alive. They are never
deleted, and the kernel unlocks them however their owners die:

- `users.lock` is locked shared by every process that uses the server. A process that locks it
  exclusively is sure that there are no users, and that none can arrive before it is unlocked.
- `supervisor.lock` is locked exclusively by the supervisor.
- `server.lock` is locked exclusively by the server, which inherits it. So two servers never use
  the same data.

The server does not outlive its supervisor: a guard process stops it. A process that finds no
supervisor starts one, which waits for a server that is still ending.

The data is in an append-only file, the journal. A server that is killed, or whose machine crashes,
loses about a second. While the disk is full, the data is in memory only.
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
CHECK_SECONDS = 1.0  # between two looks at the journal and the log
ANSWER_SECONDS = 0.5
# How long to wait for the lock of the supervisor: who looks for a supervisor locks it briefly.
LOCK_SECONDS = 0.1
STOP_SECONDS = 30.0  # to write the data of millions of users to a slow disk
LOG_BYTES = 64 * 1024
REPLY_BYTES = 8192
STDOUT, STDERR = 1, 2

SERVER_OPTIONS = {
    "port": "0",  # no network
    "unixsocket": SOCKET,  # relative to the directory: a whole path may be too long for a socket
    "loglevel": "warning",
    "appendonly": "yes",
    "save": "",  # no snapshots
}
# After a write to its journal failed, the server refuses all writes. These commands make it work
# without a journal, and try to write a new one until it succeeds: a server that failed to three
# times would wait for minutes, and in the end for an hour.
NEEDS_JOURNAL = {b"aof_last_write_status:err", b"aof_enabled:0", b"aof_rewrite_scheduled:1"}
NEW_JOURNAL = (
    "CONFIG SET appendonly no",
    "CONFIG SET shutdown-on-sigterm force",  # also if the journal fails; unknown to Redis 6
    "CONFIG SET appendonly yes",
)


def open_lock(path: str | os.PathLike[str]) -> int:
    """Open a lock file and return its descriptor. Create the file if it is missing.

    Each descriptor has a lock of its own, which executed programs do not inherit.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    # If the standard streams of this process were closed, its output must not go to a lock file.
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


def send_command(command: str, path: str | os.PathLike[str] = SOCKET) -> bytes:
    """Send a command to the server at `path` and return its reply, or nothing if none comes."""
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(os.fspath(path))
        connection.sendall(f"{command}\r\n".encode())
        return connection.recv(REPLY_BYTES)
    return b""


def start_server(program: str) -> tuple[int, int]:
    """Start `program` in the current directory.

    Returns its process id, and a descriptor of its lock: it can be locked once the server and its
    children, which may be saving, have ended.
    """
    inherited, lock = open_lock(SERVER_LOCK), open_lock(SERVER_LOCK)
    while not try_lock(inherited):
        # A server of an earlier supervisor is still ending, unless its guard was killed too.
        send_command("SHUTDOWN NOSAVE")
        time.sleep(POLL_SECONDS)
    options = [word for name, value in SERVER_OPTIONS.items() for word in (f"--{name}", value)]
    server = subprocess.Popen([program, *options], pass_fds=[inherited])  # noqa: S603
    os.close(inherited)  # only the server holds the lock now
    return server.pid, lock


def stop_server(process: int, lock: int) -> None:
    """Stop the server, which completes its journal first; kill it if it does not end in time."""
    deadline = time.monotonic() + STOP_SECONDS
    # After a full disk, a new journal may be in the making.
    rewrites = b"aof_rewrite_in_progress:1"
    while rewrites in send_command("INFO persistence") and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    if not try_lock(lock):
        os.kill(process, signal.SIGTERM)
    while not try_lock(lock):
        if time.monotonic() > deadline:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


def start_guard(process: int, lock: int) -> None:
    """Fork a process that stops the server when this process ends, even if it is killed.

    It has a copy of the supervisor's lock, so no other supervisor starts before the server ends.
    """
    reader, writer = os.pipe()
    if os.fork():
        os.close(reader)  # `writer` stays open for as long as this process lives
        return
    os.close(writer)
    os.read(reader, 1)  # returns when the supervisor has ended
    with contextlib.suppress(ProcessLookupError):
        stop_server(process, lock)
    os._exit(0)


def watch_server(lock: int) -> None:
    """Return when the server has ended or has no users.

    In the second case, no user can arrive until this process exits.
    """
    users = open_lock(USERS_LOCK)  # never closed
    checked = -CHECK_SECONDS
    while not try_lock(lock) and not try_lock(users):
        if time.monotonic() >= checked + CHECK_SECONDS:
            checked = time.monotonic()
            facts = send_command("INFO persistence").split(b"\r\n")
            if not NEEDS_JOURNAL.isdisjoint(facts):
                for command in NEW_JOURNAL:
                    send_command(command)
            if os.fstat(STDERR).st_size > LOG_BYTES:
                os.ftruncate(STDERR, 0)
        time.sleep(POLL_SECONDS)


def main(directory: str, program: str) -> None:
    """Run the server `program` in `directory` until it has no users."""
    os.chdir(directory)
    os.umask(0o077)
    log = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, STDOUT)
    os.dup2(log, STDERR)
    lock = open_lock(SUPERVISOR_LOCK)
    deadline = time.monotonic() + LOCK_SECONDS
    while not try_lock(lock):
        if time.monotonic() > deadline:
            return  # another starter was quicker
        time.sleep(0.01)
    # The starter waits for this process. The child is the supervisor, so no zombie remains.
    if os.fork():
        return
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the starter may have blocked signals
    process, server_lock = start_server(program)
    start_guard(process, server_lock)
    watch_server(server_lock)
    stop_server(process, server_lock)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
