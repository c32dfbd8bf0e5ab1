"""What writing the sightings of a process takes, beside plain pipelined ZADDs, in one run.

    python -m tests.benchmarks.flush [--rounds 30] [--server valkey|redis]

For crowds of several sizes: the processor time of this process and of the server for one identity.
Beside it, a pipeline that does no more than `ZADD … GT` with the same ids, 500 a command, and one
`EXPIRE`. Then how many round trips a flush over 64 shards, and some reads, take. Install hiredis
for the fastest clients on either side.
"""

import argparse
import random
import shutil
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import redis

from presence_middleware import Presence, Settings
from presence_middleware.recorder import Recorder

from .machine import processor_seconds, server

CROWDS = (1, 50, 2000, 10_000)
PLAIN_CHUNK = 500
WARM_UP = 5  # rounds


class Taken(NamedTuple):
    """Seconds of the processor for one identity."""

    ours: float
    plain: float
    our_server: float
    plain_server: float


def settings(url: str, **others: Any) -> Settings:
    given = {"identity": "user=header:X-User", "window": "10h", "flush_interval": "3h", **others}
    return Settings.from_env({}, redis_url=url, **given)


def measure(url: str, people: int, rounds: int) -> list[Taken]:
    recorder = Recorder(settings(url, prefix=f"crowd{people}"), background=False)
    client: Any = redis.Redis.from_url(url, protocol=2)
    process = int(client.info("server")["process_id"])
    ids = [f"user-{number:017d}" for number in range(people)]

    def timed(work: Callable[[], object]) -> tuple[float, float]:
        began, server_began = time.thread_time(), processor_seconds(process)
        work()
        taken, by_server = time.thread_time() - began, processor_seconds(process) - server_began
        return taken / people, by_server / people

    taken = []
    for _ in range(rounds + WARM_UP):
        random.shuffle(ids)
        now = time.monotonic()
        for number, id in enumerate(ids):
            recorder.record(("user", id), now + number * 1e-6)
        ours, our_server = timed(recorder.flush)
        moment = time.time()
        members = [(id, moment + number * 1e-6) for number, id in enumerate(ids)]
        plain, plain_server = timed(lambda: write_plainly(client, members))  # noqa: B023
        taken.append(Taken(ours, plain, our_server, plain_server))
    recorder.close()
    client.close()
    return taken[WARM_UP:]


def write_plainly(client: Any, members: list[tuple[str, float]]) -> None:
    pipeline = client.pipeline(transaction=False)
    for start in range(0, len(members), PLAIN_CHUNK):
        pipeline.zadd("plain", dict(members[start : start + PLAIN_CHUNK]), gt=True)
    pipeline.expire("plain", 1000)
    pipeline.execute()


def report(people: int, taken: list[Taken]) -> None:
    ours = statistics.median(each.ours / each.plain for each in taken)
    by_server = statistics.median(each.our_server / each.plain_server for each in taken)
    print(
        f"  {people:>6} identities: {min(each.ours for each in taken) * 1e6:7.2f} µs each here, "
        f"{ours:.2f} times a plain ZADD; {min(each.our_server for each in taken) * 1e6:6.2f} µs "
        f"in the server, {by_server:.2f} times",
        flush=True,
    )


def round_trips(url: str) -> None:
    """Counts what this process sends, by the pipelines that it executes."""
    given = settings(url, shards=64, prefix="shards", identity="user=auth, guest=visitor")
    recorder, presence = Recorder(given, background=False), Presence(given)
    executed: list[int] = []
    execute = redis.client.Pipeline.execute

    def counted(pipeline: Any, *given: Any, **named: Any) -> Any:
        executed.append(len(pipeline.command_stack))
        return execute(pipeline, *given, **named)

    redis.client.Pipeline.execute = counted  # type: ignore[method-assign, assignment]
    try:
        for name, work in (
            ("a flush over 64 shards and two kinds", recorder.flush),
            ("counts() over 64 shards and three kinds", presence.counts),
            ("online()", presence.online),
        ):
            for number in range(500):
                recorder.record(("user", f"user{number}"), time.monotonic())
                recorder.record(("guest", f"guest{number}"), time.monotonic())
            work()  # the first also asks the time, and what all agree on
            recorder.record(("user", "again"), time.monotonic())
            executed.clear()
            work()
            print(f"  {name}: {len(executed)} round trip(s), {sum(executed)} commands")
            recorder.flush()
    finally:
        redis.client.Pipeline.execute = execute  # type: ignore[method-assign]
    recorder.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--server", choices=["valkey", "redis"], default="valkey")
    given = parser.parse_args()
    binary = shutil.which("redis-server") if given.server == "redis" else None
    with server(binary) as url:
        print(f"{given.server}: a flush, processor time, median ratio of {given.rounds} rounds")
        for people in CROWDS:
            report(people, measure(url, people, given.rounds))
        round_trips(url)


if __name__ == "__main__":
    main()
