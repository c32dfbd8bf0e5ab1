"""What happens beside a test: in calls of the package, in threads, in children, at a signal."""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any

import pytest


def on_call(patch: pytest.MonkeyPatch, owner: Any, name: str, happens: Callable[..., Any]) -> None:
    """Let something happen before each call of a function of `owner`, with its arguments."""
    usual = getattr(owner, name)

    @wraps(usual)
    def call(*given: Any, **more: Any) -> Any:
        happens(*given, **more)
        return usual(*given, **more)

    patch.setattr(owner, name, call)


@contextmanager
def in_thread(work: Callable[[], object]) -> Iterator[threading.Thread]:
    """Work in a thread, which must have ended soon after the block."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(10)
    assert not thread.is_alive()


@contextmanager
def repeated(step: Callable[[], object], every: float) -> Iterator[None]:
    """Do something again and again in a thread, without an error, until the end of the block."""
    over, errors = threading.Event(), list[Exception]()

    def work() -> None:
        try:
            while not over.wait(every):
                step()
        except Exception as error:
            errors.append(error)

    with in_thread(work):
        try:
            yield
        finally:
            over.set()
    assert not errors


def in_child(work: Callable[[], object]) -> None:
    """Work in a forked child, which must end without an error within some seconds."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends the child if it waits for a lock of its parent
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


class Interrupt(BaseException):
    """As a server or gevent raises it in a handler whose time is up."""


def is_interrupted(work: Callable[[], object], place: int, *functions: Any) -> bool:
    """Do some work, and interrupt it at one of the places where Python lets a signal raise.

    These are the beginnings of the given functions, and the ends of what they call in C. Return
    False if the work did not come to the place.
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
