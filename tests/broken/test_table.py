"""Every break in the table can still be applied. Whether it is caught: `python -m tests.broken`."""

import pytest

from tests.broken.table import BREAKS, ROOT, Break


@pytest.mark.parametrize("each", BREAKS, ids=[each.name for each in BREAKS])
def test_a_break_still_applies(each: Break) -> None:
    file, text = each.apply()
    assert compiles(file.suffix, text)
    assert text != (ROOT / file).read_text("utf-8")
    assert all((ROOT / path.partition("::")[0]).is_file() for path in each.paths)


def test_each_break_has_a_name_of_its_own() -> None:
    assert len({each.name for each in BREAKS}) == len(BREAKS) >= 60


def compiles(suffix: str, text: str) -> bool:
    """Return whether a file of Python or Lua can be compiled; others are not checked."""
    if suffix == ".py":
        compile(text, "broken", "exec")
    elif suffix == ".lua":
        lua51 = pytest.importorskip("lupa.lua51")
        lua51.LuaRuntime().compile(text)
    return True
