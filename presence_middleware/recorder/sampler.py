"""Once a minute, one process of all notes how many are online."""

from ..connections import Driver
from ..errors import PresenceError
from ..settings import Settings
from ..stores.keys import minute_of


class Sampler:
    """Runs in the flush thread."""

    def __init__(self, settings: Settings, driver: Driver) -> None:
        self._driver = driver
        self._window = settings.window
        self._stores = settings.stores()
        self._history = settings.samples()
        self._minute: int | None = None

    def tick(self) -> None:
        """Samples, if a minute has begun and no other process does; a failure leaves a gap."""
        clock = self._driver.clock
        if minute_of(clock.moment(clock.stamp())) == self._minute:
            return
        try:
            self._sample(self._driver.run(clock.now()))
        except PresenceError:
            return  # the recorder tells of outages

    def _sample(self, now: float) -> None:
        self._minute = minute_of(now)
        if self._driver.run(self._history.claim(self._minute)):
            counts = {
                kind: self._driver.run(store.count(now, self._window))
                for kind, store in self._stores.items()
            }
            self._driver.run(self._history.record(self._minute, counts))
