"""A process that handles events under a name: it appends each to a list in Redis.

Run it with the settings of the site, the key of the list, and `threads` or `asyncio`.
"""

import asyncio
import json
import os
import sys

import redis

from presence_middleware import AsyncPresence, Event, Presence
from presence_middleware.connections.loops import in_thread
from presence_middleware.events import feed

NAME = "mailer"


def main(key: str, mode: str) -> None:
    """Handle events until the process is killed."""
    # So that a test need not wait for long.
    feed.READ_EVERY, feed.LEASE_SECONDS = 0.1, 1.0
    client = redis.Redis.from_url(os.environ["PRESENCE_REDIS_URL"])

    def handle(event: Event) -> None:
        client.rpush(key, json.dumps([os.getpid(), event.id, event.online]))

    async def handle_all() -> None:
        async for event in AsyncPresence.from_env().events(name=NAME):
            await in_thread(handle, event)

    if mode == "threads":
        for event in Presence.from_env().events(name=NAME):
            handle(event)
    else:
        asyncio.run(handle_all())


if __name__ == "__main__":
    main(*sys.argv[1:])
