"""The promises of README.md and docs/: commands, code blocks, links and tables."""

import configparser
import inspect
import os
import re
import shlex
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Collection
from dataclasses import fields, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import click
import httpx
import prometheus_client
import pytest
from django.conf import settings as django_settings

from presence_middleware import AsyncPresence, Recorder, prometheus, sse, upkeep
from presence_middleware.board import asgi, cache
from presence_middleware.cli import logs
from presence_middleware.cli.commands import presence as main
from presence_middleware.connections import health, limits
from presence_middleware.events import feed
from presence_middleware.identity.sources import SOURCES
from presence_middleware.parsers import DAY
from presence_middleware.prometheus import PresenceCollector
from presence_middleware.recorder import guests, recorder, setup_hints
from presence_middleware.replay import files
from presence_middleware.settings import Settings, variable
from presence_middleware.stores import STORES, events, history
from tests.support.backends import wait_until
from tests.support.servers import ROOT, environment
from tests.support.template_sites import LINE, configure_django
from tests.unit.test_public_surface import public

README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), *ROOT.glob("examples/*.md")])
FOLLOWED = {README, *DOCS.glob("start-*.md")}
"""Pages that tests/servers/test_start_pages.py follows to the letter."""
TEXTS = {page: page.read_text() for page in PAGES}
COMMANDS = re.findall(r"^python3 -m venv .*$", TEXTS[README], re.MULTILINE)
VARIABLES = {variable(field.name) for field in fields(Settings)}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


class Block(NamedTuple):
    page: Path
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page.name}, {self.code.splitlines()[0][:40]}"


def blocks(*languages: str) -> list[Block]:
    fence = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    found = [Block(page, *match) for page in PAGES for match in fence.findall(TEXTS[page])]
    return [block for block in found if block.language in languages]


def anchor(heading: str) -> str:
    """Return the anchor that a forge gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


# Links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", TEXTS[page], flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith("https://"):
            continue
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            assert heading in map(anchor, headings), target


def test_the_documentation_links_to_every_page() -> None:
    for page in set(DOCS.glob("*.md")) - {DOCS / "README.md"}:
        assert f"]({page.name})" in TEXTS[DOCS / "README.md"], page.name


# Code


@pytest.mark.parametrize("page", sorted(set(PAGES) - FOLLOWED), ids=lambda page: page.name)
def test_the_python_blocks_of_a_page_run_in_order(
    page: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    monkeypatch.setenv("PRESENCE_REDIS_URL", f"memory://{prefix}")
    monkeypatch.setenv("PRESENCE_ROOMS", "/t/{topic}/*, /docs/*")
    configure_django()
    monkeypatch.setattr(django_settings, "MIDDLEWARE", [LINE])
    monkeypatch.setattr(prometheus_client, "REGISTRY", prometheus_client.CollectorRegistry())
    namespace: dict[str, Any] = {}
    code = blocks("python")
    assert len(code) > 8
    for block in code:
        if block.page == page:
            exec(compile(block.code, page.name, "exec"), namespace)
    for name in [name for name in namespace if name.startswith("test_")]:
        namespace[name]()


@pytest.mark.parametrize("block", blocks("sh", "console"), ids=str)
def test_the_commands_of_a_page_exist(block: Block) -> None:
    code = block.code
    if block.language == "console":
        code = "\n".join(line[2:] for line in code.splitlines() if line.startswith("$ "))
    for extras in re.findall(r"'\.\[([\w,]+)\]'", code):
        assert set(extras.split(",")) <= set(EXTRAS)
    for words in [shlex.split(line, comments=True) for line in code.splitlines()]:
        settings = dict(word.split("=", 1) for word in words if word.startswith("PRESENCE_"))
        Settings.from_env(settings | ({"PRESENCE_SECRET": "s" * 16} if settings else {}))
        if words[:1] == ["presence"]:
            check_usage(list(takewhile(lambda word: word != "&&", words[1:])))


def check_usage(words: list[str]) -> None:
    name, *arguments = words
    # A log that is named need not be there.
    arguments = [os.devnull if word.endswith(".log") else word for word in arguments]
    main.commands[name].make_context(name, arguments)


@pytest.mark.parametrize("block", blocks("ini"), ids=str)
def test_the_keys_of_an_ini_file_are_settings(block: Block) -> None:
    parser = configparser.ConfigParser()
    parser.read_string(block.code)
    section = dict(parser["filter:presence"])
    assert section.pop("use") == "egg:presence_middleware"
    Settings.from_env({variable(key): value for key, value in section.items()})


def test_every_variable_that_is_named_exists() -> None:
    for page, text in TEXTS.items():
        assert set(re.findall(r"\bPRESENCE_[A-Z_]+\b", text)) <= VARIABLES, page.name


@pytest.mark.parametrize(
    "chain",
    sorted(
        {
            chain
            for text in TEXTS.values()
            for chain in re.findall(r"`(?:PRESENCE_IDENTITY=)?\"?([a-z]\w*=[a-z][^`]*?)\"?`", text)
            if not re.match(r"data|clock|kind|limit|window|aud|before", chain)
            and not any(store in chain for store in STORES)
        }
    ),
)
def test_every_chain_that_is_shown_is_accepted(chain: str) -> None:
    secret = "s" * 40
    Settings.from_env({}, identity=chain, secret=secret, session_secret=secret)


# README


def test_the_readme_is_short_and_begins_with_code_and_two_commands_are_all_the_set_up() -> None:
    text, (demo, tests) = TEXTS[README], COMMANDS
    assert len(text.split()) <= 450
    assert "```python" in text.splitlines()[:15]
    assert demo.endswith("presence demo")
    assert tests.endswith("pytest -n 3")


def test_the_questions_of_the_readme_are_methods() -> None:
    asked = re.findall(r"^presence\.(\w+)\(", TEXTS[README], re.MULTILINE)
    assert len(asked) > 5
    assert all(hasattr(AsyncPresence, name) for name in asked)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_first_command_starts_the_demo_on_a_fresh_clone(tmp_path: Path) -> None:
    clone, state = tmp_path / "clone", tmp_path / "state"
    state.mkdir()
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    python = shutil.which("python3", path=os.defpath) or str(shutil.which("python3"))
    process = subprocess.Popen(
        COMMANDS[0].replace("python3", python, 1),
        shell=True,
        cwd=clone,
        env=environment(XDG_STATE_HOME=str(state), PYTHONPATH=""),
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        wait_until(
            lambda: "Who is online" in (process.stdout.readline() if process.stdout else ""), 500
        )
        browser = {"User-Agent": "Mozilla/5.0 Firefox/140.0"}
        shown = partial(
            httpx.get, "http://127.0.0.1:8000/", headers=browser, trust_env=False, verify=False
        )
        wait_until(lambda: re.search(r"^[2-4]\d guests online$", shown().text, re.MULTILINE))
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(30)
        process.stdout.close() if process.stdout else None


# Numbers


@pytest.mark.parametrize(
    ("page", "text", "constant", "number"),
    [
        ("architecture.md", "six seconds after its next look", upkeep.LEASE_MARGIN, 6),
        ("asking.md", "uses at most 16 connections", limits.CONNECTIONS, 16),
        ("asking.md", "raise it at once for five seconds", limits.OUTAGE_PAUSE, 5),
        ("board.md", "at most 256 rooms a second", cache.MAX_RESULTS, 256),
        ("events.md", "A process serves 100 of these streams", asgi.MAX_STREAMS, 100),
        ("events.md", "takes nothing for three seconds", asgi.SEND_SECONDS, 3),
        ("events.md", "a comment every 15 seconds", sse.BEAT_SECONDS, 15),
        ("events.md", "stored for five minutes", events.STREAM_SECONDS, 300),
        ("events.md", "goes on after about ten seconds", feed.LEASE_SECONDS, 10),
        ("events.md", "A name is remembered for an hour", feed.NAME_SECONDS, 3600),
        ("identity.md", "at most 100 new guests per window", guests.QUOTA, 100),
        ("identity.md", "2,000 from a /48 of IPv6", guests.SITE_QUOTA, 2000),
        ("identity.md", "ten seconds after the first of three", setup_hints.SECONDS, 10),
        ("identity.md", "of three visits", setup_hints.FEW_VISITS, 3),
        ("logs.md", "to at most 100 connections", logs.MOST_READERS, 100),
        ("logs.md", "read for another minute", files.ROTATED_SECONDS, 60),
        ("metrics.md", "read at most once a second", prometheus.READ_EVERY, 1),
        ("pulse.md", "if 100 pulses named no user", setup_hints.USERLESS_SIGNALS, 100),
        ("servers.md", "in two seconds at most", recorder.FLUSH_SECONDS, 2),
        ("stores.md", "at most five seconds or", health.MAX_PAUSE_SECONDS, 5),
        ("stores.md", "The peak is stored for a year", history.PEAK_TTL, 366 * DAY),
    ],
)
def test_a_number_of_a_page_is_that_of_the_code(
    page: str, text: str, constant: float, number: float
) -> None:
    """Other tests shorten these, or count up to them, and so pass with any number."""
    assert text in " ".join(TEXTS[DOCS / page].split())
    assert constant == number


# Tables


def rows(page: str, form: str) -> list[Any]:
    return re.findall(form, TEXTS[DOCS / page], re.MULTILINE)


def test_the_table_of_settings_matches_the_code() -> None:
    table = rows("settings.md", r"^\| `(PRESENCE_\w+)` \| (?:`(.*?)` )?\| (.*) \|$")
    form = re.compile(r'^    (\w+): [^=]*= _setting.*?"""(.*?)"""', re.MULTILINE | re.DOTALL)
    docs = {
        name: " ".join(text.split()).rstrip(". ")
        for name, text in form.findall(inspect.getsource(Settings))
    }
    assert [(name, default, text[0].upper() + text[1:]) for name, default, text in table] == [
        (variable(field.name), field.default, docs[field.name]) for field in fields(Settings)
    ]


def test_the_table_of_sources_shows_how_each_is_written_and_stored() -> None:
    cells = " ".join(rows("identity.md", r"^\| (`.*?) \|"))
    for name, source in SOURCES.items():
        argument = f":{source.argument}" if source.argument else ""
        usage = name + (f"[:{argument[2:]}" if argument.startswith(":[") else argument)
        assert f"`{usage}`" in cells
    shown: dict[str, str] = {}
    for sources, stored in rows("identity.md", r"^\| (`.*`) \| .* \| (raw|hashed) \|$"):
        shown |= dict.fromkeys(re.findall(r"`([a-z-]+)[`:[]", sources), stored)
    assert {name: shown[name] == "hashed" for name in SOURCES} == {
        name: source.client_supplied for name, source in SOURCES.items()
    }


# Of readers, without what is built upon them, or described beside the table.
METHODS = set(public(AsyncPresence)) - {"from_env", "run", "aclose", "backend"}


@pytest.mark.parametrize(
    ("page", "form", "names"),
    [
        ("stores.md", r"^\| `([a-z-]+)` \|", STORES),
        ("asking.md", r"^\| `(\w+)\(", METHODS),
        ("command-line.md", r"^\| `presence (\w+)", main.commands),
    ],
)
def test_a_table_of_names_is_complete(page: str, form: str, names: Collection[str]) -> None:
    assert set(rows(page, form)) == set(names)


def test_how_each_command_takes_the_kind_is_described() -> None:
    (sentence,) = rows("command-line.md", r"(?:\A|\. )([^.]*) take the kind as an argument")
    takes = {
        name
        for name, command in main.commands.items()
        if any(
            isinstance(each, click.Argument) and each.name == "kind_given"
            for each in command.params
        )
    }
    assert set(re.findall(r"`(\w+)`", sentence)) == takes


def test_the_metrics_that_are_shown_exist(settings: Settings) -> None:
    recorder = Recorder(replace(settings, events=(settings.kinds[0],)), background=False)
    names = {metric.name for metric in PresenceCollector(recorder).describe()}
    shown = {name.removesuffix("_total") for name in rows("metrics.md", r"^\| `(presence_\w+)")}
    assert shown == names
