"""Work of the flush thread besides writing: remove stale data, and sample the history."""

from ..backend import Backend
from ..connections import Driver
from ..errors import PresenceError, PresenceUnavailable
from ..stores import Store, merge_plans
from ..stores.keys import minute_of
from .setup_hints import SetupHints
from .writer import Writer

CLEAN_EVERY = 30.0  # seconds
CLEAN_ROUNDS = 20  # of a thousand members each, at a time


class Cleaner:
    """Removes stale members, so that keys do not grow."""

    def __init__(self, backend: Backend, writer: Writer, hints: SetupHints) -> None:
        self._clock, self._health, self._stores = backend.clock, backend.health, backend.stores
        self._writer, self._hints = writer, hints
        self._next_clean = float("-inf")

    def clean_up(self) -> None:
        """Remove a bounded number of stale members, at most every `CLEAN_EVERY` seconds.

        Raises `PresenceUnavailable` if Redis does not answer.
        """
        if self._clock.stamp() < self._next_clean or not self._may_clean(""):
            return
        driver = self._writer.driver
        # Removing by a clock that runs ahead would remove users who are online.
        driver.run(self._clock.synchronise(0))
        now = self._clock.stamp()
        self._next_clean = now + CLEAN_EVERY
        for store in self._stores.values():
            for shard in store.all:
                if self._may_clean(driver.node_of(shard.name)):
                    self._clean(driver, shard, now)

    def _may_clean(self, node: str) -> bool:
        # A server that answers with a refusal may be full. Removing stale data helps it.
        return self._health.is_well(node) or self._writer.is_refused

    def _clean(self, driver: Driver, shard: Store, now: float) -> None:
        moment = self._clock.moment(now)
        try:
            for _ in range(CLEAN_ROUNDS):
                if not driver.run(shard.clean_up(moment)):
                    self._hints.cleaning_ended(None)
                    return
        except PresenceUnavailable as error:
            if "permission" not in str(error):
                raise
            self._hints.cleaning_ended(error)  # a missing permission is no outage
            return
        self._next_clean = now  # there is more: go on in the next round


class Sampler:
    """Records once a minute how many are online, in a single process of the whole site."""

    def __init__(self, backend: Backend, driver: Driver) -> None:
        self._driver, self._clock = driver, backend.clock
        self._window = backend.settings.window
        self._stores, self._history = backend.stores, backend.history
        self._sampled: int | None = None
        """The last minute that a process of the site has sampled."""
        self._claimed: int | None = None
        """The last minute that this process claimed."""

    def sample(self) -> None:
        """Record the counts of a minute that has begun, unless another process does.

        Never raises. A failure leaves a gap in the history.
        """
        clock, driver = self._clock, self._driver
        if minute_of(clock.moment(clock.stamp())) == self._sampled:
            return
        try:
            now = driver.run(clock.now())
            minute = minute_of(now)
            if minute == self._claimed or driver.run(self._history.claim(minute)):
                self._claimed = minute  # a sample that fails is tried again within its minute
                plans = [store.count(now, self._window) for store in self._stores.values()]
                counts = driver.run(merge_plans(plans))
                samples = dict(zip(self._stores, counts, strict=True))
                driver.run(self._history.record(minute, samples))
            self._sampled = minute
        except PresenceError:
            return  # the recorder logs outages
