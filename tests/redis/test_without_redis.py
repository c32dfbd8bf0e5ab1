"""A site works unchanged when Redis is missing or presence is switched off."""

import asyncio
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment
from wsgiref.util import setup_testing_defaults

import pytest

from presence_middleware import (
    AsyncPresence,
    Identity,
    Presence,
    PresenceUnavailable,
    Settings,
    asgi,
    wsgi,
)
from tests.support.asking import Answer, State, exchange, exchange_wsgi
from tests.support.backends import Server, wait_until

OWN = b"the app's own"


def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    start_response("200 OK", [("X-Own", "1")])
    return [OWN]


async def async_app(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]})
    await send({"type": "http.response.body", "body": OWN})


def ask(wrapped: Any) -> State:
    environ: WSGIEnvironment = {"REMOTE_USER": "ann"}
    setup_testing_defaults(environ)
    return own(exchange_wsgi(wrapped, environ))


async def ask_async(wrapped: asgi.PresenceMiddleware) -> State:
    return own(await exchange(wrapped, {"type": "http", "headers": [], "user": "ann"}))


def own(answer: Answer) -> State:
    """Return what the app found in a request that it answered by itself."""
    assert (answer.status, answer.headers, answer.body) == (200, [("x-own", "1")], OWN)
    return answer.state


def flushers() -> list[threading.Thread]:
    """The threads that write, of all recorders of this process."""
    return [thread for thread in threading.enumerate() if thread.name == "presence-flush"]


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_an_unreachable_redis_does_not_stop_the_app(
    closed_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings.from_env(
        {}, redis_url=f"redis://:hunter2@127.0.0.1:{closed_port}/0", flush_interval="0.05s"
    )
    with caplog.at_level(logging.INFO, "presence_middleware"):
        wrapped = wsgi.PresenceMiddleware(app, settings=settings)
        environ = ask(wrapped)
        asyncio.run(ask_async(asgi.PresenceMiddleware(async_app, settings=settings)))
        assert environ["presence_middleware.visit"].identity == Identity("user", "ann")
        with pytest.raises(PresenceUnavailable) as caught:
            environ["presence_middleware.presence"].count()
        wait_until(lambda: wrapped.recorder.stats().last_error)
        assert wrapped.recorder.stats().pending == 1
        wrapped.recorder.close()
    warnings = [record for record in caplog.records if "cannot record" in record.getMessage()]
    assert len(warnings) == 1
    assert "hunter2" not in f"{caught.value}{caplog.text}"


def test_switched_off_nothing_is_recorded_and_readers_stay(valkey: Server, prefix: str) -> None:
    on = Settings.from_env({}, redis_url=valkey.url, prefix=prefix)
    off = Settings.from_env({"PRESENCE_ENABLED": "0"}, redis_url=valkey.url, prefix=prefix)
    Presence(on).touch("bob")
    threads_before = flushers()
    found = []

    def asking(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        found.append(environ["presence_middleware.visit"].identity)
        return app(environ, start_response)

    wrapped = wsgi.PresenceMiddleware(asking, settings=off)
    environ = ask(wrapped)
    assert found == [Identity("user", "ann")]
    reader = environ["presence_middleware.presence"]
    assert reader.online_among(["ann", "bob"]) == ["bob"]
    assert reader.count() == 1
    wrapped_async = asgi.PresenceMiddleware(async_app, settings=off)

    async def count() -> int:
        scope = await ask_async(wrapped_async)
        reader: AsyncPresence = scope["presence_middleware.presence"]
        counted = await reader.count()
        await reader.aclose()
        return counted

    assert asyncio.run(count()) == 1
    assert wrapped.recorder.flush()
    assert wrapped.recorder.stats().recorded == 0
    assert flushers() == threads_before
    assert wrapped_async.recorder is wrapped.recorder


@pytest.mark.parametrize("module", ["paste", "asgi"])
def test_importing_and_wrapping_bring_no_redis_client_and_no_framework(module: str) -> None:
    program = f"""
import sys, presence_middleware, presence_middleware.{module}
unwanted = "redis valkey fakeredis starlette fastapi flask django pyramid webob werkzeug web click"
if "{module}" == "asgi":
    presence_middleware.asgi.PresenceMiddleware(print)
else:
    presence_middleware.paste.filter_app_factory(print, {{}})
print([name for name in unwanted.split() if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
