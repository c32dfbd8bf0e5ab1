"""The same connections to a bare and a wrapped app cause the same events in the same order.

That messages are passed on as they are is in tests/unit/test_asgi.py.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import pytest

from presence_middleware import Settings
from presence_middleware.asgi import ASGIApplication, Message, PresenceMiddleware, Scope
from tests.support.backends import wait_until

SAID: ContextVar[str] = ContextVar("SAID", default="nothing")
OURS = {"presence_middleware.presence", "presence_middleware.visit"}
START: Message = {"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]}
ASKED: Message = {"type": "http.request", "body": b"", "more_body": False}
GONE: Message = {"type": "http.disconnect"}
CONNECT: Message = {"type": "websocket.connect"}


def body(content: bytes = b"", *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}


@dataclass(frozen=True)
class Case:
    """A connection: the app, and the features and actions of the server."""

    app: ASGIApplication
    messages: tuple[Message, ...] = (ASKED,)
    type: str = "http"
    scope: Mapping[str, Any] = field(default_factory=dict)
    fails_at: int | None = None
    """Which message, from 0 on, cannot be sent."""
    is_cancelled: bool = False
    """Once the app has heard all there is."""


class Gateway:
    """The server's side of one connection. `log` has all that happens, in order."""

    def __init__(self, case: Case) -> None:
        self._case, self._messages, self._sent = case, list(case.messages), 0
        self.log: list[Any] = []
        self._is_idle = asyncio.Event()
        self.scope: Scope = {
            **{"type": case.type, "asgi": {"version": "3.0", "spec_version": "2.4"}},
            **{"http_version": "1.1", "method": "GET", "scheme": "http", "path": "/"},
            **{"raw_path": b"/", "query_string": b"", "root_path": "", "headers": []},
            **{"client": ("1.2.3.4", 5), "server": ("site", 80), "state": {"from": "the server"}},
            **{"extensions": {}, "note": self.log.append},
            **case.scope,
        }

    async def receive(self) -> Message:
        if not self._messages:
            self._is_idle.set()
            await asyncio.Event().wait()
        message = self._messages.pop(0)
        self.log.append(("received", message))
        return message

    async def send(self, message: Message) -> None:
        self._sent += 1
        if self._case.fails_at == self._sent - 1:
            self.log.append(("not sent", message))
            raise OSError("the client is gone")
        self.log.append(("sent", dict(message)))
        await asyncio.sleep(0)

    async def serve(self, app: ASGIApplication) -> list[Any]:
        task = asyncio.create_task(self._ask(app))
        if self._case.is_cancelled:
            await self._is_idle.wait()
            task.cancel("the server stops")
        await asyncio.wait([task])
        self.log.append(("task", task.cancelled()))
        return self.log

    async def _ask(self, app: ASGIApplication) -> None:
        SAID.set("by the server")
        before = set(self.scope)
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:
            self.log.append(("raised", told(error)))
            if isinstance(error, asyncio.CancelledError):
                raise
        self.log.append(("ended", SAID.get(), self.scope["state"], set(self.scope) - before - OURS))


def told(error: BaseException | None) -> Any:
    """All of an exception that can be compared."""
    if error is None:
        return None
    caused = (told(error.__cause__), told(error.__context__), error.__suppress_context__)
    if isinstance(error, BaseExceptionGroup):
        return type(error), error.message, [told(part) for part in error.exceptions], caused
    return type(error), error.args, caused


def sending(*messages: Message) -> ASGIApplication:
    """An app that sends these messages."""

    async def app(scope: Scope, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)
            scope["note"](f"sent {message['type']}")

    return app


async def echo(scope: Scope, receive: Any, send: Any) -> None:
    while (message := await receive())["type"] == "http.request" and message["more_body"]:
        scope["note"](message["body"])
    await send(START)
    await send(body(message["body"]))


async def sees_cancelling(scope: Scope, receive: Any, send: Any) -> None:
    await send(START)
    try:
        while True:
            await receive()
    except asyncio.CancelledError as error:
        scope["note"](("cancelled", error.args))
        raise
    finally:
        await send(body(b"cleaned up"))


async def survives_cancelling(scope: Scope, receive: Any, send: Any) -> None:
    with suppress(asyncio.CancelledError):
        while True:
            await receive()
    await send(START)


async def catches(scope: Scope, receive: Any, send: Any) -> None:
    try:
        await sending(START, body(b"a", more=True), body(b"b"))(scope, receive, send)
    except OSError as error:
        scope["note"](error.args)


async def works_on(scope: Scope, receive: Any, send: Any) -> None:
    await sending(START, body(b"all"))(scope, receive, send)
    for step in ("one", "two"):
        await asyncio.sleep(0)
        scope["note"](f"in the background: {step}")
    raise ValueError("in the background")


async def context(scope: Scope, receive: Any, send: Any) -> None:
    scope["note"](SAID.get())
    SAID.set("by the app")
    scope["state"]["from"] = "the app"


def raising(error: BaseException, *first: Message) -> Callable[..., Coroutine[Any, Any, None]]:
    async def app(scope: Scope, receive: Any, send: Any) -> None:
        await sending(*first)(scope, receive, send)
        raise error

    return app


async def from_another(scope: Scope, receive: Any, send: Any) -> None:
    raise LookupError("second") from KeyError("first")


async def in_a_group(scope: Scope, receive: Any, send: Any) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(raising(ValueError("one"))(scope, receive, send))
        group.create_task(echo(scope, receive, send))


async def talks(scope: Scope, receive: Any, send: Any) -> None:
    await receive()
    accept = {"type": "websocket.accept", "subprotocol": scope["subprotocols"][0]}
    await send({**accept, "headers": [(b"x-own", b"1")]})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})
    scope["note"](("closed", message["code"]))


async def lives(scope: Scope, receive: Any, send: Any) -> None:
    for _ in range(2):
        message = await receive()
        scope["state"][message["type"]] = True
        await send({"type": f"{message['type']}.complete"})


def websocket(app: ASGIApplication, *messages: Message, **more: Any) -> Case:
    return Case(app, (CONNECT, *messages), "websocket", {"subprotocols": ["chat"]}, **more)


def lifespan(app: ASGIApplication) -> Case:
    told: tuple[Message, ...] = ({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    return Case(app, told, "lifespan")


SPOKEN: tuple[Message, ...] = (
    {"type": "websocket.receive", "text": "hello"},
    {"type": "websocket.disconnect", "code": 1001},
)
PARTS = tuple({"type": "http.request", "body": b"%d" % n, "more_body": n < 2} for n in range(3))
CASES = {
    "an upload in parts": Case(echo, PARTS),
    "an upload broken off": Case(echo, (*PARTS[:2], GONE)),
    "push": Case(sending({"type": "http.response.push", "path": "/"}, START, body())),
    "an error before": Case(raising(ValueError("before"))),
    "an error in the middle": Case(raising(ValueError("middle"), START, body(b"a", more=True))),
    "an error after": Case(raising(ValueError("after"), START, body(b"a"))),
    "an error from another": Case(from_another),
    "a group of errors": Case(raising(ExceptionGroup("two", [ValueError("1"), KeyError("2")]))),
    "a task group": Case(in_a_group, ()),
    "an exit": Case(raising(SystemExit(3), START)),
    "work in the background": Case(works_on),
    "a client that cannot be told": Case(sending(START, body(b"a", more=True), body()), fails_at=1),
    "one whose app sees to it": Case(catches, fails_at=1),
    "cancelling": Case(sees_cancelling, is_cancelled=True),
    "cancelling in vain": Case(survives_cancelling, is_cancelled=True),
    "context and state": Case(context),
    "a conversation": websocket(talks, *SPOKEN),
    "a conversation cut off": websocket(talks, SPOKEN[0], is_cancelled=True),
    "an error once accepted": websocket(raising(ValueError("ws"), {"type": "websocket.accept"})),
    "a life": lifespan(lives),
    "a start that fails": lifespan(raising(ValueError("start"))),
}


def happens(case: Case, app: ASGIApplication) -> list[Any]:
    """All that happens on a connection of this case to an app."""

    async def serve() -> list[Any]:
        return await asyncio.wait_for(Gateway(case).serve(app), 5)

    return asyncio.run(serve())


@pytest.mark.parametrize("name", list(CASES))
def test_a_wrapped_app_does_what_the_bare_one_does(name: str, settings: Settings) -> None:
    case = CASES[name]
    wrapped = PresenceMiddleware(case.app, settings=settings)
    counted = wrapped.recorder.stats().recorded
    expected = happens(case, case.app)
    assert happens(case, wrapped) == expected
    assert len(expected) > 1, "something happened"
    wait_until(lambda: wrapped.recorder.stats().recorded == counted + (case.type != "lifespan"))
