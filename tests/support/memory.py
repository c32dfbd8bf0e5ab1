"""How much memory a test takes; and what the package caches for the lifetime of a process."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from presence_middleware import backend
from presence_middleware.connections import drivers
from presence_middleware.recorder.recorder import live_recorders, shared_recorder


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Within it, the function returns the bytes that were allocated since then and are held."""

    def held() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start(1)
    try:
        yield held
    finally:
        tracemalloc.stop()


def stop_recorders() -> None:
    """End the threads of all recorders of this process. What waits in them is not written."""
    for worker in [recorder.worker for recorder in live_recorders]:
        thread = worker.thread
        worker.stop(10)
        assert thread is None or not thread.is_alive()


def drop_leftovers() -> None:
    """Stop all recorders and clients of this process, and forget them and the servers in memory.

    The package keeps each of them once for each settings. A site has one or two; in the tests
    there would be thousands, which every garbage collection and every search of memory would walk.
    """
    stop_recorders()
    shared_recorder.cache_clear()
    backend.shared_backend.cache_clear()
    while drivers.clients:
        _, client = drivers.clients.popitem()
        client.close()
