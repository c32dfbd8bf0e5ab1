"""Connections to an embedded server, which starts when one is opened. Imports redis-py."""

from pathlib import Path
from typing import Any

from .. import embedded
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
