"""Round trips: a read and the writes before it take one."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio

from presence_middleware import Presence, QueryError, Settings, asgi, recorder_for, wsgi
from presence_middleware.connections import drivers
from presence_middleware.rooms import Room
from presence_middleware.stores import NOWHERE, room_number
from tests.support.beside import on_call
from tests.support.statuses import Ask, Call, over_asgi, over_wsgi
from tests.support.timed_site import IDENTITY, Recording, visit

Sent = list[list[list[Any]]]
"""The commands of each round trip of this process."""


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    sent: Sent = []

    def note(pipeline: Any, *_: Any, **__: Any) -> None:
        sent.append([list(command[0]) for command in pipeline.command_stack])

    for pipeline in (redis.client.Pipeline, redis.asyncio.client.Pipeline):
        on_call(monkeypatch, pipeline, "execute", note)
    return sent


def names(sent: Sent) -> list[list[str]]:
    found = [[str(command[0]) for command in commands] for commands in sent]
    sent.clear()
    return found


def test_first_reads_ask_the_time_then_all(unwritten: Callable[..., Settings], sent: Sent) -> None:
    presence = Presence(unwritten())
    presence.count()
    # The time is asked for once more where the first answer took long.
    assert names(sent) in ([["TIME"]] * times + [["GET", "ZCOUNT"]] for times in (1, 2))
    presence.count()
    presence.counts()
    presence.online()
    presence.peak()
    assert names(sent) == [["ZCOUNT"], ["ZCOUNT", "ZCOUNT", "PFCOUNT"], ["ZRANGE"], ["HMGET"]]
    presence.history(24)
    assert names(sent) == [["HGETALL"] * 2]
    presence.history(24_000)  # far beyond the retention, of a week
    # An event loop does something else between them. The first and the last are parts of a day.
    assert names(sent) == [["HGETALL"] * 4] * 2


@pytest.mark.parametrize(
    "ask", [Presence.count, Presence.online, lambda presence: presence.online_friends("friends")]
)
def test_a_read_of_many_shards_is_of_one_moment(
    unwritten: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, ask: Any
) -> None:
    presence = Presence(unwritten(shards=4))
    presence.count()
    sent = list[Any]()
    on_call(monkeypatch, redis.client.Pipeline, "execute", lambda each, *_, **__: sent.append(each))
    ask(presence)
    assert [each.transaction for each in sent] == [True]


def test_a_handler_writes_and_reads_at_once(unwritten: Callable[..., Settings], sent: Sent) -> None:
    def app(environ: Any, _: Any) -> list[bytes]:
        sent.clear()
        return [str(environ["presence_middleware.presence"].count()).encode()]

    wrapped = wsgi.PresenceMiddleware(app, settings=unwritten(identity=IDENTITY))
    wrapped.recorder.background = False
    for name, online in (("ann", b"1"), ("bob", b"2")):
        assert wrapped({"HTTP_X_USER": name}, lambda *_: None) == [online]  # type: ignore[arg-type]
    assert names(sent) == [["EVALSHA", "ZCOUNT"]]


@pytest.mark.parametrize("ask", [over_wsgi, over_asgi])
def test_a_handler_that_writes_counts_no_visitor_yet(
    ask: Ask, unwritten: Callable[..., Settings]
) -> None:
    """Who is a guest may log in afterwards."""
    settings, recorded = unwritten(identity=IDENTITY), list[int]()
    call = Call({"X-User": "ann"})
    call.before = lambda state: state["presence_middleware.presence"].touch("bob")
    call.after = lambda _: recorded.append(recorder_for(settings).stats().recorded)
    ask(settings, call)
    assert (recorded, recorder_for(settings).stats().recorded) == ([0], 1)


def test_a_read_over_asgi_hops_to_a_thread_once_also_to_write(
    unwritten: Callable[..., Settings], sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    hops: list[object] = []
    for module, name in (asgi, "in_thread"), (drivers, "outside_loop"):
        on_call(monkeypatch, module, name, lambda *given, **_: hops.append(given))

    async def app(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        presence = scope["presence_middleware.presence"]
        await presence.count()
        assert len(hops) == 1
        sent.clear()
        await presence.counts()
        await presence.online()
        for departs in (presence.leave, presence.forget):
            await departs(None)  # the usual id of a visitor who is no user
            with pytest.raises(QueryError):
                await departs("ann", "no kind")
        await presence.aclose()

    wrapped = asgi.PresenceMiddleware(app, settings=unwritten(identity=IDENTITY))
    wrapped.recorder.background = False
    scope = {"type": "http", "path": "/", "headers": [(b"x-user", b"ann")]}
    asyncio.run(wrapped(scope, None, None))  # type: ignore[arg-type]
    assert (len(hops), len(sent)) == (3, 2)


def test_a_flush_over_many_shards_is_one_round_trip(recording: Recording, sent: Sent) -> None:
    recorder = recording(identity=IDENTITY, shards=64)
    for _ in range(2):
        for number in range(500):
            visit(recorder, f"user{number}")
        sent.clear()
        assert recorder.flush()
    assert names(sent) == [["EVALSHA"] * 64]


@pytest.mark.parametrize(("keys", "has_moved"), [(5, False), (8, False), (8, True)])
def test_a_site_without_rooms_sends_none_and_only_a_page_sends_a_move(
    recording: Recording, sent: Sent, prefix: str, *, keys: int, has_moved: bool
) -> None:
    recorder = recording(rooms="/t/{topic}" if keys == 8 else "")
    for _ in range(2):
        seen = recorder.stamp()
        for user, number in (("ann", room_number("/t/1")), ("bob", NOWHERE)):
            recorder.record(("user", user), seen, room=Room(number, seen) if has_moved else None)
        sent.clear()
        assert recorder.flush()
    ((record,),) = sent
    assert record[2] == keys
    names = ["seen", "bye", "gone", "left", "writers"]
    assert record[3 : 3 + keys][:5] == [f"{prefix}:user:{name}" for name in names]
    # A header, a time and an id for each, and for each who moves also the move.
    assert len(record) == 3 + keys + 1 + 2 * 2 + 2 * has_moved
