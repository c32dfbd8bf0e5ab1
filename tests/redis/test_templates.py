"""Templates of each framework: what they show, and what they send to Redis."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from presence_middleware import Presence, Settings
from tests.support.backends import Server
from tests.support.template_sites import SITES, Get, django_async_site, starlette_site

Commands = Callable[[Callable[[], object]], list[str]]


@pytest.fixture
def settings(own: Server, prefix: str) -> Settings:
    """Settings with which no visit is recorded, so that only questions reach the server."""
    return Settings.from_env({}, redis_url=own.url, prefix=prefix, enabled=0)


@pytest.fixture
def commands(own: Server, client: Any) -> Iterator[Commands]:
    """Returns the commands that the server receives during a call, as `MONITOR` shows them."""
    with Redis.from_url(own.url) as watching:
        client.ping()

        def during(call: Callable[[], object]) -> list[str]:
            seen = []
            with watching.monitor() as monitor:
                call()
                client.echo("end")
                while (command := monitor.next_command()["command"]) != "ECHO end":
                    seen.append(command)
            return seen

        yield during


@pytest.mark.parametrize("name", SITES)
def test_a_page_asks_once_or_never(name: str, settings: Settings, commands: Commands) -> None:
    get, presence, texts = SITES[name](settings), Presence(settings), list[str]()
    for page in ("/nothing", "/nobody"):
        assert commands(lambda: texts.append(get(page).text)) == []  # noqa: B023
    assert texts == ["nothing", "[]"]
    assert get("/count").text == "0"
    presence.touch("9")
    presence.touch("7")
    assert get("/count").text == "2"
    among: list[str] = []
    sent = commands(lambda: among.append(get("/among").text))
    assert [id in among[0] for id in "789"] == [True, False, True]
    assert [each.split()[0] for each in sent if settings.prefix in each] == ["ZMSCORE"]


@pytest.mark.parametrize("page", ["/shown", "/variable"])
def test_a_tag_is_empty_in_an_outage(page: str, settings: Settings) -> None:
    away = Settings.from_env({}, redis_url="redis://127.0.0.1:1", enabled=0)  # nobody listens
    assert SITES["django"](settings)(page).text == {"/shown": "(0)", "/variable": "0"}[page]
    assert SITES["django"](away)(page).text == {"/shown": "()", "/variable": "None"}[page]


@pytest.mark.parametrize("site", [starlette_site, django_async_site])
def test_a_template_in_the_event_loop_is_refused_with_the_remedy(
    site: Callable[[Settings], Get], settings: Settings, commands: Commands
) -> None:
    get = site(settings)
    assert get("/in-loop/nothing").text == "nothing"
    texts: list[str] = []
    assert commands(lambda: texts.append(get("/in-loop/count").text)) == []
    assert "render it in a thread" in texts[0]
