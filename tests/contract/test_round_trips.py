"""Round trips: a read and the writes before it take one."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from presence_middleware import Presence, Settings, asgi, wsgi
from presence_middleware.connections.loops import in_thread
from presence_middleware.recorder import Recorder, recorder_for
from presence_middleware.wsgi import WsgiVisit
from tests.support.backends import Server


@pytest.fixture
def given(valkey: Server, prefix: str) -> Iterator[Settings]:
    given = Settings.from_env(
        {},
        redis_url=valkey.url,
        prefix=prefix,
        identity="user=header:X-User, guest=visitor",
        flush_interval="3m",
    )
    yield given
    recorder_for(given).close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of each round trip of this process."""
    sent: list[list[str]] = []
    execute = redis.client.Pipeline.execute
    execute_async = redis.asyncio.client.Pipeline.execute

    def noted(pipeline: Any) -> None:
        sent.append([str(command[0][0]) for command in pipeline.command_stack])

    def counted(pipeline: Any, *args: Any, **kwargs: Any) -> Any:
        noted(pipeline)
        return execute(pipeline, *args, **kwargs)

    async def counted_async(pipeline: Any, *args: Any, **kwargs: Any) -> Any:
        noted(pipeline)
        return await execute_async(pipeline, *args, **kwargs)

    monkeypatch.setattr(redis.client.Pipeline, "execute", counted)
    monkeypatch.setattr(redis.asyncio.client.Pipeline, "execute", counted_async)
    return sent


def test_a_first_read_asks_the_time_and_then_all_at_once(
    given: Settings, sent: list[list[str]]
) -> None:
    presence = Presence(given)
    presence.count()
    # The time is asked for once more where the first answer took long.
    assert sent in ([["TIME"], ["ZCOUNT", "GET"]], [["TIME"], ["TIME"], ["ZCOUNT", "GET"]])
    sent.clear()
    presence.count()
    presence.counts()
    presence.online()
    presence.peak()
    assert sent == [["ZCOUNT"], ["ZCOUNT", "ZCOUNT", "PFCOUNT"], ["ZRANGE"], ["HMGET"]]


def test_a_handler_writes_and_reads_in_one_round_trip(
    given: Settings, sent: list[list[str]]
) -> None:
    def app(environ: Any, _: Any) -> list[bytes]:
        sent.clear()
        return [str(environ["presence_middleware.presence"].count()).encode()]

    wrapped = wsgi.PresenceMiddleware(app, settings=given)
    wrapped.recorder.background = False
    for name, online in (("ann", b"1"), ("bob", b"2")):
        assert wrapped({"HTTP_X_USER": name}, lambda *_: None) == [online]  # type: ignore[arg-type]
    assert sent == [["EVALSHA", "ZCOUNT"]]


def test_a_read_over_asgi_hops_to_a_thread_only_to_write(
    given: Settings, sent: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hops = 0

    async def counted(*arguments: Any) -> Any:
        nonlocal hops
        hops += 1
        return await in_thread(*arguments)

    monkeypatch.setattr("presence_middleware.asgi.in_thread", counted)
    trips = []

    async def app(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        presence = scope["presence_middleware.presence"]
        await presence.count()
        sent.clear()
        trips.append((hops, await presence.counts(), await presence.online()))
        await presence.aclose()

    wrapped = asgi.PresenceMiddleware(app, settings=given)
    wrapped.recorder.background = False
    scope = {"type": "http", "path": "/", "headers": [(b"x-user", b"ann")]}
    asyncio.run(wrapped(scope, None, None))  # type: ignore[arg-type]
    assert hops == trips[0][0] == 1
    assert len(sent) == 2


def test_a_flush_over_many_shards_is_one_round_trip(
    given: Settings, valkey: Server, prefix: str, sent: list[list[str]]
) -> None:
    many = Settings.from_env(
        {}, redis_url=valkey.url, prefix=f"{prefix}-many", shards=64, identity="user=header:X-User"
    )
    recorder = Recorder(many, background=False)
    for _ in range(2):
        for number in range(500):
            WsgiVisit(recorder, {"HTTP_X_USER": f"user{number}"}).end()
        sent.clear()
        assert recorder.flush()
    assert sent == [["EVALSHA"] * 64]
    recorder.close()
