"""`presence watch`: live at a terminal, line by line in pipes, through outages, until Ctrl-C."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from presence_middleware import Presence, Settings
from presence_middleware.connections.embedded import find_server

from .conftest import Server
from .servers import environment
from .terminal import COMMAND, Terminal
from .test_command_answers import record

FAST = ("--interval", "0.1s")
ENTERED, LEFT = "\x1b[?1049h", "\x1b[?1049l"
HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"


def has(*texts: str) -> "object":
    return lambda screen: all(any(text in line for line in screen) for text in texts)


def is_put_back(terminal: Terminal) -> bool:
    raw = terminal.raw
    modes = ((ENTERED, LEFT), (HIDDEN, SHOWN))
    return terminal.modes() == terminal.before and all(
        -1 < raw.rfind(on) < raw.rfind(off) for on, off in modes
    )
