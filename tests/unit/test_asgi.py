"""The ASGI wrapper counts each request once, and hands on the very objects of app and server."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import product
from typing import Any
from unittest.mock import AsyncMock

import pytest

from presence_middleware import Presence, Settings
from presence_middleware.asgi import ASGIApplication, Message, PresenceMiddleware, Scope
from tests.support.asking import in_loop
from tests.support.backends import wait_until

Wrap = Callable[[ASGIApplication], PresenceMiddleware]
Check = Callable[[Wrap], Awaitable[None]]
OURS = {"presence_middleware.presence", "presence_middleware.visit"}
REQUESTS = ("http", "websocket")
BODY = "http.response.body"
START: Message = {"type": "http.response.start", "status": 200, "headers": []}
PATHSEND: Message = {"type": "http.response.pathsend", "path": __file__}
ZEROCOPYSEND: Message = {"type": "http.response.zerocopysend", "file": 1}
TRAILERS: Message = {"type": "http.response.trailers", "headers": []}


def body(content: bytes = b"", *, more: bool = False) -> Message:
    return {"type": BODY, "body": content, "more_body": more}


class Gateway:
    """The server's side of one connection: its scope, what it sends, what it is sent."""

    def __init__(self, type: str, *messages: Message, **more: Any) -> None:
        self.scope: Scope = {"type": type, "asgi": {"version": "3.0"}}
        if type in REQUESTS:
            self.scope |= {"user": "ann", "path": "/", "headers": [], "client": ("1.2.3.4", 5)}
        self.scope |= more
        self.messages, self.sent = list(messages), list[Message]()

    async def receive(self) -> Message:
        return self.messages.pop(0)

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def ask(self, app: ASGIApplication) -> None:
        await app(self.scope, self.receive, self.send)


def recorded(app: PresenceMiddleware) -> int:
    return app.recorder.stats().recorded


async def silent(*_: object) -> None:
    """An app that says nothing."""


async def check_scope_and_receive_are_the_servers_and_so_is_a_websockets_send(wrap: Wrap) -> None:
    for type in REQUESTS:
        app: Any = AsyncMock()
        gateway = Gateway(type)
        before, call = dict(gateway.scope), (gateway.scope, gateway.receive, gateway.send)
        await wrap(app)(*call)
        app.assert_awaited_once()
        scope, receive, send = app.await_args.args
        assert scope is call[0]
        assert receive is call[1]
        assert type == "http" or send is call[2]
        assert {key: scope[key] for key in before} == before
        assert scope.keys() - before.keys() == OURS


async def check_each_message_of_a_response_reaches_the_server_as_it_is(wrap: Wrap) -> None:
    """In its order, at once, and with what the server's `send` returns or raises."""
    refused, gone = body(b"refused"), OSError("gone")
    messages = [
        {"type": "http.response.debug", "info": {}},
        *(START, body(b"a", more=True), body(b""), body(b"past the end"), {"type": "new"}),
        *(PATHSEND, ZEROCOPYSEND, TRAILERS, refused, {}),
    ]
    passed: list[Message] = []

    async def server_send(message: Message) -> Any:
        """Return more than ASGI demands of a server."""
        passed.append(message)
        if message is refused:
            raise gone
        return passed

    async def app(scope: Scope, receive: Any, send: Any) -> None:
        assert inspect.iscoroutinefunction(send)
        for number, message in enumerate(messages, 1):
            copy = {**message}
            if message is refused:
                with pytest.raises(OSError, match="gone") as caught:
                    await send(message)
                assert caught.value is gone
            else:
                assert await send(message) is passed
            assert passed[-1] is message
            assert (len(passed), message) == (number, copy)

    await wrap(app)(Gateway("http").scope, Gateway("http").receive, server_send)
    assert len(passed) == len(messages)


# A type of connection, what the app sends, and whether that ends the visit.
CONNECTIONS: list[tuple[str, list[Message], bool]] = [
    *(
        ("http", messages, True)
        for messages in (
            [START, body(b"all")],
            [{"type": "http.response.early_hint", "links": []}, START, {"type": BODY}],
            [START, body(b"a", more=True), body(b"", more=True), body()],
            [START, PATHSEND],
            [START, {**ZEROCOPYSEND, "more_body": True}, ZEROCOPYSEND],
            [{**START, "trailers": True}, body(b"all")],
            [{"type": "http.response.push", "path": "/", "headers": []}, START, body()],
        )
    ),
    *(("http", messages, False) for messages in ([], [START], [START, body(b"a", more=True)])),
    ("websocket", [{"type": "websocket.accept"}, body()], False),
]


async def check_a_visit_ends_with_its_response_or_else_with_the_apps_call(wrap: Wrap) -> None:
    async def app(scope: Scope, _: Any, send: Any) -> None:
        visit = scope["presence_middleware.visit"]
        for message in messages:
            assert not visit.is_over
            await send(message)
        await send(TRAILERS)
        assert (visit.is_over, recorded(wrapped)) == (is_ended, before + is_ended)
        if is_ended:
            assert not wrapped.recorder.open_visits
            assert visit.identity == ("user", "ann")
            visit.identify("who came too late")
            await scope["presence_middleware.presence"].count()

    wrapped = wrap(app)
    for connection in CONNECTIONS:
        type, messages, is_ended = connection
        before = recorded(wrapped)
        await Gateway(type).ask(wrapped)
        assert recorded(wrapped) == before + 1
        assert not wrapped.recorder.open_visits
        assert not Presence(wrapped.recorder.settings).is_online("who came too late")


async def check_what_waits_is_written_before_the_app_hears_of_the_shutdown(wrap: Wrap) -> None:
    async def app(scope: Scope, receive: Any, _: object) -> None:
        if scope["type"] == "lifespan":
            assert (await receive())["type"] == "lifespan.startup"
            assert wrapped.recorder.stats().pending == 1
            assert (await receive())["type"] == "lifespan.shutdown"
            assert wrapped.recorder.stats().pending == 0

    wrapped = wrap(app)
    await Gateway("http").ask(wrapped)
    wait_until(lambda: wrapped.recorder.stats().flushed == 1)  # the next one waits
    await Gateway("http", user="bob").ask(wrapped)
    await Gateway("lifespan", {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}).ask(
        wrapped
    )
    assert Presence(wrapped.recorder.settings).online_among(["ann", "bob"]) == ["ann", "bob"]


async def check_what_can_be_read_once_reaches_app_and_recorder(wrap: Wrap) -> None:
    async def app(scope: Scope, *_: object) -> None:
        seen.append(([tuple(pair) for pair in scope["headers"]], tuple(scope["client"])))

    seen: list[Any] = []
    headers, client = [(b"x-user", b"cy"), (b"a", b"b")], ("1.2.3.4", 5)
    made: list[Any] = [tuple, list, iter]
    for type, pair, together in product(REQUESTS, made, made):
        pairs = together([pair(header) for header in headers])
        await Gateway(type, user=None, headers=pairs, client=iter(client)).ask(wrap(app))
    assert seen == [(headers, client)] * 2 * 9
    assert recorded(wrap(app)) == len(seen)


async def check_an_invalid_client_reaches_the_app(wrap: Wrap) -> None:
    for type in REQUESTS:
        app: Any = AsyncMock()
        await Gateway(type, client=7).ask(wrap(app))
        assert app.await_args.args[0]["client"] == 7


async def check_what_the_app_raises_reaches_the_server_as_it_is(wrap: Wrap) -> None:
    errors = [ValueError("a bug"), ExceptionGroup("two", [KeyError(1), LookupError(2)])]

    async def app(_: Scope, __: object, send: Any) -> None:
        for message in messages:
            await send(message)
        raise error

    for case in product(
        (*errors, SystemExit(3), asyncio.CancelledError("the server stops")),
        (*REQUESTS, "lifespan"),
        ([], [START, body(b"a", more=True)]),
    ):
        error, type, messages = case
        wrapped = wrap(app)
        with pytest.raises(BaseException) as caught:  # noqa: PT011
            await Gateway(type).ask(wrapped)
        assert caught.value is error
        assert not wrapped.recorder.open_visits
        assert caught.value.__context__ is None


async def check_wrapping_a_wrapped_app_counts_once(wrap: Wrap) -> None:
    app = wrap(wrap(silent))
    await Gateway("http").ask(app)
    assert recorded(app) == 1


CHECKS = [check for name, check in list(globals().items()) if name.startswith("check_")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@in_loop
async def test_an_app_behaves_the_same_inside_the_wrapper(check: Check, settings: Settings) -> None:
    await check(lambda app: PresenceMiddleware(app, settings=settings))


@pytest.mark.parametrize("more", [{}, {"path": []}], ids=["neither", "nor a path"])
def test_a_scope_that_lacks_something_reaches_the_app(more: Scope, settings: Settings) -> None:
    app = PresenceMiddleware(silent, settings=settings)
    asyncio.run(app({"type": "http", "user": "ann", **more}, Gateway("").receive, Gateway("").send))
    assert recorded(app) == 1


def test_two_recorders_both_count(settings: Settings) -> None:
    inner = PresenceMiddleware(silent, settings=replace(settings, prefix=f"{settings.prefix}2"))
    outer = PresenceMiddleware(inner, settings=settings)
    asyncio.run(Gateway("http", user="ann").ask(outer))
    assert (recorded(inner), recorded(outer)) == (1, 1)
