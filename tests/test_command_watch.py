"""`presence watch`: live at a terminal, line by line in pipes, through outages, until Ctrl-C."""

from .terminal import Terminal

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
