"""A follower of events in a thread, which keeps a list of who is online."""

import threading
from typing import Any

from presence_middleware import Event, EventsLost, Presence, PresenceUnavailable


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
