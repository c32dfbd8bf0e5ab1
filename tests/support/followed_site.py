"""A site whose users are announced, in a test, with a clock that the test moves."""

from typing import Any

from presence_middleware import EventsLost, Presence
from presence_middleware.recorder import Recorder
from presence_middleware.stores import Act, Position
from tests.support.acts import depart, send
from tests.support.timed_site import NOON, Clock, settings

LAG = 5.0  # seconds after the window until a leave is announced, with a flush interval of 1 s


class FollowedSite:
    """A process that records when the test says so, and a reader of the streams."""

    def __init__(self, url: str, prefix: str, *, kind: str = "user", **given: Any) -> None:
        self.clock, self.kind, self.url = Clock(), kind, url
        self.settings = settings(
            url, prefix, **{"flush_interval": 1, "events": kind, "secret": "s" * 32, **given}
        )
        self.recorder = Recorder(self.settings, clock=self.clock, background=False)
        self.presence = Presence(self.settings, clock=self.clock)
        self.run = self.presence.backend.driver.run
        self.store = self.presence.backend.stores[kind]
        is_announced = kind in self.settings.events
        self.streams = [shard.event_stream() for shard in self.store.all if is_announced]
        self.positions = [self.run(stream.position()) for stream in self.streams]

    def saw(self, *ids: str, ago: float = 0.0, arrived: float | None = None) -> None:
        """Ids were seen `ago` seconds before now, and had arrived `arrived` seconds before now."""
        arrival = self.clock.now - (ago if arrived is None else arrived)
        for id in ids:
            self.recorder.record((self.kind, id), self.clock.now - ago, arrival)
        assert self.recorder.flush(), self.recorder.stats()

    def sweep(self) -> int:
        """Announce everybody who has gone; return how many scripts that took."""
        sweeps = 0
        for shard in self.store.all:
            has_more = True
            while has_more:
                has_more = self.run(shard.sweep(self.clock.now))
                sweeps += 1
        return sweeps

    def clean_up(self) -> None:
        for shard in self.store.all:
            while self.run(shard.clean_up(self.clock.now)):
                pass

    def say_goodbye(self, id: str, ago: float = 0.0) -> None:
        shard, moment = self.store.shard_for(id), self.clock.now - ago
        self.run(depart(shard, Act.GOODBYE, id, moment))

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

    def entries(self) -> list[int]:
        """Return the number of changes in each entry of all streams."""
        readings = [self.run(stream.read(Position("0", 0))) for stream in self.streams]
        return [len(each.changes) for reading in readings for each in reading.announcements]

    def lifetime(self, id: str, name: str) -> int:
        """Return the remaining seconds of a key in the shard of an id."""
        return int(self.run(send("TTL", f"{self.store.shard_for(id).name}:{name}")))

    def expire(self, id: str, name: str, seconds: int) -> None:
        """Let a key in the shard of an id expire after so many seconds."""
        self.run(send("EXPIRE", f"{self.store.shard_for(id).name}:{name}", seconds))

    def close(self) -> None:
        self.recorder.close()
