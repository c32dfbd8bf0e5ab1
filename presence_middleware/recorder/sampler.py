"""Once a minute, one process of all notes how many are online."""

from ..backend import Backend
from ..connections import Driver
from ..errors import PresenceError
from ..stores import merge_plans
from ..stores.keys import minute_of


class Sampler:
    """Runs in the flush thread."""

    def __init__(self, backend: Backend, driver: Driver) -> None:
        self._driver, self._clock = driver, backend.clock
        self._window = backend.settings.window
        self._stores, self._history = backend.stores, backend.history
        self._minute: int | None = None
        """The last minute that somebody has sampled."""
        self._claimed: int | None = None
        """The last minute that was this process's to sample."""

    def tick(self) -> None:
        """Sample, if a minute has begun and no other process does; a failure leaves a gap."""
        if minute_of(self._clock.moment(self._clock.stamp())) == self._minute:
            return
        try:
            self._sample(self._driver.run(self._clock.now()))
        except PresenceError:
            return  # the recorder logs outages

    def _sample(self, now: float) -> None:
        minute = minute_of(now)
        if minute == self._claimed or self._driver.run(self._history.claim(minute)):
            self._claimed = minute  # what fails is tried again while the minute lasts
            plans = [store.count(now, self._window) for store in self._stores.values()]
            counts = dict(zip(self._stores, self._driver.run(merge_plans(plans)), strict=True))
            self._driver.run(self._history.record(minute, counts))
        self._minute = minute
