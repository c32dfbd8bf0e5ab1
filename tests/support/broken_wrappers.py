"""Wrappers that are broken on purpose, each in a single way. The checks must detect each."""

import asyncio
import contextlib

from presence_middleware import asgi
from presence_middleware.asgi import Message, Receive, Scope, Send


class SwallowingLifespanAsgi(asgi.PresenceMiddleware):
    """Keeps the error of an app's start from the server."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except Exception:
            if scope["type"] != "lifespan":
                raise


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
