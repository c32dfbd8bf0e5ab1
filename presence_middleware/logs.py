"""The log lines of the package. A filter of the site that raises must not fail a request."""

import logging
from contextlib import suppress

log = logging.getLogger("presence_middleware")


def warn(message: str, *arguments: object) -> None:
    """Log a warning; `arguments` are put into the message as by `logging`. Never raises."""
    with suppress(Exception):
        log.warning(message, *arguments, stacklevel=2)


def error(message: str, *arguments: object) -> None:
    """Log an error; `arguments` are put into the message as by `logging`. Never raises."""
    with suppress(Exception):
        log.error(message, *arguments, stacklevel=2)
