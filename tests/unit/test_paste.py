"""Paste ini files: the filter section of a site, found without loading the site."""

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import plaster.loaders
import pytest
from paste.deploy import loadapp

from presence_middleware import SettingsError
from presence_middleware.paste import find_filter
from tests.support.commands import run_command

SECRET = "canary-secret-of-the-ini"
SITE = """
[DEFAULT]
key = shared %(here)s
[app:main]
use = call:no_such_site:main
port = %(http_port)s
[filter:other]
use = egg:no_such_package
"""
OURS = "[filter:presence]\nuse = egg:presence_middleware\n"

Write = Callable[..., str]


@pytest.fixture(scope="module", autouse=True)
def plaster_looks_for_its_loaders_once() -> Iterator[None]:
    """Else it reads what is said of every installed package whenever it opens a file."""
    look = cache(plaster.loaders.find_loaders)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            plaster.loaders,
            "find_loaders",
            lambda scheme, protocols=None: look(scheme, protocols=tuple(protocols or ())),
        )
        yield


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(*parts: str, name: str = "site.ini") -> str:
        path = tmp_path / name
        path.write_text("".join(parts))
        return str(path)

    return write


def problems_of(ini: str) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        find_filter(ini)
    assert SECRET not in str(caught.value)
    return caught.value.problems


@pytest.mark.parametrize(
    "use",
    [
        "use = egg:presence_middleware",
        "use = egg:presence-middleware#main",
        "use = call:presence_middleware.paste:filter_factory",
        "paste.filter_factory = presence_middleware.paste:filter_factory",
        "paste.filter_app_factory = presence_middleware.paste:filter_app_factory",
    ],
)
@pytest.mark.parametrize("section", ["filter:presence", "filter-app: presence"])
def test_a_filter_is_found_however_it_is_named(write: Write, section: str, use: str) -> None:
    ini = write(SITE, f"[{section}]\n{use}\nnext = main\nfilter-with = other\nwindow = 15m\n")
    found = find_filter(ini)
    assert (found.name, found.settings) == ("presence", {"window": "15m"})
    assert found.where == f"{ini} [{section}]"
    assert find_filter(f"{ini}#presence") == found


def test_defaults_interpolation_set_and_get_work_as_in_paste(write: Write, tmp_path: Path) -> None:
    ini = write(SITE, OURS, "prefix = a%(here)s/%(name)s%%\nget secret = key\nset name = x\n")
    found = find_filter(ini + "?name=site")
    assert found.settings == {"prefix": f"a{tmp_path}/site%", "secret": f"shared {tmp_path}"}


def test_a_filter_inherits_the_keys_of_another_section_or_file(write: Write) -> None:
    write("[filter:main]\nuse = presence\nprefix = main\n", OURS, "window = 1h\n", name="base.ini")
    ini = write(
        SITE,
        OURS,
        "window = 15m\n[filter:staging]\nuse = presence\nprefix = staging\n",
        "[filter:file]\nuse = config:base.ini\nwindow = 2h\n",
        "[filter:part]\nuse = config:base.ini#presence\n",
    )
    assert find_filter(f"{ini}#staging").settings == {"window": "15m", "prefix": "staging"}
    assert find_filter(f"{ini}#file").settings == {"window": "2h", "prefix": "main"}
    assert find_filter(f"{ini}#part").settings == {"window": "1h"}


def test_a_missing_or_ambiguous_section_is_refused(write: Write) -> None:
    none = write(SITE)
    remedy = "with use = egg:presence_middleware"
    assert problems_of(none) == (f"{none}: no filter section {remedy}",)
    assert problems_of(f"{none}#other") == (f"{none}: no section [filter:other] {remedy}",)
    two = write(SITE, OURS, "[filter:b]\nuse = presence\n", name="two.ini")
    assert problems_of(two) == (
        f"{two}: several filters use presence_middleware; choose {two}#presence or {two}#b",
    )


NO_INI = ": expected an ini file ({}Error)"
UNREADABLE = {
    f"{OURS}secret = {SECRET}%x": " [filter:presence] secret: expected %% for a percent sign",
    f"{OURS}{SECRET}": NO_INI.format("Parsing"),
    SECRET: NO_INI.format("MissingSectionHeader"),
    f"{OURS}secret = {SECRET}\n{OURS}": NO_INI.format("DuplicateSection"),
    f"{OURS}get window = long": " [filter:presence]: get of long, which is not set",
    "[filter:a]\nuse = b\n[filter:b]\nuse = a": " [filter:a]: use leads back to itself",
}


@pytest.mark.parametrize("text", UNREADABLE)
def test_an_unreadable_ini_file_is_reported_without_secrets(write: Write, text: str) -> None:
    ini = write(text)
    (found,) = problems_of(ini)
    assert found.startswith(f"{ini}{UNREADABLE[text]}")


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    missing = f"{tmp_path}/missing.ini"
    assert problems_of(missing) == (f"{missing}: No such file or directory",)
    (problem,) = problems_of(f"{tmp_path}/site.conf")
    assert problem.startswith(f"{tmp_path}/site.conf: expected the path of an .ini file")


def test_only_the_command_needs_plaster(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plaster", None)
    (problem,) = problems_of(write(SITE, OURS))
    assert problem.endswith("pip install plaster-pastedeploy")
    assert loadapp(f"config:{write(APP, OURS)}")  # as `gunicorn --paste` does, which needs none


APP = f"""
[app:main]
use = call:{__name__}:make_app
filter-with = presence
"""
WRONG = """[filter:presence]
use = egg:presence_middleware
windwo = 15m
window = soon
flush_interval = 1s
secret = short
store = robot=hyperloglog
"""


def make_app(global_conf: object, **settings: str) -> Callable[..., Any]:
    return lambda environ, start_response: []


def test_an_error_lists_all_problems_of_a_section_with_the_keys_of_the_file(write: Write) -> None:
    ini = write(APP, "[filter:first]\nuse = egg:presence_middleware\n", WRONG)
    where = f"{ini} [filter:presence]"
    with pytest.raises(SettingsError) as caught:  # with which `pserve` fails to start the site
        loadapp(f"config:{ini}")
    unknown, window, secret = caught.value.problems
    assert unknown == f"{where} windwo: unknown setting; did you mean window?"
    assert window.startswith(f"{where} window='soon': expected a duration above zero and below")
    assert secret.startswith(f"{where} secret=***: expected at least 16 characters")
    ended = run_command("--ini", f"{ini}#presence", "config", env={})
    problems = ended.stderr.removeprefix("Error: ").splitlines()
    assert ended.exit_code == 2
    assert [problem.startswith(where) for problem in problems] == [True] * 3
