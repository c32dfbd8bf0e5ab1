"""Templates of each framework: what they show, and what they send to Redis."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from redis import Redis

from presence_middleware import Presence, Settings
from presence_middleware.embedded import find_server
from tests.support.backends import Server
from tests.support.template_sites import SITES, Get, django_async_site, starlette_site

Commands = Callable[[Callable[[], object]], list[str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Valkey server to which nothing else writes."""
    server = Server(str(find_server()), tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture
def settings(server: Server, prefix: str) -> Settings:
    """Settings with which no visit is recorded, so that only questions reach the server."""
    return Settings.from_env({}, redis_url=server.url, prefix=prefix, enabled=0)


@pytest.fixture
def commands(server: Server) -> Iterator[Commands]:
    """Returns the commands that the server receives during a call, as `MONITOR` shows them."""
    with Redis.from_url(server.url) as marking, Redis.from_url(server.url) as watching:
        marking.ping()

        def during(call: Callable[[], object]) -> list[str]:
            seen = []
            with watching.monitor() as monitor:
                call()
                marking.echo("end")
                while (command := monitor.next_command()["command"]) != "ECHO end":
                    seen.append(command)
            return seen

        yield during


def is_setup(command: str) -> bool:
    """Return whether a command belongs to a new connection."""
    return command.startswith(("HELLO", "CLIENT ", "SELECT "))


@pytest.mark.parametrize("name", SITES)
def test_a_page_that_shows_nothing_sends_not_one_command(
    name: str, settings: Settings, commands: Commands
) -> None:
    get = SITES[name](settings)
    assert commands(lambda: get("/nothing").raise_for_status()) == []
    assert commands(lambda: get("/count").raise_for_status())  # the monitor works


@pytest.mark.parametrize("name", SITES)
def test_templates_show_who_is_online(name: str, settings: Settings) -> None:
    get, presence = SITES[name](settings), Presence(settings)
    assert get("/count").text == "0"
    presence.touch("9")
    presence.touch("7")
    assert get("/count").text == "2"
    among = get("/among").text
    assert ["7" in among, "8" in among, "9" in among] == [True, False, True]


@pytest.mark.parametrize("name", SITES)
def test_a_list_of_users_is_a_single_read(
    name: str, settings: Settings, commands: Commands
) -> None:
    get, presence = SITES[name](settings), Presence(settings)
    presence.touch("7")
    get("/among")  # connects, and reads the clock and the number of shards
    sent = [command for command in commands(lambda: get("/among")) if not is_setup(command)]
    reads = [command for command in sent if settings.prefix in command]
    assert len(reads) == 1
    assert reads[0].split()[0] == "ZMSCORE"


def test_a_list_of_no_users_sends_not_one_command(settings: Settings, commands: Commands) -> None:
    get = SITES["django"](settings)
    texts: list[str] = []
    assert commands(lambda: texts.append(get("/nobody").text)) == []
    assert texts == ["[]"]


class Outage:
    """A port that accepts connections, closes them, and counts them."""

    def __init__(self) -> None:
        self.attempts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._refuse, daemon=True)
        self._thread.start()

    def _refuse(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.attempts += 1
                connection.close()

    def close(self) -> None:
        # A blocked accept does not notice that its socket is closed.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def outage() -> Iterator[Outage]:
    outage = Outage()
    yield outage
    outage.close()


@pytest.fixture
def in_outage(outage: Outage, prefix: str) -> Settings:
    return Settings.from_env({}, redis_url=outage.url, prefix=prefix, enabled=0)


def attempts(outage: Outage, get: Get, page: str) -> int:
    """Return how often a page connects to Redis."""
    before = outage.attempts
    assert get(page).status_code == 200
    return outage.attempts - before


@pytest.mark.parametrize("name", SITES)
def test_a_page_meets_an_outage_once_and_shows_no_number(
    name: str, in_outage: Settings, outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    get = SITES[name](in_outage)
    with caplog.at_level(logging.DEBUG, "presence_middleware"):
        once = attempts(outage, get, "/count")
        assert once > 0
        # redis-py 5 tries a connection a hundred times, give or take a few.
        assert attempts(outage, get, "/many") == pytest.approx(once, rel=0.1)
        assert get("/count").text == "None"
        assert get("/among").text == "None"
    assert [record for record in caplog.records if record.name == "presence_middleware"] == []


def test_the_next_request_asks_again(in_outage: Settings, outage: Outage) -> None:
    get = SITES["flask"](in_outage)
    assert attempts(outage, get, "/count") == attempts(outage, get, "/count") > 0


@pytest.mark.parametrize("page", ["/shown", "/variable"])
def test_django_shows_no_word_for_an_outage_in_its_tag(
    page: str, settings: Settings, in_outage: Settings
) -> None:
    assert SITES["django"](settings)(page).text == {"/shown": "(0)", "/variable": "0"}[page]
    assert SITES["django"](in_outage)(page).text == {"/shown": "()", "/variable": "None"}[page]


def test_django_renders_the_response_of_an_async_view_in_a_thread(settings: Settings) -> None:
    assert django_async_site(settings)("/later/count").text == "0"


@pytest.mark.parametrize("site", [starlette_site, django_async_site])
def test_a_template_in_the_event_loop_is_refused_with_the_remedy(
    site: Callable[[Settings], Get], settings: Settings, commands: Commands
) -> None:
    get = site(settings)
    assert get("/in-loop/nothing").text == "nothing"
    texts: list[str] = []
    assert commands(lambda: texts.append(get("/in-loop/count").text)) == []
    assert "render it in a thread" in texts[0]


def test_a_template_under_wsgi_may_run_in_an_event_loop(settings: Settings) -> None:
    assert SITES["django"](settings)("/in-loop/count").text == "0"
