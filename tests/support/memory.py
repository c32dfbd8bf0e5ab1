"""How much memory a test takes."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
