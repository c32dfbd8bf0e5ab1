"""The `presence` command, which shows who is online in a shell."""

import io
import os
import sys
from pathlib import Path


def main() -> None:
    """Run the `presence` command. If the extra `cli` is missing, print how to install it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # A shell or a service may have closed it. Otherwise, a socket would get its number.
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - for good
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Ids may contain characters that the encoding of the terminal lacks.
            stream.reconfigure(errors="backslashreplace")
    try:
        from .commands import presence

        presence(prog_name="presence")
    except ModuleNotFoundError as error:
        if error.name not in {"click", "rich", "waitress"}:
            raise
        print("presence: needs pip install 'presence_middleware[cli]'", file=sys.stderr)
        sys.exit(2)
