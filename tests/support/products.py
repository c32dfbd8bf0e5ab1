"""Virtual environments of products, created on demand and reused between runs."""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.servers import ROOT

FOLDER = ROOT / ".venvs"
INSTALL_SECONDS = 280
LOG_LINES = 8  # of an installer that fails, in the reason why its tests are skipped


@cache
def python_of(name: str, requirements: Sequence[str], extras: str = "") -> Path:
    """Return the Python of a virtual environment with `requirements` and this checkout.

    `name` is that of its folder in `.venvs`, `requirements` are as in `pip install`, and `extras`
    are those of this package, such as `flask,jwt`. An environment that is there already with the
    same requirements is used again. Skips the test, with what the installer printed, if it fails.
    """
    FOLDER.mkdir(exist_ok=True)
    folder = FOLDER / name
    wanted = [*requirements, f"{ROOT}[{extras}]" if extras else str(ROOT)]
    described = "\n".join([sys.version, *wanted, (ROOT / "pyproject.toml").read_text()])
    digest = hashlib.sha256(described.encode()).hexdigest()
    stamp, python = folder / "installed", folder / "bin" / "python"
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker of pytest may want the same one
        if not (stamp.exists() and stamp.read_text() == digest):
            shutil.rmtree(folder, ignore_errors=True)
            if problem := _install(folder, python, wanted):
                pytest.skip(f"{name} cannot be installed, so it is not tested: {problem}")
            stamp.write_text(digest)
    return python


def _install(folder: Path, python: Path, wanted: Sequence[str]) -> str:
    """Install with uv if it works, else with pip. Return the error output, or an empty string."""
    *requirements, checkout = wanted
    arguments = [*requirements, "-e", checkout]
    venv.create(folder, symlinks=True)
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv:
        # By the system's certificates, as pip does.
        installer = [uv, "--native-tls", "pip", "install", "--python", str(python)]
        if not _problem(installer + arguments):
            return ""
    return _problem([sys.executable, "-m", "pip", "--python", str(python), "install", *arguments])


def _problem(command: Sequence[str]) -> str:
    try:
        done = run(command, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        return f"the installer took more than {INSTALL_SECONDS} seconds"
    printed = f"{done.stdout}{done.stderr}".splitlines()
    return "\n".join(printed[-LOG_LINES:]) if done.returncode else ""
