"""Django with a WebSocket, behind the routers of Channels, which pass on copies of the scope.

The socket answers each command: `me`, `login` and `logout` do what the pages of those names do.
`presence_middleware.django.IdentifyWebSocketUser` is around it.
"""

from typing import Any

import channels.auth
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.routing import ProtocolTypeRouter, URLRouter
from django.contrib import auth
from django.urls import path, re_path

from presence_middleware.asgi import PresenceMiddleware
from presence_middleware.django import IdentifyWebSocketUser

from . import answer
from . import django_site as site


class Socket(AsyncWebsocketConsumer):  # type: ignore[misc]  # Channels has no types
    """A client with an open WebSocket."""

    async def receive(self, text_data: str) -> None:
        if text_data == "login":
            user = await auth.get_user_model().objects.aget(id=site.USER)
            await channels.auth.login(self.scope, user)
        elif text_data == "logout":
            await channels.auth.logout(self.scope)
        await self.send(answer(self.scope["user"].pk))


def asgi() -> Any:
    http = site.asgi()
    sockets = IdentifyWebSocketUser(URLRouter([path("socket", Socket.as_asgi())]))
    routes = {
        "http": URLRouter([re_path("", http)]),
        "websocket": channels.auth.AuthMiddlewareStack(sockets),
    }
    return PresenceMiddleware(ProtocolTypeRouter(routes))
