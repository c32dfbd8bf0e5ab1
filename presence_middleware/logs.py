"""The logger of the package. An error in a log filter or handler must not fail a request."""

import logging
from contextlib import suppress

log = logging.getLogger("presence_middleware")


def warn(message: str, *arguments: object) -> None:
    """Log a warning. `arguments` are merged into `message` as by `logging`. Never raises."""
    with suppress(Exception):
        log.warning(message, *arguments, stacklevel=2)


def error(message: str, *arguments: object) -> None:
    """Log an error. `arguments` are merged into `message` as by `logging`. Never raises."""
    with suppress(Exception):
        log.error(message, *arguments, stacklevel=2)
