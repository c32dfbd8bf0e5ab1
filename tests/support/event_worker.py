"""A worker of test_walks.py: visits, goodbyes and logouts at random, until it is ended.

It writes what it did to a file, and loses some of the replies of the server.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis

from presence_middleware import Presence, PresenceUnavailable, Settings
from presence_middleware.recorder import recorder_for
from presence_middleware.stores import Act
from presence_middleware.wsgi import WsgiVisit

GROUPS, GROUP_SECONDS, GROUP_SIZE = 5, 3.0, 20
"""People come in turns: a group for some seconds, then the next."""
LOST_REPLIES = 0.03


def lose_replies(is_over: Callable[[], bool] = lambda: False) -> None:
    """Let some pipelines fail whose commands the server has executed, until it is over."""
    execute = redis.client.Pipeline.execute

    def lossy(pipeline: Any, *args: Any, **kwargs: Any) -> Any:
        replies = execute(pipeline, *args, **kwargs)
        if random.random() < LOST_REPLIES and not is_over():
            raise redis.ConnectionError("the reply was lost")
        return replies

    redis.client.Pipeline.execute = lossy  # type: ignore[method-assign, assignment]


def next_visit() -> tuple[str, bool, bool]:
    """Return a user of the group whose turn it is, if they log out, and if they close the page."""
    turn = int(time.monotonic() / GROUP_SECONDS)  # the same in all processes of a machine
    dice = random.random()
    id = f"user{turn % GROUPS}-{random.randrange(GROUP_SIZE)}"
    return id, dice < 0.02, 0.02 <= dice < 0.05


def main() -> None:
    settings = Settings.from_env()
    recorder, presence = recorder_for(settings), Presence(settings)
    # A handler that sets an Event would wait for ever if the loop holds the lock of the Event.
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, _: signals.append(signum))
    lose_replies(lambda: bool(signals))
    pause = threading.Event()  # libfaketime breaks time.sleep
    with Path(os.environ["WORKER_LOG"]).open("a", buffering=1) as log:
        while not signals:
            pause.wait(0.02)
            now = time.monotonic()
            id, is_leaving, is_closing = next_visit()
            if is_leaving:
                with suppress(PresenceUnavailable):
                    presence.leave(id)
            elif is_closing:
                recorder.record(("user", id), recorder.stamp(), act=Act.GOODBYE)
            else:
                WsgiVisit(recorder, {"HTTP_X_USER": id}).end()
            log.write(f"{'left' if is_leaving or is_closing else 'came'} {id} {now}\n")
    recorder.close()


if __name__ == "__main__":
    main()
