"""Writes what the buffer holds to Redis: by kind, with the server's time, and cleans up behind."""

import secrets
from itertools import chain

from ..connections import Driver
from ..errors import PresenceUnavailable
from ..identity import Found, SharedHasher
from ..settings import Settings
from ..stores import Refused
from ..stores.visitor_key import agree
from .buffer import Buffer, Pending
from .notices import Notices

KEY_AGREED_EVERY = 10.0  # seconds; a Redis that restarted empty has lost the key
CLEAN_EVERY = 30.0  # seconds
CLEAN_ROUNDS = 20  # of a thousand each, at a time


class Writer:
    """One flush: runs in the flush thread, or in the thread of whoever asks for it."""

    def __init__(
        self, settings: Settings, driver: Driver, shared: SharedHasher | None, notices: Notices
    ) -> None:
        self.driver = driver
        self._notices = notices
        self._clock = driver.clock
        self._stores = settings.stores()
        self._prefix = settings.prefix
        self._shared = shared
        self._proposal = secrets.token_hex(32)
        self._agree_at = self._clean_at = float("-inf")
        self._doubts = 0

    def write(self, buffer: Buffer, deadline: float) -> Exception | None:
        """Writes what waits in `buffer`; what failed goes back, with the reason returned.

        No round trip starts after `deadline`, by `time.monotonic()`.
        """
        failure: Exception | None = None
        unwritten = _by_kind(buffer.take())
        try:
            for kind, sightings in list(unwritten.items()):
                try:
                    refused = self._write_kind(kind, sightings, deadline)
                    del unwritten[kind]
                    buffer.wrote(len(sightings), refused)
                    self._notices.wrote(kind, refused)
                except PresenceUnavailable as error:
                    return error  # the others would fail as well; a wrong key is one kind's own
                except Exception as error:  # a fault of ours, too, must lose nobody
                    failure = error
        finally:  # nor may whatever interrupts a handler that writes
            if unwritten:
                buffer.put_back(dict(chain.from_iterable(map(dict.items, unwritten.values()))))
        return failure

    def _write_kind(self, kind: str, sightings: Pending, deadline: float) -> Refused:
        self._prepare()
        moment = self._clock.moment
        kept = [(self.finished(id) or "", moment(at)) for (_, id), at in sightings.items()]
        return self.driver.run(self._stores[kind].record(kept), deadline)

    def _prepare(self) -> None:
        """Learns the server's time and, where guests are hashed with it, the shared key."""
        self.driver.run(self._clock.synchronise())
        now = self._clock.stamp()
        doubts = self._clock.doubts
        if self._shared is not None and (now >= self._agree_at or doubts > self._doubts):
            self._proposal = self.driver.run(agree(self._prefix, self._proposal))
            self._shared.learn(self._proposal.encode())
            self._agree_at, self._doubts = now + KEY_AGREED_EVERY, doubts

    def finished(self, id: Found) -> str | None:
        """An id as it is kept; None if it waits for a key that is not known yet."""
        if isinstance(id, str):
            return id
        return self._shared.finish(id) if self._shared and self._shared.key else None

    def clean_up(self) -> None:
        """Removes the stale, a bounded number at a time, now and then."""
        now = self._clock.stamp()
        if now < self._clean_at:
            return
        self._clean_at = now + CLEAN_EVERY
        for store in self._stores.values():
            for _ in range(CLEAN_ROUNDS):
                if not self.driver.run(store.clean_up(self._clock.moment(now))):
                    break
            else:
                self._clean_at = now  # there is more: go on after the next write


def _by_kind(pending: Pending) -> dict[str, Pending]:
    kinds: dict[str, Pending] = {}
    for who, stamp in pending.items():
        kinds.setdefault(who[0], {})[who] = stamp
    return kinds
