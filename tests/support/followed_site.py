"""A site whose users are announced, with a clock that the test moves, and who follows a site."""

import threading
from typing import Any

from presence_middleware import Event, EventsLost, Presence, PresenceUnavailable
from tests.support.backends import send
from tests.support.timed_site import IDENTITY, NOON, Process, settings

LAG = 5.0  # seconds after the window until a leave is announced, with a flush interval of 1 s


class FollowedSite(Process):
    """A process that records when the test says so, and a reader of the streams."""

    def __init__(self, url: str, prefix: str, *, kind: str = "user", **given: Any) -> None:
        usual = {"identity": IDENTITY, "flush_interval": 1, "events": kind, "secret": "s" * 32}
        super().__init__(settings(url, prefix, **{**usual, **given}))
        self.kind, self.url = kind, url
        is_announced = kind in self.settings.events
        self.key = self.store.all[0].key
        """The keys of the first shard."""
        self.streams = [shard.event_stream() for shard in self.store.all if is_announced]
        self.positions = [self.run(stream.position()) for stream in self.streams]

    def announced(self) -> list[tuple[str, float]]:
        """Return what was announced since the last call: `+id` or `-id`, and seconds after noon.

        Raises `EventsLost`.
        """
        changes = []
        for number, stream in enumerate(self.streams):
            has_more = True
            while has_more:
                reading = self.run(stream.read(self.positions[number]))
                if reading.is_lost:
                    raise EventsLost
                self.positions[number], has_more = reading.position, reading.has_more
                changes += [change for each in reading.announcements for change in each.changes]
        return [
            ("+-"[not change.is_online] + change.id, round(change.moment - NOON, 3))
            for change in changes
        ]

    def keys_with(self, text: str) -> set[str]:
        """Return the last part of the names of the keys of the site that contain a text."""
        found = set()
        for key in self.run(send("KEYS", f"{self.settings.prefix}:*")):
            name = key.decode()
            try:
                value = self.run(send("ZRANGE", name, 0, -1))
            except Exception:
                value = self.run(send("XRANGE", name, "-", "+")) if "changes" in name else []
            if text in repr(value):
                found.add(name.rpartition(":")[2])
        return found

    def lifetime(self, id: str, name: str) -> int:
        """Return the remaining seconds of a key in the shard of an id."""
        return int(self.run(send("TTL", f"{self.store.shard_for(id).name}:{name}")))


class Follower:
    """A thread that keeps a list of who is online, as the README shows."""

    def __init__(self, presence: Presence, **given: Any) -> None:
        self.events = presence.events(**given)
        self.online: set[str] = set()
        self.received: list[Event] = []
        self.lost = 0
        self._presence = presence
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        self._look()
        while True:
            try:
                for event in self.events:
                    self.received.append(event)
                    (self.online.add if event.online else self.online.discard)(event.id)
                return  # noqa: TRY300
            except EventsLost:
                self.lost += 1
                self._look()
            except PresenceUnavailable:
                pass

    def _look(self) -> None:
        while True:
            try:
                self.online = {who.id for who in self._presence.online(limit=None)}
                return  # noqa: TRY300
            except PresenceUnavailable:
                if self.events.is_ended:
                    return

    def names(self) -> list[str]:
        return ["-+"[event.online] + event.id for event in self.received]

    def close(self) -> None:
        self.events.close()
        self._thread.join(10)
        assert not self._thread.is_alive()
