"""The `presence` command: who is online, from the shell."""

import sys


def main() -> None:
    """The entry point; says what to install where the extra `cli` is missing."""
    try:
        from .commands import presence
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.exit("presence: needs pip install 'presence_middleware[cli]'")
    presence(prog_name="presence")
