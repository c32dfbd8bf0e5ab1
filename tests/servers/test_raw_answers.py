"""On real servers, over a socket: a wrapped app sends the same bytes as the unwrapped app."""

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from presence_middleware import Presence
from tests.support.backends import matrix, wait_until
from tests.support.raw_site import PAGES, RESPONSES, SOCKETS, UNSTARTED
from tests.support.servers import Command, WebServer, gunicorn, uvicorn, waitress

Serve = Callable[[str], Command]
Bare = Callable[..., WebServer]


def gthread(app: str) -> Command:
    return lambda port: [*gunicorn(app)(port), "--worker-class=gthread", "--threads=2"]


def wsgiref(app: str) -> Command:
    return lambda port: ["tests.support.raw_site", str(port), app]


def hypercorn(app: str) -> Command:
    return lambda port: ["hypercorn", app, f"--bind=127.0.0.1:{port}"]


def granian(app: str) -> Command:
    return lambda port: ["granian", "--interface=asgi", f"--port={port}", app]


WSGI: list[Serve] = [wsgiref, waitress, gunicorn, gthread]
ASGI: list[Serve] = [uvicorn, hypercorn, granian]


def request(path: str, method: str = "GET", body: str = "", **headers: str) -> bytes:
    """One that is the last of its connection, if it does not say otherwise."""
    given = {"Host": "site", "User-Agent": "t", "Connection": "close"}
    if body:
        given["Content-Length"] = str(len(body))
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n{body}".encode()


def of_any(pages: list[str], echo: str, stream: str) -> dict[str, bytes]:
    """What any server can be asked."""
    asked = {
        f"{method} {path}": request(path, method) for path in pages for method in ("GET", "HEAD")
    }
    return asked | {
        "an upload": request(echo, "POST", "a question"),
        "an upload in chunks": request(echo, "POST", Transfer_Encoding="chunked")
        + b"5\r\nhello\r\n0\r\n\r\n",
        "an upload that asks first": request(echo, "POST", "first", Expect="100-continue"),
        "an upload broken off": request(echo, "POST", "too little", Content_Length="100"),
        "an old request": f"GET {stream} HTTP/1.0\r\nUser-Agent: t\r\n\r\n".encode(),
        "no request": b"NONSENSE\r\n\r\n",
        "several requests": b"".join(
            request(path, method, body, Connection="keep-alive")
            for path, method, body in (
                (echo, "POST", "one"),
                (stream, "GET", ""),
                (stream, "HEAD", ""),
            )
        )
        + request(echo, "POST", "the last"),
    }


UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec_WebSocket_Version": "13",
    "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec_WebSocket_Protocol": "chat",
}
FILE_PARTS = {"first": "bytes=0-9", "last": "bytes=-5", "two": "bytes=0-1,5-6", "none": "bytes=x"}
REQUESTS = {
    "wsgi": of_any([*RESPONSES, *UNSTARTED], "/echo", "/generated"),
    "asgi": of_any([f"/{page.__name__}" for page in PAGES], "/echoes", "/streams")
    | {f"{name} of a file": request("/sends_file", Range=r) for name, r in FILE_PARTS.items()}
    | {page.__name__: request(f"/{page.__name__}", **UPGRADE) for page in SOCKETS},
}


# After these, servers wait for the client to close.
WORDS_OF_SOCKETS = re.compile(rb"that was all$|\r\n\r\nno$|^HTTP/1.1 403 .*\r\n\r\n", re.DOTALL)


def raw_answer(server: WebServer, asked: bytes) -> bytes:
    """All that comes until the server closes the connection; dates are none of ours."""
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(asked)
        if b"too little" in asked:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while not WORDS_OF_SOCKETS.search(answer) and (more := connection.recv(65536)):
                answer += more
        except ConnectionResetError:
            answer += b"(reset)"
        return re.sub(rb"(?i)date: [^\r]*\r\n|boundary=\w+|--\w{20,}", b"", answer)


def kind(serve: Serve) -> str:
    return "asgi" if serve in ASGI else "wsgi"


@pytest.fixture(scope="module")
def bare_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    """Returns a server of the bare app, the same for all tests that give it the same name."""
    with ExitStack() as stack:

        @cache
        def served(serve: Serve, name: str = "") -> WebServer:
            if find_spec(serve.__name__.replace("gthread", "gunicorn")) is None:
                pytest.skip(f"{serve.__name__} is not installed")
            folder = tmp_path_factory.mktemp("bare")
            return stack.enter_context(WebServer(serve(bare(serve)), folder, folder / "log"))

        yield served


def bare(serve: Serve) -> str:
    """Return the name of the unwrapped app."""
    return f"tests.support.raw_site:{kind(serve)}_app"


def differences(here: WebServer, there: WebServer, requests: dict[str, bytes]) -> list[str]:
    """The requests that are answered otherwise there."""
    different = []
    for name, asked in requests.items():
        expected = raw_answer(here, asked)
        assert expected.startswith(b"HTTP/1.") or name in ("no request", "an upload broken off")
        if raw_answer(there, asked) != expected:
            different.append(name)
    return different


@pytest.mark.parametrize("serve", [WSGI[0], ASGI[0], *matrix(*WSGI[1:], *ASGI[1:])])
def test_raw_responses_match_the_unwrapped_app(
    serve: Serve,
    bare_server: Bare,
    variables: dict[str, str],
    presence: Presence,
    tmp_path: Path,
) -> None:
    here = bare_server(serve)
    application = f"presence_middleware.{kind(serve)}_app:application"
    requests = dict(REQUESTS[kind(serve)])
    if serve is hypercorn:
        del requests["an upload broken off"]  # the bare one, too, says 400 or 500 as it comes
    command, variables = serve(application), {**variables, "PRESENCE_APP": bare(serve)}
    with WebServer(command, tmp_path, tmp_path / "log", **variables) as there:
        assert differences(here, there, requests) == []
        wait_until(lambda: presence.count("guest") == 1)


@pytest.mark.parametrize(
    ("serve", "wrapper", "asked"),
    [
        (wsgiref, "GeneratingWsgi", ["GET /list"]),
        (wsgiref, "CloselessWsgi", ["GET /closing", "GET /closed"]),
        (wsgiref, "HeaderWsgi", ["GET /list"]),
        (uvicorn, "BufferingAsgi", ["GET /streams", "GET /breaks_off"]),
        (uvicorn, "FilteringAsgi", ["GET /streams", "denies"]),
    ],
)
def test_the_checks_detect_a_broken_wrapper(
    serve: Serve,
    wrapper: str,
    asked: list[str],
    bare_server: Bare,
    tmp_path: Path,
) -> None:
    requests = {name: REQUESTS[kind(serve)][name] for name in asked}
    command = serve(f"tests.support.raw_site:{wrapper}")
    with WebServer(command, tmp_path, tmp_path / "log") as there:
        # The app counts the bodies that were closed.
        here = bare_server(serve, wrapper if "GET /closed" in asked else "")
        assert differences(here, there, requests) == asked[-1:]
