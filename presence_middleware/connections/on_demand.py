"""Connections to an embedded server, which starts when one is opened. Imports redis-py."""

import asyncio
from pathlib import Path
from typing import Any

from redis.asyncio.connection import UnixDomainSocketConnection as AsyncUnixConnection

from .. import embedded
from .prompt_close import prompt_close
from .timed import TimedUnixConnection


class OnDemandConnection(TimedUnixConnection):
    """A connection to the server of the directory `path`."""

    may_start = True

    def _connect(self) -> Any:
        directory = self.path
        self.path = str(embedded.serve(Path(directory), start=self.may_start))
        try:
            return super()._connect()
        finally:
            self.path = directory


class JoiningConnection(OnDemandConnection):
    """A connection to a server that another process has started."""

    may_start = False


class AsyncOnDemandConnection(AsyncUnixConnection):
    """A connection of the async client to the server of the directory `path`."""

    async def _connect(self) -> None:
        directory = self.path
        self.path = str(await asyncio.to_thread(embedded.serve, Path(directory)))
        try:
            await super()._connect()  # type: ignore[no-untyped-call]
        finally:
            self.path = directory


CLASSES = {
    (False, True): OnDemandConnection,
    (False, False): JoiningConnection,
    (True, True): prompt_close(AsyncOnDemandConnection),
}
"""The connection class, by whether the client is async and whether it may start a server."""
