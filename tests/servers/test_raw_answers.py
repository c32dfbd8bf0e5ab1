"""On real servers, over a socket: a wrapped app sends the same bytes as the unwrapped app."""

import re
import socket
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from presence_middleware import Presence, Settings
from tests.support.backends import Server, matrix, wait_until
from tests.support.raw_site import PAGES, RESPONSES, SOCKETS, UNSTARTED, WRAPPED
from tests.support.servers import (
    ENDED,
    ROOT,
    Command,
    WebServer,
    free_port,
    granian,
    gunicorn,
    hypercorn,
    uvicorn,
    waitress,
)

WSGI, ASGI = "tests.support.raw_site:wsgi_site", "tests.support.raw_site:asgi_site"


def wsgiref(app: str) -> Command:
    return lambda port: ["tests.support.raw_site", str(port), app]


SERVERS: dict[str, tuple[str, Callable[[str], Command]]] = {
    "wsgiref": (WSGI, wsgiref),
    "uvicorn": (ASGI, uvicorn),
    "waitress": (WSGI, waitress),
    "gunicorn": (WSGI, gunicorn),
    "gthread": (WSGI, lambda app: gunicorn(app, 1, "--threads=2")),
    "hypercorn": (ASGI, hypercorn),
    "granian": (ASGI, lambda app: granian(app, 1, "--interface=asgi")),
}


def request(path: str, method: str = "GET", body: str = "", **headers: str) -> bytes:
    """One that is the last of its connection, if it does not say otherwise."""
    given = {"Host": "site", "User-Agent": "?", "Connection": "close"}
    if body:
        given["Content-Length"] = str(len(body))
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n{body}".encode()


def of_any(pages: list[str], echo: str, stream: str) -> dict[str, bytes]:
    """What any server can be asked."""
    several = [(echo, "POST", "one"), (stream, "GET", ""), (stream, "HEAD", "")]
    return {
        **{f"{method} {path}": request(path, method) for path in pages for method in GET_AND_HEAD},
        "an upload": request(echo, "POST", "a question"),
        "an upload in chunks": request(echo, "POST", Transfer_Encoding="chunked")
        + b"5\r\nhello\r\n0\r\n\r\n",
        "an upload that asks first": request(echo, "POST", "first", Expect="100-continue"),
        "an upload broken off": request(echo, "POST", "too little", Content_Length="100"),
        "an old request": f"GET {stream} HTTP/1.0\r\nUser-Agent: ?\r\n\r\n".encode(),
        "no request": b"NONSENSE\r\n\r\n",
        "several requests": b"".join(request(*each, Connection="keep-alive") for each in several)
        + request(echo, "POST", "the last"),
    }


GET_AND_HEAD = ("GET", "HEAD")
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec_WebSocket_Version": "13",
    "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec_WebSocket_Protocol": "chat",
}
FILE_PARTS = {"first": "bytes=0-9", "last": "bytes=-5", "two": "bytes=0-1,5-6", "none": "bytes=x"}
REQUESTS = {
    WSGI: of_any([*RESPONSES, *UNSTARTED], "/echo", "/generated"),
    ASGI: of_any([f"/{page.__name__}" for page in PAGES], "/echoes", "/streams")
    | {f"{name} of a file": request("/sends_file", Range=r) for name, r in FILE_PARTS.items()}
    | {page.__name__: request(f"/{page.__name__}", **UPGRADE) for page in SOCKETS},
}
# After these, servers wait for the client to close.
WORDS_OF_SOCKETS = re.compile(rb"that was all$|\r\n\r\nno$|^HTTP/1.1 403 .*\r\n\r\n", re.DOTALL)


def raw_answer(server: WebServer, asked: bytes, wrapper: str) -> bytes:
    """All that comes until the server closes the connection; dates are none of ours."""
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(asked.replace(b"User-Agent: ?", f"User-Agent: {wrapper}".encode()))
        if b"too little" in asked:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while not WORDS_OF_SOCKETS.search(answer) and (more := connection.recv(65536)):
                answer += more
        except ConnectionResetError:
            answer += b"(reset)"
        return re.sub(rb"(?i)date: [^\r]*\r\n|boundary=\w+|--\w{20,}", b"", answer)


def differences(server: WebServer, requests: dict[str, bytes], wrapper: str = WRAPPED) -> list[str]:
    """The requests whose answers a wrapper changes."""
    different = []
    for name, asked in requests.items():
        expected = raw_answer(server, asked, "bare")
        assert expected.startswith(b"HTTP/1.") or name in ("no request", "an upload broken off")
        if raw_answer(server, asked, wrapper) != expected:
            different.append(name)
    return different


@pytest.fixture(scope="module", params=[*list(SERVERS)[:2], *matrix(*list(SERVERS)[2:])])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def site(
    name: str, valkey: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[WebServer, Presence]]:
    app, serve = SERVERS[name]
    if find_spec(name.replace("gthread", "gunicorn")) is None:
        pytest.skip(f"{name} is not installed")
    folder = tmp_path_factory.mktemp("raw")
    variables = {"PRESENCE_REDIS_URL": valkey.url, "PRESENCE_PREFIX": folder.name + name}
    with WebServer(serve(app), ROOT, folder / "log", **variables) as server:
        yield server, Presence(Settings.from_env(variables))


def test_raw_responses_match_the_unwrapped_app(name: str, site: tuple[WebServer, Presence]) -> None:
    server, presence = site
    requests = dict(REQUESTS[SERVERS[name][0]])
    if name == "hypercorn":
        del requests["an upload broken off"]  # the bare one, too, says 400 or 500 as it comes
    assert differences(server, requests) == []
    wait_until(lambda: presence.count("guest") == 1)


BROKEN = {
    WSGI: [
        ("GeneratingWsgi", ["GET /list"]),
        ("CloselessWsgi", ["GET /closing", "GET /closed"]),
        ("HeaderWsgi", ["GET /list"]),
    ],
    ASGI: [
        ("BufferingAsgi", ["GET /streams", "GET /breaks_off"]),
        ("FilteringAsgi", ["GET /streams", "denies"]),
    ],
}


@pytest.mark.parametrize("name", ["wsgiref", "uvicorn"], indirect=True)
def test_the_checks_detect_a_broken_wrapper(name: str, site: tuple[WebServer, Presence]) -> None:
    requests = REQUESTS[SERVERS[name][0]]
    for wrapper, asked in BROKEN[SERVERS[name][0]]:
        raw_answer(site[0], request("/closed"), "bare")
        found = differences(site[0], {name: requests[name] for name in asked}, wrapper)
        assert found == asked[-1:], wrapper


@pytest.mark.parametrize(("app", "serve"), [(WSGI, gunicorn), (ASGI, uvicorn)])
def test_an_unreachable_redis_neither_stops_a_site_nor_changes_its_responses(
    app: str, serve: Callable[[str], Command], tmp_path: Path
) -> None:
    nowhere = {"PRESENCE_REDIS_URL": f"redis://127.0.0.1:{free_port()}"}
    path = "/lists" if app == WSGI else "/streams"
    requests = {method: request(path, method) for method in ("GET", "HEAD", "POST")}
    with WebServer(serve(app), ROOT, tmp_path / "log", **nowhere) as server:
        assert differences(server, requests) == []
        wait_until(lambda: "cannot record" in server.output)
        assert differences(server, requests) == []
        assert server.stop() in ENDED
        assert server.output.count("cannot record who is online") == 1
