"""Interrupts where Python lets a signal raise them: when a function is called and when it ends."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupt(BaseException):
    """As a server or gevent raises it in a handler whose time is up."""


def is_interrupted(work: Callable[[], object], place: int, *functions: Any) -> bool:
    """Do some work, and interrupt it at one of the places in the given functions.

    These are their beginnings, and the ends of what they call in C. Return False if the work did
    not come to the place.
    """
    codes = {function.__code__ for function in functions}
    places = 0

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal places
        if frame.f_code in codes and event in ("call", "c_return"):
            places += 1
            if places > place:
                sys.setprofile(None)
                raise Interrupt

    sys.setprofile(profile)
    try:
        work()
    except Interrupt:
        return True
    finally:
        sys.setprofile(None)
    return False
