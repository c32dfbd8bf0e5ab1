"""Every break in the table can still be applied. Whether it is caught: `python -m tests.broken`."""

from importlib import import_module
from typing import Any

from tests.broken.table import BREAKS, ROOT, Break, Outdated

lua51: Any = import_module("lupa.lua51")


def test_each_break_still_applies() -> None:
    """In a single test: as one for each, they would take three times as long."""
    problems = [f"{each.name}: {problem}" for each in BREAKS if (problem := problem_of(each))]
    assert not problems, "\n".join(problems)


def test_each_break_has_a_name_of_its_own() -> None:
    assert len({each.name for each in BREAKS}) == len(BREAKS) >= 60


def problem_of(each: Break) -> str:
    """Return why a break can no longer be applied; empty if it can."""
    try:
        file, text = each.apply()
        if file.suffix == ".py":
            compile(text, "broken", "exec")
        elif file.suffix == ".lua":
            lua51.LuaRuntime().compile(text)
    except (Outdated, SyntaxError, lua51.LuaError) as error:
        return str(error)
    if text == (ROOT / file).read_text("utf-8"):
        return "it changes nothing"
    missing = [path for path in each.paths if not _is_there(*path.partition("::"))]
    return f"there is no {missing}" if missing else ""


def _is_there(file: str, _: str, name: str) -> bool:
    return f"def {name.partition('[')[0]}" in (ROOT / file).read_text("utf-8")
