"""The logger of the package. An error in a log filter or handler must not fail a request."""

import logging
import traceback
from contextlib import suppress

log = logging.getLogger("presence_middleware")
_OWN = "presence_middleware."


def warn(message: str, *arguments: object) -> None:
    """Log a warning. `arguments` are merged into `message` as by `logging`. Never raises."""
    with suppress(Exception):
        log.warning(message, *arguments, stacklevel=2)


def error(message: str, *arguments: object) -> None:
    """Log an error. `arguments` are merged into `message` as by `logging`. Never raises."""
    with suppress(Exception):
        log.error(message, *arguments, stacklevel=2)


def place_of(error: BaseException) -> str:
    """Return where an exception was raised: the innermost call first, at most four of them.

    Frames of this package are left out if there are others. The message of the exception is left
    out as well, because it may contain data of a client.
    """
    calls = list(traceback.walk_tb(error.__traceback__))
    outside = [call for call in calls if not call[0].f_globals.get("__name__", "").startswith(_OWN)]
    return ", called from ".join(
        f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"
        for frame, line in reversed((outside or calls)[-4:])
    )
