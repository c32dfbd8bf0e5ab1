"""One open request or connection: when it arrived, what it said, who it is once known."""

from collections.abc import Callable
from typing import Protocol

from ..identity import Chain, Found, Identity, Reader, View, Who, as_kept, known_kind

PATIENCE = 5.0  # seconds in which a slow request may log somebody in


class Sink(Protocol):
    """Where visits report: the recorder, as they see it."""

    chain: Chain
    now: Callable[[], float]
    open_visits: dict["Visit", None]

    def record(self, who: Who, stamp: float) -> None: ...
    def admit(self, view: View, guest: Found, stamp: float) -> bool: ...
    def finished(self, id: Found) -> str | None: ...
    @property
    def is_cut_off(self) -> bool: ...
    def write(self, *, unless_cut_off: bool = False) -> bool: ...
    def abandoned(self, visit: "Visit") -> None: ...


class Visit:
    """In the environ or scope as `presence_middleware.visit`, for handlers and inner layers."""

    __slots__ = (
        "_arrived_as",
        "_is_long",
        "_is_minted",
        "_late",
        "_recorded",
        "_said",
        "_view",
        "counts",
        "recorder",
        "stamp",
    )

    def __init__(self, recorder: Sink, view: View, stamp: float) -> None:
        """`stamp` is when it arrived, by the recorder's clock."""
        self.recorder = recorder
        self.counts = view.counts
        self.stamp = stamp
        self._view: View | None = view
        self._said: Who | None = None
        self._recorded: Who | None = None
        self._arrived_as: Who | None = None
        self._is_long = False
        self._late: tuple[Reader, ...]
        self._is_minted = False
        chain = recorder.chain
        for read, kind, self._late, self._is_minted in chain.early:
            if found := read(view):
                self._arrived_as = (kind, found) if kind else None
                break
        else:
            self._late = chain.late

    def identify(self, id: str | int | None, kind: str | None = None) -> None:
        """Says who this is, from any inner layer; it wins over what the request itself says.

        `kind` is by default that of the `auth` source, else the first of the chain. Nothing
        (None or empty) takes back what was said. Raises `QueryError` for an unknown kind.
        """
        chain = self.recorder.chain
        kind = known_kind(chain.named if kind is None else kind, chain.kinds)
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
        id = self.recorder.finished(who[1])
        return None if id is None else Identity(who[0], id)

    def flush(self) -> None:
        """Records this visit as it is now and writes what the process holds."""
        self.settle()
        if not self.recorder.is_cut_off:  # in an outage, no reader waits for what the thread tries
            self.recorder.write(unless_cut_off=True)

    def settle(self) -> None:
        """Records whom this visit turned out to be, once each."""
        who = self._who()
        if who is not None and who != self._recorded:
            self._recorded = who
            if self.counts and self._is_admitted(who):
                self.recorder.record(who, self.stamp)

    def still_open(self, now: float, every: float) -> None:
        """Records a long visit while it lasts: what it said so far, then again every so often."""
        if self._recorded is not None and now - self.stamp >= every:
            self.stamp, self._recorded, self._is_long = now, None, True
        if not self._may_become_known(now):
            self.settle()

    def _may_become_known(self, now: float) -> bool:
        """Whether a layer may still say who this is: until then, nobody is taken for a guest."""
        is_young = not self._is_long and now - self.stamp < PATIENCE
        return is_young and bool(self._late) and self._who() is self._arrived_as

    def end(self) -> None:
        """The request is over, however it ended."""
        recorder = self.recorder
        recorder.open_visits.pop(self, None)
        if self._is_long:
            self.still_open(recorder.now(), 0)
        else:
            self.settle()
        # The environ holds the visit: without its view, both go with the last reference.
        self._view = None

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._view is None

    def abandon(self) -> None:
        """The server let go of the response without closing it; from any thread, taking no lock."""
        if self.counts and not self.is_over:
            self.recorder.abandoned(self)

    def _is_admitted(self, who: Who) -> bool:
        """Not one too many of those that an address can make up."""
        if not self._is_minted or who is not self._arrived_as or self._view is None:
            return True
        return self.recorder.admit(self._view, who[1], self.stamp)

    def _who(self) -> Who | None:
        if self._said is not None:
            return self._said
        view = self._view  # another thread may end it meanwhile
        if view is None:
            return self._recorded
        for reader in self._late:
            found = reader.read(view)
            if found is not None:
                return reader.kind, found
        return self._arrived_as
