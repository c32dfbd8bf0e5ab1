"""On real servers, over a socket: a wrapped app answers byte for byte as the bare one."""

import contextlib
import io
import re
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import pytest
import waitress.server

from presence_middleware import Presence, Settings
from presence_middleware.recorder import recorder_for
from presence_middleware.wsgi import PresenceMiddleware

from .conftest import Server

Respond = Callable[[WSGIEnvironment, Callable[..., Any]], Any]


class OneAndSized:
    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[bytes]:
        return iter([b"sized"])


def generated(*_: object) -> Iterator[bytes]:
    yield b"one"
    yield b"two"


def half_way(*_: object) -> Iterator[bytes]:
    yield b"one"
    raise OSError("half way")


def wrapped_file(environ: WSGIEnvironment, start: object) -> Any:
    return environ["wsgi.file_wrapper"](io.BytesIO(b"file" * 9000))


def echo(environ: WSGIEnvironment, start: object) -> Any:
    return [environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))]


RESPONSES: dict[str, Respond] = {
    "/list": lambda *_: [b"only"],
    "/lists": lambda *_: [b"one", b"two"],
    "/tuple": lambda *_: (b"only",),
    "/empty": lambda *_: [],
    "/sized": lambda *_: OneAndSized(),
    "/generated": generated,
    "/half-way": half_way,
    "/file": wrapped_file,
    "/echo": echo,
    "/raise": lambda *_: 1 / 0,
}


def site(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    write = start_response("200 OK", [("Content-Type", "text/plain"), ("X-Own", "1")])
    if environ["PATH_INFO"] == "/write":
        write(b"written")
        return [b"returned"]
    return RESPONSES[environ["PATH_INFO"]](environ, start_response)


class QuietHandler(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextlib.contextmanager
def simple_server(app: WSGIApplication) -> Iterator[tuple[str, int]]:
    with WSGIServer(("127.0.0.1", 0), QuietHandler) as server:
        server.set_app(app)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield "127.0.0.1", server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def waitress_server(app: WSGIApplication) -> Iterator[tuple[str, int]]:
    sockets: dict[int, Any] = {}
    server = waitress.server.create_server(app, map=sockets, host="127.0.0.1", port=0, threads=1)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield "127.0.0.1", server.effective_port
    finally:
        server.trigger.pull_trigger(lambda: stop(sockets))
        thread.join()
        server.task_dispatcher.shutdown()


def stop(sockets: dict[int, Any]) -> None:
    """Closes all that the server's loop waits for, in its own thread: the loop ends."""
    for waiting in list(sockets.values()):
        waiting.close()


def raw_answer(address: tuple[str, int], request: str) -> bytes:
    with socket.create_connection(address, 10) as connection:
        connection.sendall(request.encode())
        with connection.makefile("rb") as answer:
            return re.sub(rb"Date: [^\r]*\r\n", b"", answer.read())


def request(path: str, method: str, body: str = "") -> str:
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/1.0\r\nHost: site\r\nUser-Agent: t\r\n{length}\r\n{body}"


@pytest.mark.parametrize("serve", [simple_server, waitress_server])
def test_raw_responses_are_those_of_the_bare_app(
    serve: Callable[[WSGIApplication], contextlib.AbstractContextManager[tuple[str, int]]],
    valkey: Server,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ServerHandler, "log_exception", lambda *_: None)
    settings = Settings.from_env({}, redis_url=valkey.url, prefix=prefix)
    requests = [
        request(path, method) for path in [*RESPONSES, "/write"] for method in ("GET", "HEAD")
    ]
    requests.append(request("/echo", "POST", "a question"))
    wrapped = PresenceMiddleware(site, settings=settings)
    with serve(site) as bare_address, serve(wrapped) as address:
        for asked in requests:
            expected = raw_answer(bare_address, asked)
            assert raw_answer(address, asked) == expected, asked
            assert expected.startswith(b"HTTP/1."), "the bare server answers"
    recorder_for(settings).close()
    assert Presence(settings).count("guest") == 1
