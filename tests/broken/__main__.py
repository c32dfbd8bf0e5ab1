"""Run the tests against broken copies of the package: `python -m tests.broken [NAME …]`.

Each break is applied to a copy of this project in a temporary folder, alone. The tests that are
named with it must fail there. Exit status 1 if a break is not caught or no longer applies.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.broken.table import BREAKS, PACKAGE, ROOT, Break, Outdated

SKIPPED = ("__pycache__", ".*", "dist")  # what the tests do not need
SECONDS = 1800  # for the tests of one break
ALL_TESTS = ("-n", "2", "tests", "--ignore=tests/broken")
FAILED = 1  # the exit status of pytest if tests failed; above, it could not run them
_CATCHER = re.compile(r"^(?:FAILED|ERROR) (\S+::\S+(?:\[.*?\])?)(?= - |$)", re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.broken", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="Breaks; by default all.")
    parser.add_argument(
        "--all-tests", action="store_true", help="Run all tests, not only those that are named."
    )
    parser.add_argument(
        "--confirm", action="store_true", help="Run what caught a break without the break as well."
    )
    given = parser.parse_args(arguments)
    known = {each.name: each for each in BREAKS}
    if unknown := set(given.names) - known.keys():
        parser.error(f"there is no break {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="presence-broken-") as folder:
        copy = Path(folder)
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*SKIPPED), dirs_exist_ok=True)
        wrong = [name for name in given.names or known if not report(copy, known[name], given)]
    count = len(given.names or known)
    print(f"{count - len(wrong)} of {count} breaks are caught", *wrong, sep="\n  ")
    return 1 if wrong else 0


def report(copy: Path, each: Break, options: argparse.Namespace) -> bool:
    """Run the tests of a break, and print the outcome. Return whether they caught it."""
    try:
        file, text = each.apply()
    except Outdated as error:
        print(f"OUTDATED   {error}", flush=True)
        return False
    renew_package(copy)
    (copy / file).write_text(text, "utf-8")
    # A test that is named runs whatever its markers are.
    any_marker = ["-m", ""] if any("::" in path for path in each.paths) else []
    began = time.monotonic()
    status, output = run_tests(copy, ALL_TESTS if options.all_tests else [*any_marker, *each.paths])
    took = f"{time.monotonic() - began:5.1f} s  {each.name}:"
    catcher = _CATCHER.search(output)
    if status != FAILED or not catcher:
        outcome = f"status {status}, {output.strip()[-500:]}" if status else each.promise
        print(f"NOT CAUGHT {took} {outcome}", flush=True)
        return False
    if options.confirm:
        renew_package(copy)
        status, _ = run_tests(copy, ["-m", "", catcher[1]])
        if status:
            print(f"NOT SURE   {took} without the break, {catcher[1]} fails, too", flush=True)
            return False
    print(f"caught     {took} {catcher[1]}", flush=True)
    return True


def renew_package(copy: Path) -> None:
    """Copy the package. In the old folder, compiled files of another break may look up to date."""
    package = copy / PACKAGE.name
    shutil.rmtree(package)
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))


def run_tests(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests against the copy; return the exit status and the output."""
    # The path of the copy comes before that of the editable install, in all child processes too.
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PRESENCE_")}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env={**inherited, "PYTHONPATH": str(copy)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return -1, "the tests did not end"
    return done.returncode, done.stdout


if __name__ == "__main__":
    sys.exit(main())
