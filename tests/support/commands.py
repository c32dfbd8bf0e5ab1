"""The command `presence`, run in this process: its outputs and its exit status."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

from click.testing import CliRunner, Result

from presence_middleware.cli.commands import presence

# Before click 8.2, the two outputs are one unless asked for apart.
APART: Any = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}


def run_command(*arguments: object, env: Mapping[str, str], given: bytes = b"") -> Result:
    """Run it with arguments, variables of the environment and an input."""
    words = [str(argument) for argument in arguments]
    return CliRunner(**APART).invoke(presence, words, given, env, prog_name="presence")
