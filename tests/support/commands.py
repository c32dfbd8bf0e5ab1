"""The command `presence` in this process, and others in processes of their own; their outputs."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

from click.testing import CliRunner, Result

from presence_middleware.cli.commands import presence
from tests.support.servers import environment

# Before click 8.2, the two outputs are one unless asked for apart.
APART: Any = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}

# From Python 3.12 on, a fork of a process with threads is warned of.
THREADED_FORKS = "ignore:This process:DeprecationWarning"


def run_command(*arguments: object, env: Mapping[str, str], given: bytes = b"") -> Result:
    words = [str(argument) for argument in arguments]
    return CliRunner(**APART).invoke(presence, words, given, env, prog_name="presence")


def run_program(
    program: str, *arguments: str, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a program in a process of its own, whose settings are in variables."""
    command = [sys.executable, "-W", THREADED_FORKS, "-c", program, *arguments]
    return run(command, env=environment(**variables))


def run(command: Sequence[str] | str, **given: Any) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end; `given` is for `subprocess.run`."""
    return subprocess.run(command, capture_output=True, text=True, **{"timeout": 50, **given})
