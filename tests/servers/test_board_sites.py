"""The board on a site: the same under WSGI and ASGI, and on real servers."""

import asyncio
import base64
import importlib.util
import json
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from presence_middleware import Presence, Settings, SettingsError, asgi, wsgi
from presence_middleware.connections.clients import close_async_clients
from presence_middleware.recorder import recorder_for
from tests.support.backends import Server
from tests.support.servers import ROOT, Command, WebServer, gunicorn, uvicorn

TOKEN = "the-token-of-the-board"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
PATHS = [
    "",
    "/",
    "/board.css",
    "/board.js",
    "/widget.js",
    "/counts",
    "/history",
    "/peak",
    "/chart.svg",
]
PATHS += ["/online", "/last-seen?id=bob", "/last-seen?id=%3Cb%3E%e6%97%a5%ff", "/nothing", "/%ff"]

Send = Callable[..., httpx.Response]


def over_wsgi(settings: Settings, path: str, method: str = "GET", **more: Any) -> httpx.Response:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"the app's own"]

    mounted: Any = wsgi.PresenceMiddleware(app, settings=settings)
    mounted = DispatcherMiddleware(
        mounted, {"/shop": wsgi.PresenceMiddleware(app, settings=settings)}
    )
    with httpx.Client(transport=httpx.WSGITransport(mounted), base_url="http://site") as client:
        return client.request(method, path, **more)


def over_asgi(settings: Settings, path: str, method: str = "GET", **more: Any) -> httpx.Response:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("the app's own")(scope, receive, send)

    async def ask() -> httpx.Response:
        wrapped = asgi.PresenceMiddleware(app, settings=settings)
        mounted = Starlette(routes=[Mount("/shop", wrapped), Mount("/", wrapped)])
        transport = httpx.ASGITransport(mounted)
        async with httpx.AsyncClient(transport=transport, base_url="http://site") as client:
            answer = await client.request(method, path, **more)
        await close_async_clients()
        return answer

    return asyncio.run(ask())


BOTH = pytest.mark.parametrize("send", [over_wsgi, over_asgi])


@pytest.fixture
def site(valkey: Server, prefix: str) -> Iterator[Settings]:
    settings = Settings.from_env(
        {},
        redis_url=valkey.url,
        prefix=prefix,
        board_path="/presence",
        board_token=TOKEN,
        flush_interval="3m",
    )
    yield settings
    recorder_for(settings).close()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("headers", [{}, BEARER, {"If-None-Match": "*", **BEARER}])
def test_wsgi_and_asgi_answer_with_the_same_bytes(
    site: Settings, path: str, method: str, headers: dict[str, str]
) -> None:
    one, other = (
        send(site, f"/presence{path}", method, headers=headers) for send in (over_wsgi, over_asgi)
    )
    assert one.status_code == other.status_code
    assert one.headers.multi_items() == other.headers.multi_items()
    assert _without_time(one) == _without_time(other)


def _without_time(answer: httpx.Response) -> Any:
    if answer.headers.get("content-type") != "application/json" or not answer.content:
        return answer.content
    return _but_time(answer.json())


@BOTH
def test_the_board_shows_the_online_users(site: Settings, send: Send) -> None:
    presence = Presence(site)
    for id in ("<b>eve</b>", "bob"):
        presence.touch(id)
    counts = send(site, "/presence/counts").json()
    assert counts == {"counts": {"user": 2, "guest": 0, "bot": 0}}
    online = send(site, "/presence/online", headers=BEARER).json()["online"]
    assert [one["id"] for one in online] == ["bob", "<b>eve</b>"]
    found = send(site, "/presence/last-seen?id=%3Cb%3Eeve%3C/b%3E", headers=BEARER).json()
    assert found["id"] == "<b>eve</b>"
    assert found["online"]
    assert found["last_seen"] == online[1]["last_seen"]
    both = send(site, "/presence/last-seen?id=zoe&id=bob", headers=BEARER).json()["last_seen"]
    assert both == {"zoe": None, "bob": online[0]["last_seen"]}
    unknown = send(site, "/presence/last-seen?id=zoe", headers=BEARER).json()
    assert (unknown["online"], unknown["last_seen"]) == (False, None)


@BOTH
def test_a_list_has_a_hundred_at_most(site: Settings, send: Send) -> None:
    presence = Presence(site)
    for id in range(101):
        presence.touch(id)
    assert len(send(site, "/presence/online", headers=BEARER).json()["online"]) == 100
    assert send(site, "/presence/counts").json()["counts"]["user"] == 101


@BOTH
def test_the_board_is_found_below_a_mount_point(site: Settings, send: Send) -> None:
    page = send(site, "/shop/presence")
    assert 'src="presence/board.js"' in page.text
    assert send(site, "/shop/presence/board.js").text == send(site, "/presence/board.js").text
    assert send(site, "/shop/presence-not").text == "the app's own"


@BOTH
def test_looking_at_the_board_is_not_recorded_as_a_visit(site: Settings, send: Send) -> None:
    for path in PATHS:
        send(site, f"/presence{path}", headers=BEARER)
    assert recorder_for(site).stats().recorded == 0
    assert recorder_for(site).open_visits == {}
    send(site, "/elsewhere")
    assert recorder_for(site).stats().recorded == 1


@BOTH
@pytest.mark.parametrize("host", ["[", "[::1", "a b", "", "http://x/", "x:port", "\x7f"])
def test_any_host_header_is_answered(site: Settings, send: Send, host: str) -> None:
    counts = send(site, "/presence/counts?kind=user", headers={"Host": host})
    assert counts.json() == {"counts": {"user": 0, "guest": 0, "bot": 0}}
    assert send(site, "/presence", headers={"Host": host}).status_code == 200


def test_a_query_that_is_not_percent_encoded_is_read_as_utf8(site: Settings) -> None:
    for raw in ("日".encode(), b"\xff", b"%ff", b"a#b"):
        query = b"kind=guest&id=" + raw
        answers = [raw_wsgi(site, query), raw_asgi(site, query)]
        assert answers[0] == answers[1]
        assert answers[0]["kind"] == "guest"
    assert raw_wsgi(site, "id=日".encode())["id"] == "日"
    assert raw_wsgi(site, b"id=a#b")["id"] == "a#b"


def test_no_url_is_built_from_a_request(site: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some versions of Starlette raise for a Host header that is no host."""

    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("Invalid IPv6 URL")

    monkeypatch.setattr("starlette.datastructures.URL.__init__", refuse)
    assert raw_asgi(site, b"id=bob")["id"] == "bob"


def raw_wsgi(settings: Settings, query: bytes) -> Any:
    """Return what /last-seen answers to a query of any bytes (PEP 3333: in Latin-1)."""
    wrapped = wsgi.PresenceMiddleware(lambda *_: [], settings=settings)
    environ = {
        **{"REQUEST_METHOD": "GET", "PATH_INFO": "/presence/last-seen", "HTTP_HOST": "["},
        **{"QUERY_STRING": query.decode("latin-1"), "wsgi.url_scheme": "http"},
        "HTTP_AUTHORIZATION": BEARER["Authorization"],
    }
    body = b"".join(wrapped(environ, lambda *_: lambda _: None))
    return _but_time(json.loads(body))


def raw_asgi(settings: Settings, query: bytes) -> Any:
    """Return what /last-seen answers to a query of any bytes."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def ask() -> None:
        wrapped = asgi.PresenceMiddleware(lambda *_: None, settings=settings)  # type: ignore[arg-type]
        headers = [(b"host", b"["), (b"authorization", BEARER["Authorization"].encode())]
        scope = {"type": "http", "method": "GET", "path": "/presence/last-seen"}
        await wrapped({**scope, "query_string": query, "headers": headers}, receive, send)
        await close_async_clients()

    asyncio.run(ask())
    return _but_time(json.loads(sent[-1]["body"]))


def _but_time(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "now"}


@BOTH
def test_without_a_configured_path_there_is_no_board(
    valkey: Server, prefix: str, send: Send
) -> None:
    settings = Settings.from_env({}, redis_url=valkey.url, prefix=prefix, board_token=TOKEN)
    assert send(settings, "/presence").text == "the app's own"
    assert send(settings, "/").text == "the app's own"
    recorder_for(settings).close()


@BOTH
def test_without_redis_the_page_is_served_and_its_data_reports_the_outage(
    tmp_path: Path, send: Send
) -> None:
    settings = Settings.from_env({}, redis_url=f"unix://{tmp_path}/none", board_path="/presence")
    assert send(settings, "/presence").status_code == 200
    answer = send(settings, "/presence/counts")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
    assert str(tmp_path) not in answer.text


@pytest.mark.parametrize(
    ("middleware", "module", "extra"),
    [(wsgi.PresenceMiddleware, "webob", "wsgi"), (asgi.PresenceMiddleware, "starlette", "asgi")],
)
def test_a_board_without_its_extra_is_refused_at_start_up(
    site: Settings, middleware: Any, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "presence_middleware.board.find_spec",
        lambda name: None if name == module else find_spec(name),
    )
    with pytest.raises(SettingsError, match=rf"pip install 'presence_middleware\[{extra}\]'"):
        middleware(lambda *_: None, settings=site)


SITE = """
from presence_middleware import asgi, wsgi

def plain(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"the app's own"]

async def awaited(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"the app's own"})

over_wsgi = wsgi.PresenceMiddleware(plain)
over_asgi = asgi.PresenceMiddleware(awaited)
"""


@pytest.fixture(
    params=[
        gunicorn("app:over_wsgi"),
        uvicorn("app:over_asgi", 1, "--lifespan=off", "--root-path=/shop"),
        pytest.param(
            gunicorn("app:over_wsgi", 1, "--worker-class=gevent", "--preload"),
            marks=pytest.mark.slow,
        ),
        pytest.param(gunicorn("app:over_wsgi", 1, "--threads=8"), marks=pytest.mark.slow),
    ],
    ids=["gunicorn", "uvicorn", "gevent", "gthread"],
)
def server(
    request: pytest.FixtureRequest, variables: dict[str, str], tmp_path: Path
) -> Iterator[WebServer]:
    (tmp_path / "app.py").write_text(SITE)
    variables |= {"PRESENCE_BOARD_PATH": "/presence", "PRESENCE_BOARD_TOKEN": TOKEN}
    command: Command = request.param
    with WebServer(command, tmp_path, tmp_path / "log", **variables) as server:
        yield server


def test_real_servers_serve_the_board(server: WebServer, presence: Presence) -> None:
    presence.touch("bob")
    password = base64.b64encode(f"me:{TOKEN}".encode()).decode()
    with server.client("Firefox") as client:
        assert "Who is online" in client.get("/presence").text
        counts = client.get("/presence/counts")
        assert counts.json()["counts"]["user"] == 1
        etag = {"If-None-Match": counts.headers["ETag"]}
        assert client.get("/presence/counts", headers=etag).status_code == 304
        assert client.head("/presence/board.js").headers["Content-Length"] != "0"
        assert client.get("/presence/online").status_code == 401
        named = client.get("/presence/online", headers={"Authorization": f"Basic {password}"})
        assert named.json()["online"][0]["id"] == "bob"
        assert client.post("/presence", content=b"x" * 10000).status_code == 405
        assert client.get("/elsewhere").text == "the app's own"
    assert TOKEN not in server.output


def test_a_real_server_answers_any_host_header(server: WebServer) -> None:
    for path in ("/presence", "/presence/counts", "/presence/history?hours=24"):
        assert status_for_host(server, path, "[") == 200, server.output
    assert "Traceback" not in server.output


def status_for_host(server: WebServer, path: str, host: str) -> int:
    """Return the status of a request whose Host header no client library would send."""
    with socket.create_connection(("127.0.0.1", server.port), 15) as connection:
        request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        connection.sendall(request.encode())
        with connection.makefile("rb") as answer:
            return int(answer.readline().split()[1])


def test_a_hundred_readers_cause_a_single_redis_read_per_second(
    server: WebServer, valkey: Server
) -> None:
    seconds = 2.0
    with server.client("Firefox") as first:
        first.get("/presence/counts")  # a worker may still be starting
    with redis.Redis.from_url(valkey.url) as counter, ThreadPoolExecutor(4) as pool:
        before, began = _pfcounts(counter), time.monotonic()
        readers = [pool.submit(_read, server, began + seconds) for _ in range(4)]
        asked = sum(reader.result() for reader in readers)
        lasted = time.monotonic() - began
        assert asked > 50
        assert 1 <= _pfcounts(counter) - before <= lasted + 2  # a minute may begin, and is sampled


def _pfcounts(client: "redis.Redis") -> int:
    """How often the counts were read: each time, one of bots is in it."""
    stats: Any = client.info("commandstats")
    return int(stats.get("cmdstat_pfcount", {"calls": 0})["calls"])


def _read(server: WebServer, until: float) -> int:
    asked = 0
    with server.client("Firefox") as client:
        while time.monotonic() < until:
            assert client.get("/presence/counts").status_code == 200
            asked += 1
    return asked


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_wheel_contains_the_files_of_the_board(tmp_path: Path) -> None:
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("board.html", "board.css", "board.js", "widget.js"):
        assert f"presence_middleware/board/static/{name}" in names
    assert "presence_middleware/board/highest.lua" in names
