"""Where an embedded server keeps its files, and that nobody else can get at them."""

import contextlib
import hashlib
import os
import re
import stat
from pathlib import Path

from ..errors import PresenceUnavailable, SettingsError
from .supervisor import SOCKET

SOCKET_PATH_BYTES = 103  # 104 with its end on macOS, 108 on Linux


def default_directory(name: str = "") -> Path:
    """The state folder of the server called `name`, or of the one for this working directory.

    Raises `SettingsError` when `name` is no plain file name, or no folder can be told.
    """
    if name and not re.fullmatch(r"\w[\w.-]{0,99}", name, re.ASCII):
        raise SettingsError(f"embedded://{name}: a name has letters, digits, '_', '-' and '.' only")
    try:
        return _state_home() / "presence_middleware" / (name or _name_of(Path.cwd()))
    except (OSError, RuntimeError) as error:
        raise SettingsError(f"embedded://: no place for its data ({error}), name one") from error


def _state_home() -> Path:
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    return given if given.is_absolute() else Path.home() / ".local" / "state"


def _name_of(directory: Path) -> str:
    readable = re.sub(r"[^\w.-]+", "-", directory.name, flags=re.ASCII)[:40]
    return f"{readable or 'root'}-{_hash(directory)[:8]}"


def _hash(path: Path) -> str:
    return hashlib.blake2b(os.fsencode(path), digest_size=16).hexdigest()


def check_private(directory: Path) -> None:
    """Raise `PresenceUnavailable` when others could put files there: a socket, and get our data."""
    found = os.lstat(directory)
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not ours or found.st_mode & 0o022:
        raise PresenceUnavailable(
            f"{directory} must be a directory that belongs to user {os.geteuid()} and that "
            "nobody else can write to (chmod 700)"
        )


def socket_path(directory: Path) -> Path:
    """The socket, through a short link when its own path is too long for the system."""
    path = directory / SOCKET
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        return path
    links = Path("/tmp") / f"presence_middleware-{os.geteuid()}"  # noqa: S108 (checked below)
    links.mkdir(mode=0o700, exist_ok=True)
    check_private(links)
    link = links / _hash(directory)
    with contextlib.suppress(FileExistsError):
        link.symlink_to(directory)
    return link / SOCKET
