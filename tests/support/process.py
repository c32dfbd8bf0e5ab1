"""A process of a site, whose rounds the test starts, and a reader elsewhere."""

import math
from collections.abc import Callable
from typing import Any

from presence_middleware import Presence
from presence_middleware.asgi import AsgiVisit
from presence_middleware.recorder import Recorder, Visit
from presence_middleware.recorder.writer import CHECK_EVERY
from presence_middleware.rooms import Room
from presence_middleware.stores import Act, room_number
from presence_middleware.stores.shards import Shards
from tests.support.backends import client_of
from tests.support.faults import adds_up
from tests.support.timed_site import Clock, settings


class Process:
    """A process that writes only when the test says so. Its clock is that of the test."""

    kind = "user"

    def __init__(self, url: str, prefix: str, clock: Clock | None = None, **given: Any) -> None:
        chain = {"identity": "user=header:x-user, guest=ip:raw", "flush_interval": "0.05s"}
        self.clock = Clock() if clock is None else clock
        self.settings = settings(url, prefix, **{**chain, **given})
        self.recorder = Recorder(self.settings, clock=self.clock, background=False)
        self.presence = Presence(self.settings, clock=self.clock)
        self.run = self.presence.backend.driver.run

    @property
    def store(self) -> Shards:
        return self.presence.backend.stores[self.kind]

    @property
    def redis(self) -> Any:
        return client_of(self.settings.redis_url)

    def sweep(self) -> None:
        """Announce everybody who has gone, and take them out of their rooms."""
        for shard in self.store.all:
            while self.run(shard.sweep(self.clock.now)):
                pass

    def clean_up(self) -> None:
        for shard in self.store.all:
            while self.run(shard.clean_up(self.clock.now)):
                pass

    def opens(self, user: str | None = None, **state: object) -> Visit:
        """Return a connection of a user, or of a guest, which stays open."""
        headers = [(b"x-guest", b"guest")]
        if user is not None:
            headers.append((b"x-user", user.encode()))
        return AsgiVisit(self.recorder, {"type": "websocket", "headers": headers, **state})

    def did(
        self,
        *users: str,
        act: Act = Act.SEEN,
        kind: str = "",
        ago: float = 0.0,
        room: str | None = None,
    ) -> None:
        """Note what users did, or a page of a room that they opened; it waits to be written."""
        moment = self.clock.now - ago
        entered = Room(room_number(room), moment) if room else None
        for user in users:
            self.recorder.record((kind or self.kind, user), moment, act=act, room=entered)

    def saw(self, *users: str, **given: Any) -> None:
        """As `did`, but written when this returns."""
        self.did(*users, **given)
        self.writes()

    def writes(self) -> None:
        assert self.recorder.flush(), self.recorder.stats()

    def looks(self) -> None:
        """Look whether its data is still there, as the thread does now and then."""
        self.clock.now += CHECK_EVERY + 1
        self.recorder.run_once()

    def passes(self, seconds: float, step: float = 1.0) -> None:
        """Let time go by, with a round of the thread in every step."""
        for _ in range(math.ceil(seconds / step)):
            self.clock.now += step
            self.recorder.run_once()
        assert self.recorder.health.is_outage or not self.recorder.stats().pending

    def online(self, kind: str = "user") -> list[str]:
        return sorted(who.id for who in self.presence.online(kind, limit=None))

    def is_online_until(self, moment: float, user: str = "ann") -> bool:
        """Whether a user is online until a moment, and no longer."""
        now, found = self.clock.now, []
        for self.clock.now in (moment - 1, moment + 1):
            found.append(self.presence.is_online(user))
        self.clock.now = now
        return found == [True, False]

    @property
    def dropped(self) -> dict[Any, int]:
        assert adds_up(self.recorder)
        return self.recorder.stats().dropped


Start = Callable[..., Process]
"""Starts a process of a site at a URL."""
Recording = Callable[..., Recorder]
"""Opens a recorder of a site, without its thread."""
