"""Time as a promise means it: without the moments in which the machine ran something else."""

import threading
import time
from typing import Self

STEP = 0.01
"""Seconds that the watching thread sleeps at a time."""
NOTICED = 0.02
"""Seconds that a step may be late and is no stall: other threads of this process hold the GIL."""


class Stopwatch:
    """Measure the seconds from `with` to the end of the block, less the stalls of the machine.

    A thread sleeps in steps. A step that ends late was held up by the machine, not by the code
    under test, and so was everything else meanwhile. Waiting, and work of this process, count.
    A stall during a wait is left out, too, even if the wait was no longer for it: this is a watch
    for upper bounds.
    """

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._lost = 0.0
        self._step_began = self._began = time.monotonic()
        self._ended: float | None = None

    def __enter__(self) -> Self:
        self._step_began = self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = self.now()
        self._over.set()
        self._thread.join()

    @property
    def seconds(self) -> float:
        """The seconds since the start; after the block, its duration."""
        return (self.now() if self._ended is None else self._ended) - self._began

    def now(self) -> float:
        """Return a moment in seconds, of a clock that stops while the machine stalls."""
        lost, began = self._lost, self._step_began
        return time.monotonic() - lost - _late(began)

    def _watch(self) -> None:
        while not self._over.wait(STEP):
            self._lost += _late(self._step_began)
            self._step_began = time.monotonic()


def _late(step_began: float) -> float:
    late = time.monotonic() - step_began - STEP
    return late if late > NOTICED else 0.0
