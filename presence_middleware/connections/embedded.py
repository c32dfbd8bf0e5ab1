"""`embedded://`: a Valkey or Redis server that the processes of one user share, over a socket.

The first process that uses the server starts it, together with a supervisor. Every process holds a
shared lock, its *share*. The supervisor stops the server after the last share is released, and the
server ends if its supervisor does. The next `serve` then starts both again.

`supervisor.py` describes the lock files and how data is saved. No function here blocks for longer
than the times below, holds a lock during a fork, or makes one thread wait for another.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import socket
import stat
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from ..errors import PresenceUnavailable, SettingsError
from . import supervisor
from .launcher import NO_SERVER, find_server, launch_supervisor
from .supervisor import open_lock, try_lock

START_SECONDS = 5.0
# How long to wait in all for a server that is loading its data.
LOADING_SECONDS = 60.0
# How long to wait without starting a server, because another process may be about to.
JOIN_SECONDS = 1.0
ANSWER_SECONDS = 0.5
POLL_SECONDS = 0.01
LOG_CHARACTERS = 600  # of the server's log in an error
LAUNCHES = 2  # the first may find a server that is ending
SOCKET_PATH_BYTES = 103  # the limit is 104 with the final zero byte on macOS, and 108 on Linux

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
    """A descriptor of `users.lock`, locked shared."""

    descriptor: int
    file: tuple[int, int]
    """The device and inode of the lock file.

    A daemon closes all descriptors when it starts, and another file may get the same number."""

    def is_open(self) -> bool:
        try:
            return _file_identity(os.fstat(self.descriptor)) == self.file
        except OSError:
            return False

    def close(self) -> None:
        # Never LOCK_UN: that would also release the lock of the parent process.
        if self.is_open():
            os.close(self.descriptor)


# By process id and directory. A forked child finds the shares of its parent here. They keep the
# server running until the child has its own. This needs no lock, because each access is a single
# operation on the dictionary.
_shares: dict[tuple[int, Path], _Share] = {}


def serve(directory: Path, *, start: bool = True) -> Path:
    """Return the socket of a running server of which this process holds a share.

    `directory` is where the server stores its files. Without `start`, only a server that is
    already running is used. Call this before each new connection: it is cheap while the server
    runs, and starts it again after a failure.

    Raises `PresenceUnavailable` with the reason if the server does not answer within some seconds,
    or within one second without `start`. Raises `SettingsError` if no server program is installed.
    After an error, this process may hold a share until `release` or its end.
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
    """Release the share of this process. After the last, the server saves its data and stops."""
    directory = Path(os.path.realpath(directory))
    for key in list(_shares):
        if key[1] == directory and (share := _shares.pop(key, None)):
            share.close()


def wait_until_stopped(directory: Path, seconds: float = 5.0) -> bool:
    """Release the share of this process and wait for the server to stop.

    Returns False if it still runs after `seconds`, because other processes use it.
    """
    release(directory)
    deadline = time.monotonic() + seconds
    while not (is_stopped := _is_stopped(directory)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return is_stopped


def _is_stopped(directory: Path) -> bool:
    try:
        return _is_unsupervised(directory, launch=False)
    except FileNotFoundError:
        return True


def _wait_for_server(directory: Path, path: Path, start: bool) -> None:
    began = time.monotonic()
    seconds, launches = (START_SECONDS, LAUNCHES) if start else (JOIN_SECONDS, 0)
    while time.monotonic() < began + seconds:
        # While a server is being stopped, no share can be taken.
        if _take_share(directory):
            is_unsupervised = _is_unsupervised(directory, launch=launches > 0)
            reply = _ping(path)
            if reply.startswith(b"+PONG"):
                return
            if is_unsupervised:
                if launches == 0:
                    raise _failed(directory, "ended") if start else _not_running(directory)
                launches -= 1
            if start and reply.startswith(b"-LOADING"):
                seconds = LOADING_SECONDS
        time.sleep(POLL_SECONDS)
    raise _failed(directory, f"gave no answer in {seconds:g} seconds")


def _not_running(directory: Path) -> PresenceUnavailable:
    return PresenceUnavailable(
        f"no embedded server is running in {directory}; start the site first (embedded:// depends "
        "on the working directory, embedded:///path does not)"
    )


def _failed(directory: Path, failure: str) -> PresenceUnavailable:
    with contextlib.suppress(FileNotFoundError):
        log = (directory / supervisor.LOG).read_text(errors="replace")
        failure += f"; its log ends with: {log[-LOG_CHARACTERS:].strip()}"
    return PresenceUnavailable(f"the embedded server in {directory} {failure}")


def _file_identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _take_share(directory: Path) -> bool:
    """Make sure that this process holds a share. Return False while the server is being stopped."""
    key, path = (os.getpid(), directory), directory / supervisor.USERS_LOCK
    share = _shares.get(key)
    # If the directory was deleted, the share is on a file that no other process can open.
    if share and share.is_open() and path.exists() and _file_identity(path.stat()) == share.file:
        return True
    descriptor = open_lock(path)
    if not try_lock(descriptor, fcntl.LOCK_SH):
        os.close(descriptor)
        return False
    release(directory)  # shares of the parent process, or on a deleted file
    share = _Share(descriptor, _file_identity(os.fstat(descriptor)))
    if _shares.setdefault(key, share) is not share:
        share.close()  # another thread has just taken one
    return True


def _is_unsupervised(directory: Path, *, launch: bool) -> bool:
    """Return whether there was no supervisor; with `launch`, start one in that case."""
    lock = open_lock(directory / supervisor.SUPERVISOR_LOCK)
    try:
        is_unsupervised = try_lock(lock)
        if is_unsupervised and launch:
            launch_supervisor(directory, lock)
        return is_unsupervised
    finally:
        # Closing is not enough, because a process that was forked meanwhile has a copy.
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _ping(path: Path) -> bytes:
    """Return the reply of the server to a PING, or nothing if there is none."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_SECONDS)
        try:
            connection.connect(os.fspath(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(100)
        except OSError:
            return b""


def default_directory(name: str = "") -> Path:
    """Return the state folder of the server called `name`, or that of the working directory.

    Raises `SettingsError` if `name` is not a plain file name, or if there is no home directory.
    """
    if name and not re.fullmatch(r"\w[\w.-]{0,99}", name, re.ASCII):
        raise SettingsError(f"embedded://{name}: a name has letters, digits, '_', '-' and '.' only")
    try:
        return _state_home() / "presence_middleware" / (name or _name_for(Path.cwd()))
    except (OSError, RuntimeError) as error:
        raise SettingsError(
            f"embedded:// found no place for its data ({error}); set embedded:///path"
        ) from error


def _state_home() -> Path:
    state_home = Path(os.environ.get("XDG_STATE_HOME", ""))
    return state_home if state_home.is_absolute() else Path.home() / ".local" / "state"


def _name_for(directory: Path) -> str:
    readable = re.sub(r"[^\w.-]+", "-", directory.name, flags=re.ASCII)[:40]
    return f"{readable or 'root'}-{_hash(directory)[:8]}"


def _hash(path: Path) -> str:
    return hashlib.blake2b(os.fsencode(path), digest_size=16).hexdigest()


def check_private(directory: Path) -> None:
    """Raise `PresenceUnavailable` if other users can write to a directory.

    They could put a socket of their own there, and would receive the data of this process.
    """
    status = os.lstat(directory)
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not is_own or status.st_mode & 0o022:
        raise PresenceUnavailable(
            f"{directory} must be a directory that belongs to user {os.geteuid()} and that "
            "no other user can write to (chmod 700)"
        )


def socket_path(directory: Path) -> Path:
    """Return the path of the socket, through a short link if it is too long for the system.

    Raises `PresenceUnavailable` if other users can write to the folder of the link.
    """
    path = directory / supervisor.SOCKET
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        return path
    links = Path("/tmp") / f"presence_middleware-{os.geteuid()}"  # noqa: S108 (checked below)
    links.mkdir(mode=0o700, exist_ok=True)
    check_private(links)
    link = links / _hash(directory)
    with contextlib.suppress(FileExistsError):
        link.symlink_to(directory)
    return link / supervisor.SOCKET
