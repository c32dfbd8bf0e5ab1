"""The board on a site: the same under WSGI and ASGI; and its events, which only ASGI has."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
import trio

from presence_middleware import AsyncPresence, Event, Presence, Settings, asgi, sse
from presence_middleware.board import asgi as board
from presence_middleware.errors import EventsLost, PresenceUnavailable
from presence_middleware.events.iterators import AsyncEvents
from presence_middleware.recorder import recorder_for
from presence_middleware.stores import moment_of
from tests.support.asking import Answer, in_loop
from tests.support.backends import Server, wait_until
from tests.support.servers import (
    BOARD,
    ENDED,
    ROOT,
    TOKEN,
    WebServer,
    daphne,
    granian,
    gunicorn,
    hypercorn,
    uvicorn,
)
from tests.support.statuses import OWN, Ask, Call, over_asgi, over_wsgi

BEARER = {"Authorization": f"Bearer {TOKEN}"}
PATHS = [
    *("", "/", "/board.css", "/board.js", "/widget.js", "/counts", "/history", "/peak"),
    *("/chart.svg", "/online", "/last-seen?id=bob", "/last-seen?id=%3Cb%3E%e6%97%a5%ff"),
    *("/nothing", "/%ff"),
]
BOTH = pytest.mark.parametrize("send", [over_wsgi, over_asgi])


@pytest.fixture
def variables(variables: dict[str, str]) -> dict[str, str]:
    return variables | {
        **BOARD,
        "PRESENCE_EVENTS": "user",
        "PRESENCE_IDENTITY": "user=header:x-user, guest=visitor",
    }


@pytest.fixture
def settings(variables: dict[str, str]) -> Settings:
    return Settings.from_env(variables)


@pytest.fixture
def site(settings: Settings) -> asgi.PresenceMiddleware:
    return asgi.PresenceMiddleware(_app, settings=settings)


async def _app(scope: Any, receive: Any, send: Any) -> None:
    await receive()


# What a board answers


def but_time(answer: Answer) -> Any:
    if answer.headers.get("content-type") != "application/json" or not answer.body:
        return answer.body
    return {name: value for name, value in answer.json().items() if name != "now"}


@pytest.mark.parametrize("path", PATHS)
def test_wsgi_and_asgi_answer_with_the_same_bytes(settings: Settings, path: str) -> None:
    site = replace(settings, events=())  # else the page knows whether it has them
    for method in ("GET", "HEAD", "POST"):
        for headers in ({}, BEARER, {"If-None-Match": "*", **BEARER}):
            call = Call(headers, f"/presence{path}", method)
            one, other = over_wsgi(site, call), over_asgi(site, call)
            assert one.status == other.status
            assert [*one.headers.items()] == [*other.headers.items()]
            assert but_time(one) == but_time(other)
    recorder = recorder_for(site)
    assert (recorder.stats().recorded, recorder.open_visits) == (0, {}), "to look is no visit"


def test_the_board_shows_at_most_a_hundred_users(settings: Settings) -> None:
    presence = Presence(settings)
    for id in (*map(str, range(101)), "<b>eve</b>"):
        presence.touch(id)
    online = over_wsgi(settings, Call(BEARER, "/presence/online")).json()["online"]
    assert (len(online), online[0]["id"]) == (100, "<b>eve</b>")
    found = over_wsgi(settings, Call(BEARER, "/presence/last-seen?id=zoe&id=%3Cb%3Eeve%3C/b%3E"))
    assert found.json()["last_seen"] == {"zoe": None, "<b>eve</b>": online[0]["last_seen"]}


@BOTH
def test_the_board_is_found_below_a_mount_point(settings: Settings, send: Ask) -> None:
    assert b'src="presence/board.js"' in send(settings, Call(path="/presence", mount="/shop")).body
    script = send(settings, Call(path="/presence/board.js"))
    assert send(settings, Call(path="/presence/board.js", mount="/shop")).body == script.body != OWN
    assert send(settings, Call(path="/presence-not", mount="/shop")).body == OWN


@BOTH
def test_any_host_header_and_any_query_are_answered(settings: Settings, send: Ask) -> None:
    for host in ("[", "a b", "", "http://x/"):
        assert send(settings, Call({"Host": host}, "/presence")).status == 200
    for raw, id in {"日".encode(): "日", b"a#b": "a#b", b"\xff": None, b"%ff": None}.items():
        url = b"/presence/last-seen?kind=guest&id=" + raw
        found = send(settings, Call({"Host": "[", **BEARER}, url)).json()
        assert found["kind"] == "guest"
        assert id in (None, found["id"])


# Its events


class Stream:
    def __init__(self) -> None:
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self.gone = asyncio.Event()
        self.task: asyncio.Task[Any]
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_over = self.reads_nothing = False
        self._text = ""

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.sent.put(message)
        if self.reads_nothing and message["type"] == "http.response.body":
            await self.gone.wait()  # as a server waits while the buffer of the connection is full

    async def message(self) -> dict[str, str]:
        """Return the fields of the next message that is no comment."""
        while True:
            while "\n\n" not in self._text:
                part = await asyncio.wait_for(self.sent.get(), 20)
                self._text += part["body"].decode()
                self.is_over = not part["more_body"]
                if self.is_over:
                    return {}
            message, _, self._text = self._text.partition("\n\n")
            fields = dict(line.split(":", 1) for line in message.split("\n"))
            if {"data"} <= fields.keys():
                return {name: value.strip() for name, value in fields.items()}

    async def data(self) -> Any:
        return json.loads((await self.message())["data"])


@asynccontextmanager
async def opened(
    site: Any, query: str = "", method: str = "GET", **headers: str
) -> AsyncIterator[Stream]:
    stream = Stream()
    given = {name.replace("_", "-"): value for name, value in (BEARER | headers).items()}
    scope = Call(given, f"/presence/events?{query}", method).request.scope()
    stream.task = asyncio.create_task(site(scope, stream.receive, stream.send))
    start = await asyncio.wait_for(stream.sent.get(), 20)
    stream.status = start["status"]
    stream.headers = {name.decode(): value.decode() for name, value in start["headers"]}
    try:
        yield stream
    finally:
        stream.gone.set()
        await asyncio.wait_for(stream.task, 20)


@in_loop
async def test_a_stream_begins_with_the_list_and_goes_on_with_events(
    site: asgi.PresenceMiddleware, presence: Presence
) -> None:
    presence.touch("ann")
    async with opened(site) as stream:
        assert stream.status == 200
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.headers["cache-control"] == "no-store"
        assert "content-length" not in stream.headers
        first = await stream.message()
        assert first["event"] == "list"
        assert [each["id"] for each in json.loads(first["data"])["online"]] == ["ann"]
        presence.touch("<b>日")
        came = await stream.data()
        assert (came["kind"], came["id"], came["online"]) == ("user", "<b>日", True)
        assert came["at"].endswith("Z")
        presence.leave("ann")
        went = await stream.data()
        assert (went["id"], went["online"]) == ("ann", False)


@in_loop
async def test_a_reader_goes_on_after_its_last_event(
    site: asgi.PresenceMiddleware, presence: Presence
) -> None:
    async with opened(site) as stream:
        cursor = (await stream.message())["id"]
    presence.touch("ann")
    async with opened(site, Last_Event_ID=cursor) as stream:
        came = await stream.message()
        assert json.loads(came["data"])["id"] == "ann"
    presence.touch("bob")
    async with opened(site, Last_Event_ID=came["id"]) as stream:
        assert (await stream.data())["id"] == "bob"


@in_loop
async def test_a_reader_whose_place_is_lost_gets_a_message_and_begins_again(
    site: asgi.PresenceMiddleware, presence: Presence
) -> None:
    presence.touch("ann")
    async with opened(site, Last_Event_ID="1-1.99") as stream:
        assert await stream.message() == {"event": "lost", "id": "", "data": "{}"}
        assert await stream.message() == {}
        assert stream.is_over
    for cursor in ("", "nonsense", "1-1.99,1-1.99"):
        async with opened(site, Last_Event_ID=cursor) as stream:
            assert (await stream.message())["event"] == "list"


@in_loop
async def test_the_list_contains_everybody_whose_leave_is_still_to_be_announced(
    site: asgi.PresenceMiddleware, settings: Settings, presence: Presence
) -> None:
    lag = settings.lag_seconds("user")
    assert lag is not None
    now = presence.run(presence.backend.clock.now())
    for id, ago in (("gone", lag + 1), ("late", lag - 2)):
        Presence(settings, clock=lambda at=now - settings.window - ago: at).touch(id)  # type: ignore[misc]
    assert presence.online() == []

    async with opened(site) as stream:
        assert [each["id"] for each in (await stream.data())["online"]] == ["late"]


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [
        ("", {"Authorization": ""}, 401),
        ("", {"Authorization": "Bearer another"}, 401),
        ("kind=guest", {}, 404),
        ("kind=nobody", {}, 400),
    ],
)
@in_loop
async def test_others_get_no_stream(
    site: asgi.PresenceMiddleware, query: str, headers: dict[str, str], status: int
) -> None:
    async with opened(site, query, **headers) as stream:
        assert stream.status == status
        assert "error" in json.loads((await stream.sent.get())["body"])
    async with opened(site, method="HEAD") as stream:
        assert (stream.status, (await stream.sent.get())["body"]) == (200, b"")
        assert "content-length" not in stream.headers  # only that of the GET may be there


def test_wsgi_has_no_events_and_its_page_does_not_ask_for_them(settings: Settings) -> None:
    answer = over_wsgi(settings, Call(BEARER, "/presence/events"))
    assert (answer.status, b"under WSGI" in answer.body) == (501, True)
    assert over_wsgi(settings, Call(path="/presence/events")).status == 401
    assert b'data-live=""' in over_wsgi(settings, Call(path="/presence")).body
    assert b'data-live="user"' in over_asgi(settings, Call(path="/presence")).body


@in_loop
async def test_a_process_has_a_bounded_number_of_streams(
    site: asgi.PresenceMiddleware, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "MAX_STREAMS", 1)

    async with opened(site) as first:
        assert first.status == 200
        async with opened(site) as second:
            assert (second.status, second.headers["retry-after"]) == (503, "60")
    async with opened(site) as third:
        assert third.status == 200


@in_loop
async def test_a_stream_ends_if_a_layer_no_longer_receives(site: asgi.PresenceMiddleware) -> None:
    stream = Stream()

    async def receive() -> Any:
        raise RuntimeError("the response was completed")

    scope = Call(BEARER, "/presence/events").request.scope()
    await asyncio.wait_for(site(scope, receive, stream.send), 20)
    messages = [stream.sent.get_nowait() for _ in range(stream.sent.qsize())]
    assert messages[-1]["more_body"] is False


def test_under_trio_there_is_no_stream_and_the_page_polls(site: asgi.PresenceMiddleware) -> None:
    async def ask(path: str) -> httpx.Response:
        transport = httpx.ASGITransport(site)
        async with httpx.AsyncClient(transport=transport, base_url="http://site") as client:
            return await client.get(path, headers=BEARER)

    refused = trio.run(ask, "/presence/events")
    assert (refused.status_code, "ask online instead" in refused.text) == (503, True)
    assert trio.run(ask, "/presence/online").status_code == 200


@in_loop
async def test_a_stream_is_no_visit_and_needs_no_connection_of_its_own(
    site: asgi.PresenceMiddleware, presence: Presence, settings: Settings, valkey: Server
) -> None:
    presence.touch("ann")  # the stream has begun

    async with opened(site) as stream:
        await stream.message()
        feed = recorder_for(settings).backend.feed("user")
        await asyncio.to_thread(wait_until, lambda: feed.page.end.positions)
        before = len(valkey.client.client_list())
        async with AsyncExitStack() as others:
            for _ in range(10):
                await (await others.enter_async_context(opened(site))).message()
            assert len(valkey.client.client_list()) == before
            assert [each.name for each in threading.enumerate()].count("presence-events") == 1
    wait_until(lambda: "presence-events" not in [each.name for each in threading.enumerate()])
    assert recorder_for(settings).stats().recorded == 0
    assert recorder_for(settings).open_visits == {}


@in_loop
async def test_a_stream_survives_an_outage_and_sends_comments(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "BEAT_SECONDS", 0.01)
    ann = Event("user", "ann", True, moment_of(1_767_614_400.0), "7-1.3")

    idle = AsyncPresence(settings).events()
    messages = sse.server_sent_events(idle)
    assert await anext(messages) == "retry: 3000\n\n"
    assert await anext(messages) == ":\n\n"
    await idle.aclose()
    assert [message async for message in messages] == []
    steps = PresenceUnavailable("away"), EventsLost("missed"), [ann, ann]
    monkeypatch.setattr(AsyncEvents, "wait_for_batch", AsyncMock(side_effect=steps))
    events = AsyncPresence(settings).events()
    messages = sse.server_sent_events(events)
    assert await anext(messages) == "retry: 3000\n\n"
    assert await anext(messages) == ":\n\n"
    assert await anext(messages) == sse.LOST
    at = "2026-01-05T12:00:00Z"
    message = f'id: 7-1.3\ndata: {{"kind":"user","id":"ann","online":true,"at":"{at}"}}\n\n'
    assert await anext(messages) == 2 * message, "what comes at once is one text"
    await messages.aclose()
    assert events.is_ended


STREAMING = "tests.support.site:asgi_site"
SERVERS = {
    "uvicorn": uvicorn(STREAMING),
    "uvicorn in gunicorn": gunicorn(STREAMING, 1, "-kuvicorn.workers.UvicornWorker"),
    "hypercorn": hypercorn(STREAMING),
    "gunicorn": gunicorn(STREAMING, 1, "-kasgi", "--graceful-timeout=3"),
    "granian": granian(STREAMING, 1, "--interface=asgi", "--workers-kill-timeout=3"),
    "daphne": daphne(STREAMING),
}


@pytest.mark.parametrize(
    "name", ["uvicorn", *(pytest.param(name, marks=pytest.mark.slow) for name in [*SERVERS][1:])]
)
def test_an_open_stream_delays_no_end_of_a_server(
    variables: dict[str, str], tmp_path: Path, name: str
) -> None:
    command = SERVERS[name]
    with WebServer(command, ROOT, tmp_path / "log", **variables) as site:
        with (
            site.client("A") as client,
            client.stream("GET", "/presence/events", headers=BEARER) as stream,
        ):
            lines = stream.iter_lines()
            assert next(lines) == "event: list"
            site.process.terminate()
            assert site.process.wait(8) in ENDED
            if "uvicorn" in name:  # the others cut it off
                list(lines)  # raises an error if the response is not complete
        assert "Traceback" not in site.output or name == "hypercorn"


@in_loop
async def test_streams_end_when_the_lifespan_ends_although_a_reader_reads_nothing(
    site: asgi.PresenceMiddleware, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutdown = AsyncMock(return_value={"type": "lifespan.shutdown"})
    monkeypatch.setattr(board, "SEND_SECONDS", 0.2)
    async with opened(site) as stream, opened(site) as stuck:
        stuck.reads_nothing = True
        for each in (stream, stuck):
            assert (await each.message())["event"] == "list"
        await site({"type": "lifespan"}, shutdown, stream.sent.put)
        assert await stream.message() == {}
        assert stream.is_over
        await asyncio.wait_for(asyncio.shield(stuck.task), 5)


@in_loop
async def test_an_error_of_the_server_reaches_it_unchanged(site: asgi.PresenceMiddleware) -> None:
    send = AsyncMock(side_effect=KeyError("of the server"))
    scope = Call(BEARER, "/presence/events").request.scope()
    with pytest.raises(KeyError, match="of the server"):
        await site(scope, Stream().receive, send)
