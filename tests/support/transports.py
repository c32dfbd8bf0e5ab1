"""A transport of httpx."""

from collections.abc import Callable
from typing import Any

import httpx


class AsgiTransport(httpx.BaseTransport):
    """Calls an ASGI app for a client that does not await."""

    def __init__(self, app: Any, run: Callable[[Any], httpx.Response]) -> None:
        """Call `app` in the loop in which `run` runs a coroutine."""
        self._transport, self._run = httpx.ASGITransport(app), run

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._run(self._ask(request))

    async def _ask(self, request: httpx.Request) -> httpx.Response:
        given = await self._transport.handle_async_request(request)
        return httpx.Response(given.status_code, headers=given.headers, content=await given.aread())
