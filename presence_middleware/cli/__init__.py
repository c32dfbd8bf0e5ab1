"""The `presence` command: who is online, from the shell."""

import io
import sys


def main() -> None:
    """The entry point; says what to install where the extra `cli` is missing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # ids may be of any alphabet
    try:
        from .commands import presence

        presence(prog_name="presence")
    except ModuleNotFoundError as error:
        if error.name not in {"click", "rich"}:
            raise
        print("presence: needs pip install 'presence_middleware[cli]'", file=sys.stderr)
        sys.exit(2)
