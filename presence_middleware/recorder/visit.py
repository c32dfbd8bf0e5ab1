"""One open request or connection: when it arrived, what it said, who it is once known."""

from collections.abc import Callable
from typing import Protocol

from ..errors import QueryError
from ..identity import Chain, Found, Identity, Reader, View, as_kept

Who = tuple[str, Found]


class Sink(Protocol):
    """Where visits report: the recorder, as they see it."""

    chain: Chain
    now: Callable[[], float]

    def record(self, kind: str, id: Found, stamp: float) -> None: ...
    def finished(self, id: Found) -> str | None: ...
    def flush(self) -> bool: ...
    def ended(self, visit: "Visit") -> None: ...


class Visit:
    """In the environ or scope as `presence_middleware.visit`, for handlers and inner layers."""

    __slots__ = (
        "__weakref__",
        "_found",
        "_kind",
        "_late",
        "_long",
        "_recorded",
        "_said",
        "_view",
        "recorder",
        "stamp",
    )

    def __init__(
        self,
        recorder: Sink,
        view: View,
        arrival: tuple[str, Found | None, tuple[Reader, ...]],
        stamp: float,
    ) -> None:
        self.recorder = recorder
        self.stamp = stamp
        self._view = view
        self._kind, self._found, self._late = arrival
        self._said: Who | None = None
        self._recorded: Who | None = None
        self._long = False

    def identify(self, id: str | int | None, kind: str | None = None) -> None:
        """Says who this is, from any inner layer; it wins over what the request itself says.

        `kind` is by default that of the `auth` source, else the first of the chain. Nothing
        (None or empty) takes back what was said. Raises `QueryError` for an unknown kind.
        """
        chain = self.recorder.chain
        kind = chain.named if kind is None else kind
        if kind not in chain.kinds:
            raise QueryError(
                f"no kind {kind!r} here: PRESENCE_IDENTITY has {', '.join(chain.kinds)}"
            )
        kept = as_kept(str(id)) if id is not None else ""
        self._said = (kind, kept) if kept else None

    @property
    def identity(self) -> Identity | None:
        """Who this is as far as is known now.

        None also for a hashed guest as long as this process never reached Redis, where the key is.
        """
        who = self._who()
        if who is None:
            return None
        kind, found = who
        id = self.recorder.finished(found)
        return None if id is None else Identity(kind, id)

    def flush(self) -> None:
        """Records this visit as it is now and writes what the process holds."""
        self.settle()
        self.recorder.flush()

    def settle(self) -> None:
        """Records whom this visit turned out to be, once each."""
        who = self._who()
        if who is not None and who != self._recorded:
            self._recorded = who
            self.recorder.record(who[0], who[1], self.stamp)

    def still_open(self, now: float, every: float) -> None:
        """Records a long visit while it lasts: what it said so far, then again every so often."""
        if self._recorded is not None and now - self.stamp >= every:
            self.stamp, self._recorded, self._long = now, None, True
        self.settle()

    def end(self) -> None:
        """The request is over, however it ended."""
        self.recorder.ended(self)
        if self._long:
            self.still_open(self.recorder.now(), 0)
        else:
            self.settle()

    def _who(self) -> Who | None:
        if self._said is not None:
            return self._said
        for read in self._late:
            found = read(self._view)
            if found is not None:
                return read.kind, found
        return None if self._found is None else (self._kind, self._found)
