"""`embedded://`: a real Valkey or Redis server that the processes of this user share on a socket.

The first process to use it starts it, with a supervisor. Each process that uses it holds a shared
lock, its *share*; the supervisor stops the server after the last share is gone. The server ends
with its supervisor; the next `serve` then starts both. `supervisor.py` explains the lock files and
how the data is kept. Nothing here blocks for longer than the times below, nothing is held across a
fork, and no thread waits for another.
"""

import contextlib
import fcntl
import os
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from ..errors import PresenceUnavailable
from . import supervisor
from .launcher import NO_SERVER, find_server, launch_supervisor
from .places import check_private, default_directory, socket_path
from .supervisor import open_lock, try_lock

START_SECONDS = 5.0
LOADING_SECONDS = 60.0  # in all, when the server says that it is reading its data
JOIN_SECONDS = 1.0  # without starting one: somebody may be about to
ANSWER_SECONDS = 0.5
POLL_SECONDS = 0.01
LOG_CHARACTERS = 600
LAUNCHES = 2  # the first may have found a server that was ending

__all__ = [
    "NO_SERVER",
    "default_directory",
    "find_server",
    "release",
    "serve",
    "wait_until_stopped",
]


@dataclass(frozen=True)
class _Share:
    """One descriptor of `users.lock`, locked shared. `file` is its device and inode: after a
    daemon has closed all descriptors, another file may have its number."""

    descriptor: int
    file: tuple[int, int]

    def is_open(self) -> bool:
        try:
            return _identity(os.fstat(self.descriptor)) == self.file
        except OSError:
            return False

    def close(self) -> None:
        # Never LOCK_UN: that would take the lock from the processes that we were forked from, too.
        if self.is_open():
            os.close(self.descriptor)


# By process id and directory. A forked child finds its parent's shares here, which keep the server
# up until the child has its own. Single dictionary operations only, so that it needs no lock.
_shares: dict[tuple[int, Path], _Share] = {}


def serve(directory: Path, *, start: bool = True) -> Path:
    """The socket of a server that answers, and of which this process now holds a share.

    To be called before each new connection: it is cheap while all is well, and puts right what
    died in between. With `start=False` it only joins a server that runs.

    Raises `PresenceUnavailable` with the reason, after some seconds at most, or about one without
    `start`; `SettingsError` when a server must be started and there is no program. After an error,
    too, a share may be held, until `release` or the process ends.
    """
    directory = Path(os.path.realpath(directory))
    try:
        if start:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif not (directory / supervisor.USERS_LOCK).exists():
            raise _not_running(directory)
        check_private(directory)
        path = socket_path(directory)
        _wait_for_server(directory, path, start)
    except (OSError, subprocess.SubprocessError) as error:
        raise PresenceUnavailable(f"embedded server in {directory}: {error}") from error
    return path


def release(directory: Path) -> None:
    """Give up this process's share. The server is stopped, and its data saved, after the last."""
    directory = Path(os.path.realpath(directory))
    for key in list(_shares):
        if key[1] == directory and (share := _shares.pop(key, None)):
            share.close()


def wait_until_stopped(directory: Path, seconds: float = 5.0) -> bool:
    """Give up this process's share, and wait for the server to end; False if others keep it."""
    release(directory)
    deadline = time.monotonic() + seconds
    while not (gone := _is_vacant(directory)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return gone


def _is_vacant(directory: Path) -> bool:
    try:
        return _fill_vacancy(directory, launch=False)
    except FileNotFoundError:
        return True


def _wait_for_server(directory: Path, path: Path, start: bool) -> None:
    began = time.monotonic()
    wait, launches = (START_SECONDS, LAUNCHES) if start else (JOIN_SECONDS, 0)
    while time.monotonic() < began + wait:
        # When the share is refused, the server is being stopped, which is waited for.
        if _take_share(directory):
            vacant = _fill_vacancy(directory, launches > 0)
            answer = _ping(path)
            if answer.startswith(b"+PONG"):
                return
            if vacant and not launches:
                raise _failed(directory, "ended") if start else _not_running(directory)
            launches -= vacant
            if start and answer.startswith(b"-LOADING"):
                wait = LOADING_SECONDS
        time.sleep(POLL_SECONDS)
    raise _failed(directory, f"gave no answer in {wait:g} seconds")


def _not_running(directory: Path) -> PresenceUnavailable:
    return PresenceUnavailable(
        f"no embedded server is running in {directory} "
        "(embedded:// is that of the working directory; embedded:///path is the same everywhere)"
    )


def _failed(directory: Path, how: str) -> PresenceUnavailable:
    with contextlib.suppress(FileNotFoundError):
        log = (directory / supervisor.LOG).read_text(errors="replace")
        how += f"; its log ends with: {log[-LOG_CHARACTERS:].strip()}"
    return PresenceUnavailable(f"the embedded server in {directory} {how}")


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _take_share(directory: Path) -> bool:
    key, path = (os.getpid(), directory), directory / supervisor.USERS_LOCK
    share = _shares.get(key)
    # Somebody may have deleted the directory: our lock would be in a file that no one else sees.
    if share and share.is_open() and path.exists() and _identity(path.stat()) == share.file:
        return True
    descriptor = open_lock(path)
    if not try_lock(descriptor, fcntl.LOCK_SH):
        os.close(descriptor)
        return False
    release(directory)  # what was inherited, and what is of no use any more
    share = _Share(descriptor, _identity(os.fstat(descriptor)))
    if _shares.setdefault(key, share) is not share:
        share.close()  # another thread was quicker
    return True


def _fill_vacancy(directory: Path, launch: bool) -> bool:
    """True when there was no supervisor; `launch` then starts one."""
    lock = open_lock(directory / supervisor.SUPERVISOR_LOCK)
    try:
        vacant = try_lock(lock)
        if vacant and launch:
            launch_supervisor(directory, lock)
        return vacant
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough: a process forked now has a copy
        os.close(lock)


def _ping(path: Path) -> bytes:
    """What the server says to a PING; nothing when it does not answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_SECONDS)
        try:
            connection.connect(os.fspath(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(100)
        except OSError:
            return b""
