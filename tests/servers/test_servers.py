"""Servers and scenarios: what holds on a site, whichever server serves it.

Each server of the table is started once for all scenarios but that of its end.
"""

import base64
import json
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from presence_middleware import Presence, Settings
from presence_middleware.embedded import supervisor
from tests.support.backends import Server, wait_until
from tests.support.servers import (
    ENDED,
    ROOT,
    TIMEOUT,
    Command,
    WebServer,
    environment,
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
TOKEN = "the-token-of-the-board"
NEVER = "100s"  # until the next regular write: longer than any of these tests
WSGI, ASGI = "presence_middleware.wsgi_app:application", "presence_middleware.asgi_app:application"
RIGHT, WRONG = basic("ann:opensesame"), basic("ann:guessed")
WRONG_OF_BOB = {"Authorization": basic("bob:guessed")}
SETTINGS = {
    "PRESENCE_IDENTITY": "user=header:X-User, guest=visitor",
    "PRESENCE_FLUSH_INTERVAL": "0.05s",
    "PRESENCE_EXCLUDE": "/healthz, /shop/healthz, /static/*, /metrics*, /shop/metrics*",
    "PRESENCE_BOARD_PATH": "/presence",
    "PRESENCE_BOARD_TOKEN": TOKEN,
}
WITHOUT_THREADS = {"WITHOUT_THREADS": "1"}

# The rows of docs/servers.md.
ROW = re.compile(r"^\| (.+?) \| (stored|may be lost) \|$", re.MULTILINE)
DOCUMENTED = dict(ROW.findall((ROOT / "docs" / "servers.md").read_text()))
GUNICORN = "gunicorn: sync, gthread, gevent, asgi, uvicorn workers; with and without `--preload`"
UVICORN, NO_LIFESPAN = "uvicorn, asyncio and uvloop", "uvicorn without a lifespan"
HYPERCORN = "hypercorn with one worker: asyncio, uvloop, trio"
HYPERCORN_WORKERS = "hypercorn with several workers: the first to end has the others killed"
GRANIAN_ASGI, GRANIAN_WSGI, WAITRESS = "granian, ASGI", "granian, WSGI", "waitress"
UWSGI, UWSGI_GEVENT = "uWSGI with `--master`, with and without threads", "uWSGI with gevent"
BELOW, OFF, PRELOAD = "--root-path=/shop", "--lifespan=off", "--preload"
THREADS = "--enable-threads"


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
    "waitress": Row(WAITRESS, waitress(WSGI), 1),
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
    "granian asgi": Row(GRANIAN_ASGI, granian(ASGI, 2, "--interface=asgi")),
    "granian wsgi": Row(GRANIAN_WSGI, granian(WSGI, 2, "--interface=wsgi")),
    "uwsgi": Row(UWSGI, uwsgi(WSGI, 2, THREADS)),
    "uwsgi threads": Row(UWSGI, uwsgi(WSGI, 2, "--threads=2")),
    "uwsgi without threads": Row(UWSGI, uwsgi(WSGI, 2), 2, WITHOUT_THREADS),
    "uwsgi gevent": Row(UWSGI_GEVENT, uwsgi(WSGI, 2, "--gevent=9", "--gevent-monkey-patch")),
}
SERVING = [
    *("gthread", "waitress", "uvicorn", "uvicorn below /shop", "hypercorn"),
    *("granian asgi", "granian wsgi", "uwsgi"),
]
ENDING = ["gunicorn", "uvicorn", "hypercorn trio", "granian asgi", "waitress"]


def each_server(names: list[str], *more: str) -> list[Any]:
    """Return these servers, and `more`, whose tests are slow."""
    return [*names, *(pytest.param(name, marks=pytest.mark.slow) for name in more)]


class Served(NamedTuple):
    """A site on a server, and a reader elsewhere."""

    name: str
    server: WebServer
    presence: Presence

    def ask(self, path: str, **headers: str) -> httpx.Response:
        """Send a request over a connection of its own."""
        with self.server.client(FIREFOX) as client:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            return client.get(path, headers=given)


def protocol(name: str) -> str:
    return "asgi" if "asgi" in name or name.startswith(("uvicorn", "hypercorn")) else "wsgi"


@pytest.fixture(
    scope="module",
    params=each_server(SERVING, "gunicorn", "gevent preload", "hypercorn workers"),
)
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
        assert b" 200 " in raw(served.server, request + "Connection: close\r\n\r\n")[:20]
    served.ask("/", X_User="the last")
    wait_until(lambda: served.presence.is_online("the last"))
    visits = {target for target, is_visit in seen.items() if is_visit}
    wait_until(lambda: visits <= set(served.presence.online_among(seen)))  # of other workers
    assert set(served.presence.online_among(seen)) == visits


def raw(server: WebServer, request: str) -> bytes:
    """What a server answers to a request that no client has put in order."""
    with socket.create_connection(("127.0.0.1", server.port), 15) as connection:
        connection.sendall(request.encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_the_board_is_served(served: Served) -> None:
    served.presence.touch("bob")
    password = base64.b64encode(f"me:{TOKEN}".encode()).decode()
    # uWSGI closes each connection without a word, and resets one with a body that nobody has read.
    is_closing = "uwsgi" in served.name
    body = b"" if is_closing else b"x" * 10000
    with served.server.client(FIREFOX) as client:
        client.headers.update({"Connection": "close"} if is_closing else {})
        assert "Who is online" in client.get("/presence").text
        counts = client.get("/presence/counts")
        assert counts.json()["counts"]["user"] >= 1

        def is_kept(path: str) -> bool:
            etag = {"If-None-Match": client.get(path).headers["ETag"]}
            return client.get(path, headers=etag).status_code == 304

        wait_until(lambda: is_kept("/presence/counts"))
        assert is_kept("/presence/board.js")
        page = client.get("/presence/board.js")
        assert client.head("/presence/board.js").headers["Content-Length"] == f"{len(page.content)}"
        assert client.get("/presence/online").status_code == 401
        named = client.get("/presence/online", headers={"Authorization": f"Basic {password}"})
        assert "bob" in [who["id"] for who in named.json()["online"]]
        assert client.post("/presence", content=body).status_code == 405
        assert client.get("/elsewhere").text.startswith("hello ")


def test_a_scrape_has_the_metrics_and_is_no_visit(served: Served) -> None:
    served.ask("/", X_User="measured")
    wait_until(lambda: served.presence.is_online("measured"))
    before = served.presence.counts()

    def scraped() -> str:
        with served.server.client("Prometheus/3") as scraper:
            return scraper.get("/metrics").text

    wait_until(lambda: f'presence_online{{kind="user"}} {before["user"]:.1f}' in scraped())
    assert served.presence.counts() == before


@pytest.mark.parametrize("name", ["waitress", "uvicorn"])
def test_a_wrong_password_is_a_guest_and_the_right_password_is_the_user(
    name: str, variables: dict[str, str], presence: Presence, tmp_path: Path
) -> None:
    """The site checks HTTP Basic itself."""

    def ask(authorization: str, path: str = "/") -> tuple[int, str]:
        response = client.get(path, headers={"Authorization": authorization})
        return response.status_code, response.text

    variables |= {**SETTINGS, "PRESENCE_APP": f"{SITE}:{protocol(name)}_app"}
    variables |= {"PRESENCE_IDENTITY": "user=basic, guest=visitor", "PRESENCE_LOGOUT": "/logout"}
    with WebServer(SERVERS[name].command, ROOT, tmp_path / "log", **variables) as server:
        with server.client(FIREFOX) as client:  # which keeps its connection
            for path in ("/", "/parts", "/logout"):
                assert ask(WRONG, path) == (401, "no")
            wait_until(lambda: presence.count("guest") == 1)
            assert presence.count("user") == 0
            if protocol(name) == "asgi":
                open_socket = partial(connect, f"ws://{server.address}/", user_agent_header=FIREFOX)
                with pytest.raises(InvalidStatus, match="403"):
                    open_socket(additional_headers=WRONG_OF_BOB)
                with open_socket(additional_headers={"Authorization": RIGHT}):
                    wait_until(lambda: presence.is_online("ann"))
            assert ask(RIGHT, "/parts") == (200, "hello /parts")
            wait_until(lambda: presence.is_online("ann"))
            assert ask(WRONG, "/logout")[0] == 401
            assert ask(RIGHT)[0] == 200
            assert presence.is_online("ann"), "nobody logs out with a guessed password"
            assert ask(RIGHT, "/logout")[0] == 200
            wait_until(lambda: not presence.is_online("ann"))
            assert presence.counts() == {"user": 0, "guest": 1, "bot": 0}
            assert presence.last_seen("bob") is None
            # Who comes back counts again after some milliseconds.
            wait_until(lambda: ask(RIGHT)[0] == 200 and presence.is_online("ann"))
        assert "Traceback" not in server.output


# Several servers and workers


OTHER_PROGRAM = """
import json
from presence_middleware import Presence
presence = Presence.from_env()
print(json.dumps([presence.counts(), sorted(seen.id for seen in presence.online())]))
"""


def other_program(url: str) -> Any:
    """What a program says that has no more than one variable in common with the sites."""
    command = [sys.executable, "-c", OTHER_PROGRAM]
    env = environment(PRESENCE_REDIS_URL=url)
    return json.loads(subprocess.run(command, env=env, check=True, stdout=-1, timeout=30).stdout)


@pytest.mark.slow
def test_two_servers_and_another_program_report_the_same_count(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    url = f"embedded://{directory}"
    given = {"PRESENCE_REDIS_URL": url, "PRESENCE_IDENTITY": SETTINGS["PRESENCE_IDENTITY"]}

    def is_alive(lock: str) -> bool:
        """Whether the supervisor of an embedded server, or the server, holds its lock."""
        with (directory / lock).open("a") as descriptor:
            return not supervisor.try_lock(descriptor.fileno())

    with (
        WebServer(gunicorn(f"{SITE}:wsgi_site", 4), ROOT, tmp_path / "wsgi", **given) as first,
        WebServer(uvicorn(f"{SITE}:asgi_site", 2), ROOT, tmp_path / "asgi", **given) as second,
    ):
        for name, server, number in (("W", first, 4), ("A", second, 2)):
            for user in ("ann", *(f"{name}{n}" for n in range(number))):
                ask(server, user)
            # Guests go by their browsers; two of them come to both sites.
            for agent in (f"{who}/{n}" for who in ("Both", name) for n in range(number)):
                with server.client(agent) as client:
                    client.get("/")
        truth = [{"user": 7, "guest": 10, "bot": 0}, ["A0", "A1", "W0", "W1", "W2", "W3", "ann"]]
        wait_until(lambda: other_program(url) == truth, 30)
        for server, workers in ((first, 4), (second, 2)):
            answers: dict[int, Any] = {}
            while len(answers) < workers:
                pid, *answer = json.loads(ask(server, "ann", "/who"))
                answers[pid] = answer
            assert list(answers.values()) == [truth] * workers

        locks = (supervisor.SUPERVISOR_LOCK, supervisor.SERVER_LOCK)
        assert first.stop() == 0
        assert all(is_alive(lock) for lock in locks)
        assert second.stop() in ENDED
        wait_until(lambda: not any(is_alive(lock) for lock in locks))


# Connections that stay open, and how they end


OPEN = {
    "PRESENCE_WINDOW": "3s",
    "PRESENCE_FLUSH_INTERVAL": "0.2s",
    "PRESENCE_IDENTITY": "user=auth, user=header:x-user, guest=user-agent:raw",
}
UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec_WebSocket_Version": "13",
}


class OpenSite:
    """A server with connections that stay open."""

    def __init__(self, server: WebServer, presence: Presence, clients: ExitStack) -> None:
        """`clients` closes, in the end, what is still open."""
        self.server, self.presence, self._clients = server, presence, clients

    def get(self, path: str, user: str) -> int:
        url, headers = f"http://{self.server.address}{path}", {"X-User": user}
        return int(httpx.get(url, headers=headers, trust_env=False, timeout=TIMEOUT).text)

    def stream(self, path: str, **headers: str) -> socket.socket:
        """A response that has begun."""
        lines = [f"GET {path} HTTP/1.1", "Host: site"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        connection = socket.create_connection(("127.0.0.1", self.server.port), 10)
        self._clients.enter_context(closing(connection))
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        assert connection.recv(1000).startswith((b"HTTP/1.1 200", b"HTTP/1.1 101"))
        return connection

    def websocket(self, **headers: str) -> ClientConnection:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"ws://{self.server.address}/"
        client = connect(url, additional_headers=named, user_agent_header=None, proxy=None)
        return self._clients.enter_context(client)

    def are_online(self, users: Sequence[str]) -> bool:
        return self.presence.online_among(users) == list(users)

    def wait_for_a_window(self, witness: str) -> None:
        """Until one who has made a request when this is called is no longer online."""
        self.get("/open", witness)
        wait_until(lambda: self.are_online([witness]))
        wait_until(lambda: not self.are_online([witness]))


def reset(connection: socket.socket) -> None:
    """Ends a TCP connection without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def say(connection: ClientConnection, text: str) -> None:
    connection.send(text)
    with suppress(ConnectionClosed):
        assert connection.recv(10) == "done"


@pytest.fixture
def open_site(
    request: pytest.FixtureRequest, variables: dict[str, str], tmp_path: Path
) -> Iterator[OpenSite]:
    presence = Presence(Settings.from_env({**variables, **OPEN}))
    with (
        WebServer(request.param, ROOT, tmp_path / "log", **variables, **OPEN) as server,
        ExitStack() as clients,
    ):
        yield OpenSite(server, presence, clients)


@pytest.mark.parametrize("open_site", [uvicorn(f"{SITE}:asgi_site")], indirect=True)
@pytest.mark.slow
def test_websockets_and_streams_keep_users_online_on_uvicorn(open_site: OpenSite) -> None:
    site = open_site
    streams = {user: site.stream("/stream", X_User=user) for user in ("closes", "resets")}
    streams["breaks"] = site.stream("/", X_User="breaks", **UPGRADE)
    names = ["shuts", "fail", "cancel", "return", "leaves", "stays"]
    sockets = {user: site.websocket(X_User=user) for user in names}
    logins = {late: site.websocket(User_Agent=f"guest {late}") for late in ("identify", "session")}
    wait_until(lambda: site.presence.count("guest") == 2)
    for late, connection in logins.items():
        say(connection, f"{late} by-{late}")
    say(sockets["leaves"], "leave leaves")
    everybody = [*streams, *names[:4], "stays", "by-identify", "by-session"]
    wait_until(lambda: site.are_online(everybody), 2)
    site.wait_for_a_window("witness")
    assert site.are_online(everybody)
    assert not site.are_online(["leaves"])
    assert site.presence.count("guest") == 0, "guests no more"
    say(sockets["leaves"], "identify leaves")
    wait_until(lambda: site.are_online(["leaves"]))

    streams["closes"].close()
    reset(streams["resets"])
    reset(streams["breaks"])
    sockets["shuts"].close()
    for told in ("fail", "cancel", "return"):
        say(sockets[told], told)
    wait_until(lambda: site.get("/open", "witness") == len(["leaves", *logins, "stays", "/open"]))
    seen = {site.presence.last_seen("stays")}  # recorded again, as its connection is open
    wait_until(lambda: len(seen | {site.presence.last_seen("stays")}) > 1)
    site.server.process.send_signal(signal.SIGSTOP)  # the machine sleeps
    wait_until(lambda: not site.are_online(["stays"]))
    site.server.process.send_signal(signal.SIGCONT)
    wait_until(lambda: site.are_online(["stays"]), 10)
    site.server.process.send_signal(signal.SIGKILL)
    wait_until(lambda: site.presence.count() == 0)


# How servers end, and replace their workers


WSGI_SITE, ASGI_SITE = f"{SITE}:wsgi_site", f"{SITE}:asgi_site"


@pytest.fixture
def of_users(variables: dict[str, str]) -> dict[str, str]:
    """The variables of a site that writes only when it must."""
    never = {"PRESENCE_FLUSH_INTERVAL": NEVER, "PRESENCE_IDENTITY": "user=header:X-User"}
    return variables | never


def ask(server: WebServer, user: str, path: str = "/pid") -> str:
    """By which process one was answered, over a connection of his own."""
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
        ask(server, name)
        asked.add(name)
        if not presence.is_online(name):
            return name
    raise AssertionError("every sighting was written at once")


@pytest.mark.parametrize(
    "name", each_server(ENDING, *(name for name in SERVERS if name not in ENDING))
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
def test_a_hung_redis_holds_up_the_end_of_a_server_for_two_seconds_at_most(
    of_users: dict[str, str], own: Server, tmp_path: Path, command: Command
) -> None:
    of_users |= {"PRESENCE_REDIS_URL": own.url}
    with WebServer(command, ROOT, tmp_path / "log", **of_users) as server:
        ask(server, "first", "/count")  # which is written when the answer comes
        own.process.send_signal(signal.SIGSTOP)
        ask(server, "last")
        with Stopwatch() as watch:
            assert server.stop() in ENDED
        assert watch.seconds < 3.0  # gunicorn itself takes up to one
        assert "shutting down with 1 sightings unwritten" in server.output


@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(("-kgevent",), marks=pytest.mark.slow),
    ],
    ids=["sync", "gevent"],
)
def test_no_user_is_lost_when_workers_are_replaced_under_load(
    of_users: dict[str, str], presence: Presence, tmp_path: Path, options: tuple[str, ...]
) -> None:
    command = gunicorn(WSGI_SITE, 2, "--max-requests=5", *options)
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
        own.process.send_signal(signal.SIGSTOP)
        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(ask, server, f"r{n}", "/count") for n in range(2)]
            for number in range(10):
                ask(server, f"u{number}")
            assert not any(reader.done() for reader in readers)
            own.process.send_signal(signal.SIGCONT)
        assert all(reader.result() for reader in readers)
