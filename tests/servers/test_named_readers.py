"""Processes that use a name are killed while they handle events: none is missed."""

import json
import signal
import subprocess
import sys
from itertools import cycle, islice
from typing import Any

import pytest
import redis

from presence_middleware import Presence, Settings
from presence_middleware.events import cursor_of
from tests.support.backends import Server, wait_until
from tests.support.named_reader import NAME
from tests.support.servers import environment

KILLS, PROCESSES, EVENTS_EACH = 6, 3, 60


@pytest.mark.slow
def test_no_event_is_missed_and_all_are_handled_in_order_when_holders_are_killed(
    valkey: Server, variables: dict[str, str], prefix: str
) -> None:
    site = variables | {"PRESENCE_IDENTITY": "user=header:X-User", "PRESENCE_EVENTS": "user"}
    presence, key = Presence(Settings.from_env(site)), f"{prefix}:log"
    modes = cycle(["threads", "asyncio"])
    client = redis.Redis.from_url(valkey.url)

    def start() -> "subprocess.Popen[bytes]":
        module = [sys.executable, "-m", "tests.support.named_reader", key, next(modes)]
        return subprocess.Popen(module, env=environment(**site))

    def handled() -> list[Any]:
        return [json.loads(entry) for entry in client.lrange(key, 0, -1)]

    def stored() -> Any:
        return client.hget(f"{prefix}:user:reader:{NAME}", "at")

    readers, log = [start() for _ in range(PROCESSES)], presence.events("user")
    announced: list[tuple[str, bool]] = []
    try:
        wait_until(lambda: client.hget(f"{prefix}:user:reader:{NAME}", "who"))
        killed = []
        for kill in range(KILLS + 1):
            for n in range(EVENTS_EACH // 2):
                presence.touch(f"id{kill}-{n}")
                presence.leave(f"id{kill}-{n}")
                if n == EVENTS_EACH // 4 and kill:
                    # In the midst of its work: the process that handled an event last.
                    holder = handled()[-1][0]
                    (process,) = [each for each in readers if each.pid == holder]
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    readers[readers.index(process)] = start()
                    killed.append(holder)
            last = [f"id{kill}-{EVENTS_EACH // 2 - 1}", False]
            wait_until(lambda: last in [entry[1:] for entry in handled()], 60)  # noqa: B023
            announced += [(event.id, event.online) for event in islice(log, EVENTS_EACH)]
            # A round may be faster than a tick, which stores what is handled.
            end = cursor_of(presence.backend.feed("user").streams.positions())
            wait_until(lambda: stored() == end.encode())  # noqa: B023
        entries = handled()
        firsts = list(dict.fromkeys((id, online) for _, id, online in entries))
        assert firsts == announced
        assert len(firsts) == (KILLS + 1) * EVENTS_EACH
        assert len(set(killed)) == KILLS
        # Nobody knows what a holder that died handled since the last tick: at most a round.
        assert len(entries) - len(firsts) <= KILLS * EVENTS_EACH
        assert [each.poll() for each in readers] == [None] * PROCESSES
    finally:
        for process in readers:
            process.kill()
            process.wait()
        log.close()
        client.close()
