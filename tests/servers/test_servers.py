"""Servers and scenarios: what holds on a site, whichever server serves it.

Each server of the table is started once for all scenarios but that of its end.
"""

import re
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from presence_middleware import Presence, Settings
from tests.support.backends import Server, wait_until
from tests.support.faults import hung
from tests.support.servers import (
    ASGI,
    BOARD,
    ENDED,
    NEVER,
    ROOT,
    TIMEOUT,
    TOKEN,
    WSGI,
    Command,
    WebServer,
    daphne,
    granian,
    gunicorn,
    hypercorn,
    uvicorn,
    uwsgi,
    waitress,
)
from tests.support.statuses import FIREFOX, basic
from tests.support.stopwatch import Stopwatch

SITE = "tests.support.site"
SETTINGS = {
    "PRESENCE_IDENTITY": "user=header:X-User, guest=visitor",
    "PRESENCE_FLUSH_INTERVAL": "0.05s",
    "PRESENCE_EXCLUDE": "/healthz, /shop/healthz, /static/*",
    **BOARD,
}
NOTICEABLE = 0.25  # seconds of a request; half a timeout
WITHOUT_THREADS = {"WITHOUT_THREADS": "1"}

# The rows of docs/servers.md.
ROW = re.compile(r"^\| (.+?) \| (stored|may be lost) \|$", re.MULTILINE)
DOCUMENTED = dict(ROW.findall((ROOT / "docs" / "servers.md").read_text()))
GUNICORN = "gunicorn: sync, gthread, gevent, asgi, uvicorn workers; with and without `--preload`"
UVICORN, NO_LIFESPAN = "uvicorn, asyncio and uvloop", "uvicorn without a lifespan"
HYPERCORN = "hypercorn with one worker: asyncio, uvloop, trio"
HYPERCORN_WORKERS = "hypercorn with several workers: the first to end has the others killed"
DAPHNE, GRANIAN = "daphne", "granian, `asgi`"
NO_EXIT = "waitress; granian, `asginl` and `wsgi`"
UWSGI, UWSGI_GEVENT = "uWSGI with `--master`, with and without threads", "uWSGI with gevent"
BELOW, OFF, PRELOAD = "--root-path=/shop", "--lifespan=off", "--preload"


class Row(NamedTuple):
    """A server, and what docs/servers.md says of the last sighting when it ends."""

    documented: str
    command: Command
    workers: int = 2
    variables: dict[str, str] = {}  # noqa: RUF012 - nobody writes to it


SERVERS = {
    "gunicorn": Row(GUNICORN, gunicorn(WSGI, 2)),
    "gunicorn preload": Row(GUNICORN, gunicorn(WSGI, 2, PRELOAD)),
    "gthread": Row(GUNICORN, gunicorn(WSGI, 2, "--threads=4")),
    "gthread preload": Row(GUNICORN, gunicorn(WSGI, 2, "--threads=4", PRELOAD)),
    "gevent": Row(GUNICORN, gunicorn(WSGI, 2, "-kgevent")),
    "gevent preload": Row(GUNICORN, gunicorn(WSGI, 2, "-kgevent", PRELOAD)),
    "gunicorn asgi": Row(GUNICORN, gunicorn(ASGI, 2, "-kasgi")),
    "gunicorn uvicorn asgi": Row(GUNICORN, gunicorn(ASGI, 2, "-kuvicorn.workers.UvicornWorker")),
    "waitress": Row(NO_EXIT, waitress(WSGI), 1),
    "uvicorn": Row(UVICORN, uvicorn(ASGI), 1),
    "uvicorn below /shop": Row(NO_LIFESPAN, uvicorn(ASGI, 1, BELOW, OFF), 1),
    "uvicorn asyncio": Row(UVICORN, uvicorn(ASGI, 2, "--loop=asyncio")),
    "uvicorn uvloop": Row(UVICORN, uvicorn(ASGI, 2, "--loop=uvloop")),
    "uvicorn without lifespan": Row(NO_LIFESPAN, uvicorn(ASGI, 2, OFF)),
    "hypercorn": Row(HYPERCORN, hypercorn(ASGI), 1),
    "hypercorn uvloop": Row(HYPERCORN, hypercorn(ASGI, 1, "-kuvloop"), 1),
    "hypercorn trio": Row(HYPERCORN, hypercorn(ASGI, 1, "-ktrio"), 1),
    "hypercorn workers": Row(HYPERCORN_WORKERS, hypercorn(ASGI, 2)),
    "hypercorn uvloop workers": Row(HYPERCORN_WORKERS, hypercorn(ASGI, 2, "-kuvloop")),
    "hypercorn trio workers": Row(HYPERCORN_WORKERS, hypercorn(ASGI, 2, "-ktrio")),
    "daphne asgi": Row(DAPHNE, daphne(ASGI), 1),
    "granian asgi": Row(GRANIAN, granian(ASGI, 2, "--interface=asgi")),
    "granian asginl": Row(NO_EXIT, granian(ASGI, 2, "--interface=asginl")),
    "granian wsgi": Row(NO_EXIT, granian(WSGI, 2, "--interface=wsgi")),
    "uwsgi": Row(UWSGI, uwsgi(WSGI, 2, "--enable-threads")),
    "uwsgi threads": Row(UWSGI, uwsgi(WSGI, 2, "--threads=2")),
    "uwsgi without threads": Row(UWSGI, uwsgi(WSGI, 2), 2, WITHOUT_THREADS),
    "uwsgi gevent": Row(UWSGI_GEVENT, uwsgi(WSGI, 2, "--gevent=9", "--gevent-monkey-patch")),
}
SERVING = ["gthread", "waitress", "uvicorn below /shop", "hypercorn", "granian asgi", "uwsgi"]
ENDING = ["gunicorn", "uvicorn", "hypercorn trio", "granian asgi", "waitress"]


class Served(NamedTuple):
    """A site on a server, and a reader elsewhere."""

    name: str
    server: WebServer
    presence: Presence


def protocol(name: str) -> str:
    return "asgi" if "asgi" in name or name.startswith(("uvicorn", "hypercorn")) else "wsgi"


@pytest.fixture(scope="module", params=SERVING)
def served(
    request: pytest.FixtureRequest, valkey: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder, name = tmp_path_factory.mktemp("served"), request.param
    variables = {**SETTINGS, "PRESENCE_REDIS_URL": valkey.url, "PRESENCE_PREFIX": folder.name}
    app = f"{SITE}:{protocol(name)}_app"
    command = SERVERS[name].command
    with WebServer(command, ROOT, folder / "log", **variables, PRESENCE_APP=app) as server:
        yield Served(name, server, Presence(Settings.from_env(variables)))
        assert "Traceback" not in server.output
        assert TOKEN not in server.output


def test_the_named_app_is_served_and_its_visitors_are_counted(served: Served) -> None:
    before = served.presence.count("guest")
    for agent in ("Lynx/2", "Netscape", "Lynx/2"):
        with served.server.client(agent) as client:
            found = client.get("/parts")
            assert (found.text, found.headers["X-Site"]) == ("hello /parts", "plain")
    wait_until(lambda: served.presence.count("guest") == before + 2)


def test_request_targets_are_normalized_before_they_are_matched(served: Served) -> None:
    """Escapes are resolved and the query is no part of a path; a slash more is another path."""
    is_below = "below" in served.name
    seen = {
        **{"/healthz": False, "/%68ealthz": False, "/healthz?a=/b": False, "/healthz?": False},
        **{"/healthz/": False, "/healthz%2F": False, "/HEALTHZ": True},
        "/a/../healthz": "uwsgi" not in served.name,  # uWSGI resolves it
        **dict.fromkeys(["/static/a", "/static/a%2Fb", "/static%2Fa"], is_below),
        "/static": True,
    }
    for target in seen:
        request = f"GET {target} HTTP/1.1\r\nHost: a\r\nX-User: {target}\r\n"
        with socket.create_connection(("127.0.0.1", served.server.port), 15) as connection:
            connection.sendall(f"{request}Connection: close\r\n\r\n".encode())
            assert b" 200 " in connection.recv(1000)[:20]
    ask(served.server, "the last", "/")
    wait_until(lambda: served.presence.is_online("the last"))
    visits = {target for target, is_visit in seen.items() if is_visit}
    wait_until(lambda: visits <= set(served.presence.online_among(seen)))  # of other workers
    assert set(served.presence.online_among(seen)) == visits


def test_a_name_with_underscores_is_another_header_but_under_uwsgi(served: Served) -> None:
    with served.server.client(FIREFOX) as client:
        client.get("/", headers={"X_User": "forged"})
    ask(served.server, "true", "/")
    online = ["forged", "true"] if served.name == "uwsgi" else ["true"]
    wait_until(lambda: served.presence.online_among(["forged", "true"]) == online)


def test_the_board_is_served(served: Served) -> None:
    served.presence.touch("bob")
    # uWSGI closes each connection without a word, and resets one with a body that nobody has read.
    is_closing = "uwsgi" in served.name
    with served.server.client(FIREFOX) as client:
        client.headers.update({"Connection": "close"} if is_closing else {})
        assert "Who is online" in client.get("/presence").text
        assert client.get("/presence/counts").json()["counts"]["user"] >= 1
        script = client.get("/presence/board.js")
        etag = {"If-None-Match": script.headers["ETag"]}
        assert client.get("/presence/board.js", headers=etag).status_code == 304
        head = client.head("/presence/board.js")
        assert head.headers["Content-Length"] == f"{len(script.content)}"
        assert client.get("/presence/online").status_code == 401
        named = client.get("/presence/online", headers={"Authorization": basic(f"me:{TOKEN}")})
        assert "bob" in [who["id"] for who in named.json()["online"]]
        assert client.post("/presence", content=b"x" * 9999 * (not is_closing)).status_code == 405
        assert client.get("/elsewhere", headers={"X-User": "bob"}).text.startswith("hello ")


# How servers end, and replace their workers


WSGI_SITE, ASGI_SITE = f"{SITE}:wsgi_site", f"{SITE}:asgi_site"


@pytest.fixture
def of_users(variables: dict[str, str]) -> dict[str, str]:
    never = {"PRESENCE_FLUSH_INTERVAL": NEVER, "PRESENCE_IDENTITY": "user=header:X-User"}
    return variables | never


def ask(server: WebServer, user: str, path: str = "/pid") -> str:
    url, headers = f"http://{server.address}{path}", {"X-User": user}
    response = httpx.get(url, headers=headers, timeout=TIMEOUT, trust_env=False, verify=False)
    assert response.status_code == 200, server.output
    return response.text


def crowd(server: WebServer, workers: int) -> set[str]:
    """People who ask until so many processes have answered."""
    asked: set[str] = set()
    seen: set[str] = set()

    def everybody_answered() -> bool:
        names = [f"u{n}" for n in range(len(asked), len(asked) + 8)]
        asked.update(names)
        with ThreadPoolExecutor(8) as pool:
            seen.update(pool.map(lambda name: ask(server, name), names))
        return len(seen) >= workers

    wait_until(everybody_answered)
    return asked


def online(presence: Presence) -> set[str]:
    return {seen.id for seen in presence.online(limit=None)}


def ask_last(server: WebServer, presence: Presence, asked: set[str]) -> str:
    """Ask in the name of a user whose sighting waits for the next flush; return the name.

    A worker may still be about to write its first sightings, and takes another with them.
    """
    for number in range(20):
        name = f"last{number}"
        ask(server, name, f"/pid?{name}")
        asked.add(name)
        if not presence.is_online(name):
            return name
    raise AssertionError("every sighting was written at once")


@pytest.mark.parametrize(
    "name",
    [
        *ENDING,
        *(pytest.param(name, marks=pytest.mark.slow) for name in SERVERS if name not in ENDING),
    ],
)
def test_all_workers_count_and_the_last_sighting_is_stored_as_documented(
    name: str, of_users: dict[str, str], presence: Presence, tmp_path: Path
) -> None:
    row = SERVERS[name]
    given = {**of_users, **row.variables, "PRESENCE_APP": f"{SITE}:{protocol(name)}_app"}
    with WebServer(row.command, ROOT, tmp_path / "log", **given) as server:
        asked = crowd(server, row.workers)
        if "trio" not in name:  # where asynchronous readers refuse
            asked.add("reader")
            assert '"user"' in ask(server, "reader", "/count")
        wait_until(lambda: presence.count() >= row.workers)  # each one's first, at once
        last = ask_last(server, presence, asked)
        if "uwsgi" in name:  # it runs no exit handlers before the end of a request, in its log
            wait_until(lambda: last in server.output)
        assert server.stop() in ENDED
        said = "background threads are disabled" in server.output
    assert said == (row.variables == WITHOUT_THREADS)
    if DOCUMENTED[row.documented] == "stored":
        assert presence.is_online(last)
        assert online(presence) == asked


def test_the_documentation_lists_the_tested_servers() -> None:
    assert set(DOCUMENTED) == {row.documented for row in SERVERS.values()}


@pytest.mark.parametrize(
    "command", [gunicorn(WSGI_SITE), uvicorn(ASGI_SITE)], ids=["gunicorn", "uvicorn"]
)
def test_a_hung_redis_delays_no_request_and_the_end_of_a_server_for_two_seconds_at_most(
    of_users: dict[str, str], own: Server, tmp_path: Path, command: Command
) -> None:
    """What a site does in every outage, test_outages.py shows."""
    of_users |= {"PRESENCE_REDIS_URL": own.url}
    with WebServer(command, ROOT, tmp_path / "log", **of_users) as server:
        ask(server, "first", "/count")  # which is written when the answer comes
        own.process.send_signal(signal.SIGSTOP)
        with Stopwatch() as watch:
            for number in range(20):
                ask(server, f"u{number}")
        assert watch.seconds < 20 * NOTICEABLE
        with Stopwatch() as watch:
            assert server.stop() in ENDED
        assert watch.seconds < 3.0  # gunicorn itself takes up to one
        assert server.output.count("shutting down with 20 sightings unwritten") == 1


def test_no_user_is_lost_when_workers_are_replaced_under_load(
    of_users: dict[str, str], presence: Presence, tmp_path: Path
) -> None:
    command = gunicorn(WSGI_SITE, 2, "--max-requests=5")
    with WebServer(command, ROOT, tmp_path / "log", **of_users) as server:
        names: set[str] = set()

        def are_all_replaced() -> bool:
            """Whether who was to end has a successor, which obeys signals."""
            return server.output.count("ready") == 2 + server.output.count("Autorestarting")

        while server.output.count("ready") < 5:
            names.add(f"u{len(names)}")
            ask(server, f"u{len(names) - 1}")
        # Without requests, for each of them may be the last of a worker. Gunicorn forgets to stop
        # one that is just booting.
        wait_until(are_all_replaced)
        assert server.stop() in ENDED
    assert online(presence) == names


def test_readers_do_not_block_each_other_when_gevent_patches_late(
    of_users: dict[str, str], own: Server, tmp_path: Path
) -> None:
    """With `--preload`, gunicorn patches the locks of threads after the app was made."""
    url = f"{own.url}?socket_timeout=9"
    of_users |= {"PRESENCE_REDIS_URL": url, "PRESENCE_FLUSH_INTERVAL": "0.05s"}
    presence = Presence(Settings.from_env(of_users))
    command = gunicorn(WSGI_SITE, 1, "-kgevent", PRELOAD)
    with WebServer(command, ROOT, tmp_path / "log", **of_users) as server:
        ask(server, "first")
        wait_until(presence.count)
        with ThreadPoolExecutor(2) as pool, hung(own):
            readers = [pool.submit(ask, server, f"r{n}", "/count") for n in range(2)]
            for number in range(10):
                ask(server, f"u{number}")
            assert not any(reader.done() for reader in readers)
        assert all(reader.result() for reader in readers)
