"""Connections that stay open on real servers, and how they end."""

import json
import signal
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from presence_middleware import Presence, Settings
from tests.support.backends import wait_until
from tests.support.servers import ROOT, Command, WebServer, gunicorn, uvicorn

WINDOW = 3.0
SITE = {
    "PRESENCE_WINDOW": f"{WINDOW:.0f}s",
    "PRESENCE_FLUSH_INTERVAL": "0.2s",
    "PRESENCE_IDENTITY": "user=auth, user=header:x-user, guest=user-agent:raw",
}


UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec_WebSocket_Version": "13",
}


class Site:
    """A server with connections that stay open."""

    def __init__(self, server: WebServer, presence: Presence, clients: ExitStack) -> None:
        """`clients` closes, in the end, what is still open."""
        self.server, self.presence, self._clients = server, presence, clients

    def get(self, path: str, user: str) -> int:
        response = httpx.get(
            f"http://{self.server.address}{path}",
            headers={"X-User": user},
            trust_env=False,
            verify=False,
        )
        return int(json.loads(response.text))

    def stream(self, path: str, **headers: str) -> socket.socket:
        """A response that has begun."""
        lines = [f"GET {path} HTTP/1.1", "Host: site"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        connection = socket.create_connection(("127.0.0.1", self.server.port), 10)
        self._clients.enter_context(connection)
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

    def wait_for_a_turn(self, user: str) -> None:
        """Until one with an open connection is recorded again."""
        seen = {self.presence.last_seen(user)}
        wait_until(lambda: len(seen | {self.presence.last_seen(user)}) > 1)


def reset(connection: socket.socket) -> None:
    """Ends a TCP connection without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def say(connection: ClientConnection, text: str) -> None:
    connection.send(text)
    with suppress(ConnectionClosed):
        assert connection.recv(10) == "done"


@pytest.fixture
def site(
    request: pytest.FixtureRequest, variables: dict[str, str], tmp_path: Path
) -> Iterator[Site]:
    presence = Presence(Settings.from_env({**variables, **SITE}))
    with (
        WebServer(request.param, ROOT, tmp_path / "log", **variables, **SITE) as server,
        ExitStack() as clients,
    ):
        yield Site(server, presence, clients)


def gthread(app: str) -> Command:
    options = ["--worker-class=gthread", "--threads=9", "--graceful-timeout=1"]
    return lambda port: [*gunicorn(app)(port), *options]


@pytest.mark.parametrize("site", [uvicorn("tests.support.open_site:asgi_wrapped")], indirect=True)
@pytest.mark.slow
def test_websockets_and_streams_keep_users_online_on_uvicorn(site: Site) -> None:
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
    site.wait_for_a_turn("stays")
    site.server.process.send_signal(signal.SIGKILL)
    wait_until(lambda: site.presence.count() == 0)


@pytest.mark.matrix
@pytest.mark.parametrize("site", [gthread("tests.support.open_site:wsgi_wrapped")], indirect=True)
def test_streams_keep_users_online_on_gunicorn(site: Site) -> None:
    names = ["closes", "resets", "fail", "return", "leaves", "stays"]
    streams = {user: site.stream(f"/stream?name={user}", X_User=user) for user in names}
    streams["late"] = site.stream("/stream?name=late", User_Agent="guest")
    wait_until(lambda: site.presence.count("guest") == 1)
    site.get("/login?late=ann", "witness")
    everybody = [*(name for name in names if name != "leaves"), "ann"]
    site.presence.leave("leaves")
    wait_until(lambda: site.are_online(everybody), 2)
    site.wait_for_a_window("witness")
    assert site.are_online(everybody)
    assert not site.are_online(["leaves"])
    assert site.presence.count("guest") == 0, "a guest no more"

    streams["closes"].close()
    reset(streams["resets"])
    site.get("/login?fail=fail&return=return", "witness")
    wait_until(lambda: site.get("/open", "witness") == len(["leaves", "stays", "late", "/open"]))
    site.server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: site.presence.count() == 0)
