"""The WSGI wrapper changes nothing that app or server can see, and counts each request once."""

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self
from unittest.mock import Mock
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment
from wsgiref.util import FileWrapper

import pytest

from presence_middleware import Settings
from presence_middleware.wsgi import PresenceMiddleware
from tests.support.asking import plain_environ

Wrap = Callable[[WSGIApplication], PresenceMiddleware]
OURS = {"presence_middleware.presence", "presence_middleware.visit"}
HEADERS = [("Content-Type", "text/plain")]


class Gateway:
    """The server's side of one request: its environ, and as `start_response` what it is told."""

    def __init__(self, **more: Any) -> None:
        self.environ = plain_environ(REMOTE_USER="ann", QUERY_STRING="", **more)
        self.calls: list[tuple[Any, ...]] = []
        self.write = list[bytes]().append

    def __call__(self, *call: Any) -> Callable[[bytes], object]:
        self.calls.append(call)
        return self.write

    def ask(self, app: WSGIApplication) -> Any:
        return app(self.environ, self)


class Lines:
    """A body that is no list: says what was asked of it."""

    def __init__(
        self, *lines: bytes, failure: Exception | None = None, closing: Exception | None = None
    ) -> None:
        self.lines, self.failure, self.closing = list(lines), failure, closing
        self.log: list[str] = []

    def __iter__(self) -> Self:
        self.log.append("iter")
        return self

    def __next__(self) -> bytes:
        self.log.append("next")
        if self.lines:
            return self.lines.pop(0)
        raise self.failure or StopIteration

    def close(self) -> None:
        self.log.append("close")
        if self.closing:
            raise self.closing


class SizedLines(Lines):
    def __len__(self) -> int:
        return len(self.lines)


@pytest.fixture
def wrap(settings: Settings) -> Wrap:
    return lambda app: PresenceMiddleware(app, settings=settings)


def returning(body: Any) -> WSGIApplication:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", HEADERS)
        return body

    return app


def recorded(app: PresenceMiddleware) -> int:
    return app.recorder.stats().recorded


class Untouched:
    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"a stream of the server's was asked for {name}")


def test_what_app_and_server_say_reaches_the_other_as_it_is(wrap: Wrap) -> None:
    def app(*call: Any) -> Any:
        assert call[0] is gateway.environ
        assert call[1] is gateway
        assert call[1](*said) is gateway.write
        return []

    said = ("500 Oh", HEADERS, (ValueError, ValueError("no"), None))
    gateway = Gateway(**{"wsgi.input": Untouched(), "wsgi.errors": Untouched()})
    before = dict(gateway.environ)
    gateway.ask(wrap(app))
    (told,) = gateway.calls
    assert all(one is other for one, other in zip(told, said, strict=True))
    assert HEADERS == [("Content-Type", "text/plain")]
    assert {key: gateway.environ[key] for key in before} == before
    assert gateway.environ.keys() - before.keys() == OURS


def test_whole_bodies_go_back_as_they_are(wrap: Wrap) -> None:
    file = io.BytesIO(b"file")
    # uWSGI sends bytes as a whole, and would send nothing of their numbers.
    for body in ([b"a"], [b"a", b"b"], (b"a",), [], b"a", FileWrapper(file), file):
        assert Gateway(**{"wsgi.file_wrapper": FileWrapper}).ask(wrap(returning(body))) is body


def test_a_body_is_read_only_as_the_server_reads_it_and_closed_once(wrap: Wrap) -> None:
    for read in (list, next, bool):
        body = Lines(b"a", b"b")
        app = wrap(returning(body))
        before = recorded(app)
        result = Gateway().ask(app)
        assert body.log == []
        lines = iter(result)
        assert lines is body
        read(lines)
        assert (body.log.count("close"), recorded(app)) == (0, before)
        result.close()
        assert (body.log.count("close"), recorded(app)) == (1, before + 1)


def test_an_exception_of_a_body_is_the_apps_own_and_its_end_ends_the_visit(wrap: Wrap) -> None:
    error = ValueError("half way")
    app = wrap(returning(Lines(b"a", failure=error, closing=error)))
    result = Gateway().ask(app)
    lines = iter(result)
    assert next(lines) == b"a"
    for call in (lambda: next(lines), result.close):
        assert recorded(app) == 0
        with pytest.raises(ValueError, match="half way") as caught:
            call()
        assert caught.value is error
    assert recorded(app) == 1


def test_a_length_is_kept(wrap: Wrap) -> None:
    assert len(Gateway().ask(wrap(returning(SizedLines(b"a"))))) == 1
    assert not hasattr(Gateway().ask(wrap(returning(Lines(b"a")))), "__len__")


def test_what_the_app_raises_is_its_own_and_ends_the_visit(wrap: Wrap) -> None:
    for error in (ValueError("boom"), SystemExit(3), GeneratorExit()):
        wrapped = wrap(Mock(side_effect=error))
        before = recorded(wrapped)
        with pytest.raises(type(error)) as caught:
            Gateway().ask(wrapped)
        assert caught.value is error
        assert recorded(wrapped) == before + 1


def test_a_body_that_cannot_be_examined_ends_the_visit(wrap: Wrap) -> None:
    wrapped = wrap(returning(Untouched()))
    with pytest.raises(AssertionError):
        Gateway().ask(wrapped)
    assert recorded(wrapped) == 1


def test_two_recorders_both_count(wrap: Wrap, settings: Settings) -> None:
    other = replace(settings, prefix=f"{settings.prefix}2")
    inner = PresenceMiddleware(returning([]), settings=other)
    outer = wrap(inner)
    Gateway().ask(outer)
    assert (recorded(inner), recorded(outer)) == (1, 1)
