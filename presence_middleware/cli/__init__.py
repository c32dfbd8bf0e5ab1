"""The `presence` command, which shows who is online in a shell."""

import io
import sys


def main() -> None:
    """Run the `presence` command. If the extra `cli` is missing, print how to install it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Ids may contain characters that the encoding of the terminal lacks.
            stream.reconfigure(errors="backslashreplace")
    try:
        from .commands import presence

        presence(prog_name="presence")
    except ModuleNotFoundError as error:
        if error.name not in {"click", "rich"}:
            raise
        print("presence: needs pip install 'presence_middleware[cli]'", file=sys.stderr)
        sys.exit(2)
