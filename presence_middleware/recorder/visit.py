"""One open request or connection: when it arrived, what it said, who it is once known."""

from collections.abc import Callable, Mapping
from typing import Protocol

from ..identity import Chain, Found, Identity, Reader, View, Who, as_kept, known_kind

PATIENCE = 5.0  # seconds at most, in which a slow request may log somebody in


class Sink(Protocol):
    """Where visits report: the recorder, as they see it."""

    chain: Chain
    now: Callable[[], float]
    open_visits: dict["Visit", None]

    def record(self, who: Who, stamp: float, arrival: float) -> None: ...
    def admit(self, view: View, guest: Found, stamp: float) -> bool: ...
    def finished(self, id: Found) -> str | None: ...
    def write_for_reader(self) -> None: ...
    def abandoned(self, visit: "Visit") -> None: ...


class Visit:
    """In the environ or scope as `presence_middleware.visit`, for handlers and inner layers."""

    __slots__ = (
        "_arrived_as",
        "_is_long",
        "_is_minted",
        "_late",
        "_left",
        "_recorded",
        "_said",
        "_view",
        "arrival",
        "counts",
        "recorder",
        "stamp",
    )

    def __init__(self, recorder: Sink, view: View, stamp: float) -> None:
        """`stamp` is when it arrived, by the recorder's clock."""
        self.recorder = recorder
        self.counts = view.counts
        self.stamp = self.arrival = stamp
        self._view: View | None = view
        self._said: Who | None = None
        self._recorded: Who | None = None
        self._left: tuple[Who, float] | None = None
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
        Where a connection has been open for some seconds, it is a login: who left before it counts
        again.
        """
        chain = self.recorder.chain
        kind = known_kind(chain.named if kind is None else kind, chain.kinds)
        kept = as_kept(str(id)) if id is not None else ""
        self._said = (kind, kept) if kept else None
        if kept and self._is_long and not self.is_over:
            self.stamp = self.arrival = self.recorder.now()
            self._record((kind, kept))

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
        self.recorder.write_for_reader()

    def settle(self) -> None:
        """Records whom this visit turned out to be, once each."""
        self._settle_as(self._who())

    def still_open(self, now: float, every: float) -> None:
        """Records a long visit while it lasts: what it said so far, then again every so often."""
        who = self._who()
        is_long = self._is_long or now - self.arrival >= min(PATIENCE, every)
        if not is_long and self._late and who is self._arrived_as:
            return  # a layer may still say who this is: until then, nobody is taken for a guest
        if who is not None and who == self._recorded and now - self.stamp >= every:
            self.stamp = now
            self._record(who)
        else:
            self._settle_as(who)
        self._is_long = is_long

    def has_left(self, left: Mapping[Who, tuple[float, float]]) -> None:
        """Hears who was refused: a visit of theirs that arrived no later keeps nobody online."""
        who, arrival = self._recorded, self.arrival
        if who is not None and who in left and arrival <= left[who][1]:
            self._left = who, arrival

    def _settle_as(self, who: Who | None) -> None:
        if who is None or who == self._recorded:
            return
        if self._is_long and who != self._arrived_as:
            self.stamp = self.arrival = self.recorder.now()  # of the login: until then, not theirs
        self._record(who)

    def _record(self, who: Who) -> None:
        self._recorded = who
        has_left = self._left is not None and self._left == (who, self.arrival)
        if self.counts and not has_left and self._is_admitted(who):
            self.recorder.record(who, self.stamp, self.arrival)

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
