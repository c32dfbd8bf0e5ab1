"""Wrappers that are broken on purpose, each in a single way. The checks must detect each."""

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

from presence_middleware import asgi, wsgi
from presence_middleware.asgi import AsgiVisit, Message, Receive, Scope, Send
from presence_middleware.request import READER, VISIT
from presence_middleware.wsgi import WsgiVisit


class BufferingWsgi(wsgi.PresenceMiddleware):
    """Reads the body before the server asks for it."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        return list(super().__call__(environ, start_response))


class GeneratingWsgi(wsgi.PresenceMiddleware):
    """Passes every body through a generator: no length, no sendfile, no Content-Length."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        return self._each(super().__call__(environ, start_response))

    def _each(self, body: Any) -> Iterator[bytes]:
        try:
            yield from body
        finally:
            if hasattr(body, "close"):
                body.close()


class CloselessWsgi(wsgi.PresenceMiddleware):
    """Drops the body's `close`."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        body = super().__call__(environ, start_response)
        return body if isinstance(body, (list, tuple)) else iter(body)


class ClosingTwiceWsgi(wsgi.PresenceMiddleware):
    """Closes the body itself when the server closes it, too."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        body = super().__call__(environ, start_response)
        if isinstance(body, wsgi.Body):
            end, app_body = body.close, body._body
            body.close = lambda: (end(), app_body.close())  # type: ignore[assignment]
        return body


class CopyingWsgi(wsgi.PresenceMiddleware):
    """Gives the app a copy of the environ."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        return super().__call__({**environ}, start_response)


class AddingWsgi(wsgi.PresenceMiddleware):
    """Puts a key more into the environ."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        environ["presence_middleware.extra"] = True
        return super().__call__(environ, start_response)


class HeaderWsgi(wsgi.PresenceMiddleware):
    """Adds a header to the response."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            return start_response(status, [*headers, ("X-Presence", "1")], exc_info)

        return super().__call__(environ, start)


class SwallowingWsgi(wsgi.PresenceMiddleware):
    """Answers for an app that failed."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        try:
            return super().__call__(environ, start_response)
        except Exception:
            return []


class ReadingWsgi(wsgi.PresenceMiddleware):
    """Reads the request's body."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        environ["wsgi.input"].read()
        return super().__call__(environ, start_response)


class EndlessWsgi(wsgi.PresenceMiddleware):
    """Does not end the visit of an app that fails or is closed."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        environ[VISIT] = WsgiVisit(self.recorder, environ)
        return self.app(environ, start_response)


class CountingTwiceWsgi(wsgi.PresenceMiddleware):
    """Does not see that the app is wrapped already."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        environ.pop(VISIT, None)
        return super().__call__(environ, start_response)


class CopyingAsgi(asgi.PresenceMiddleware):
    """Gives the app a copy of the scope."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__({**scope}, receive, send)


class LoopingAsgi(asgi.PresenceMiddleware):
    """Reads headers and client where they can be read only once, and leaves nothing to the app."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for key in ("headers", "client"):
            for _ in scope.get(key) or ():
                pass
        await super().__call__(scope, receive, send)


class LoopingPairsAsgi(asgi.PresenceMiddleware):
    """Reads each header where it can be read only once."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if isinstance(scope.get("headers"), list):
            for pair in scope["headers"]:
                list(pair)
        await super().__call__(scope, receive, send)


class ListingAsgi(asgi.PresenceMiddleware):
    """Makes a list of headers that the server has in a form of its own."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["headers"] = [tuple(pair) for pair in scope.get("headers", ())]
        await super().__call__(scope, receive, send)


class SwallowingLifespanAsgi(asgi.PresenceMiddleware):
    """Keeps the error of an app's start from the server."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except Exception:
            if scope["type"] != "lifespan":
                raise


class WrappingSendAsgi(asgi.PresenceMiddleware):
    """Gives the app a send of its own."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def pass_on(message: Message) -> None:
            await send(message)

        await super().__call__(scope, receive, pass_on)


class CopyingSendAsgi(asgi.PresenceMiddleware):
    """Sends a copy of each message."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_copy(message: Message) -> None:
            return await send({**message})

        await super().__call__(scope, receive, send_copy)


class PlainSendAsgi(asgi.PresenceMiddleware):
    """Gives the app a send that is no coroutine function, of which some frameworks warn."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = scope[VISIT] = scope[READER] = AsgiVisit(self.recorder, scope)

        def send_and_end(message: Message) -> Awaitable[None]:
            sent = send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                visit.end()
            return sent

        try:
            await self.app(scope, receive, send_and_end)
        finally:
            visit.end()


class LateEndAsgi(asgi.PresenceMiddleware):
    """Ends the visit with the app's call, however long the app works on after its response."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = scope[VISIT] = scope[READER] = AsgiVisit(self.recorder, scope)
        try:
            await self.app(scope, receive, send)
        finally:
            visit.end()


class HastyEndAsgi(asgi.PresenceMiddleware):
    """Ends the visit with the first message of its response."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_and_end(message: Message) -> None:
            await send(message)
            scope[VISIT].end()

        await super().__call__(scope, receive, send_and_end)


class LosingAsgi(asgi.PresenceMiddleware):
    """Raises an error of its own in place of the app's."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except BaseException as error:
            raise RuntimeError("the app failed") from error


class TaskAsgi(asgi.PresenceMiddleware):
    """Runs the app in a separate task, so the server does not see its context variables."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.create_task(super().__call__(scope, receive, send))


class LateFlushAsgi(asgi.PresenceMiddleware):
    """Does not write pending sightings when the server shuts down."""

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class UndetectedAsgi(asgi.PresenceMiddleware):
    """No coroutine function: servers take it for ASGI 2."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Any:
        return super().__call__(scope, receive, send)


class EndlessAsgi(asgi.PresenceMiddleware):
    """Does not end the visit of an app that fails."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[VISIT] = AsgiVisit(self.recorder, scope)
        await self.app(scope, receive, send)


class MeddlingAsgi(asgi.PresenceMiddleware):
    """Records scopes that are no requests."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[VISIT] = None
        await super().__call__(scope, receive, send)


class CountingTwiceAsgi(asgi.PresenceMiddleware):
    """Does not see that the app is wrapped already."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.pop(VISIT, None)
        await super().__call__(scope, receive, send)


class BufferingAsgi(asgi.PresenceMiddleware):
    """Sends only when the app is done."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def keep(message: Message) -> None:
            kept.append(message)

        kept: list[Message] = []
        await super().__call__(scope, receive, send if scope["type"] == "lifespan" else keep)
        for message in kept:
            await send(message)


class ReorderingAsgi(asgi.PresenceMiddleware):
    """Holds each message back until the next message is sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_late(message: Message) -> None:
            held.append(message)
            if len(held) == 2:
                await send(held.pop())
                await send(held.pop())

        held: list[Message] = []
        await super().__call__(scope, receive, send_late)


class ExtensionlessAsgi(asgi.PresenceMiddleware):
    """Removes the extensions of the server from the scope."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.pop("extensions", None)
        await super().__call__(scope, receive, send)


class FilteringAsgi(asgi.PresenceMiddleware):
    """Passes on only the messages that it knows."""

    KNOWN = ("lifespan.", "http.response.start", "http.response.body", "websocket.accept")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_known(message: Message) -> None:
            if message["type"].startswith(self.KNOWN):
                await send(message)

        await super().__call__(scope, receive, send_known)


class GroupingAsgi(asgi.PresenceMiddleware):
    """Runs the app in a task group, so its errors arrive in an exception group."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(super().__call__(scope, receive, send))


class SwallowingAsgi(asgi.PresenceMiddleware):
    """Keeps the app's errors from the server."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(Exception):
            await super().__call__(scope, receive, send)


class ListeningAsgi(asgi.PresenceMiddleware):
    """Receives the first message in place of the app."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await super().__call__(scope, receive, send)


class ShieldingAsgi(asgi.PresenceMiddleware):
    """Does not pass cancellation on to the app."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.shield(super().__call__(scope, receive, send))


class HastyAsgi(asgi.PresenceMiddleware):
    """Ends the app with the response: background tasks do not run."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_and_end(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                raise GeneratorExit

        with contextlib.suppress(GeneratorExit):
            await super().__call__(scope, receive, send_and_end)


class DeafAsgi(asgi.PresenceMiddleware):
    """Keeps from the app that a message could not be sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_anyway(message: Message) -> None:
            with contextlib.suppress(OSError):
                await send(message)

        await super().__call__(scope, receive, send_anyway)
