"""Events as server-sent events: the body of a response that a browser reads while it is open."""

import json
from collections.abc import AsyncGenerator, Iterable
from datetime import datetime
from functools import lru_cache

from .errors import EventsLost, PresenceUnavailable
from .events.iterators import AsyncEvents
from .events.streams import Chunk, Event

# A comment this often, in seconds: sending it fails if the client is gone, and proxies close
# connections on which nothing is sent.
BEAT_SECONDS = 15.0
BEAT = ":\n\n"
RETRY = "retry: 3000\n\n"  # milliseconds after which a browser connects again
# The empty id lets a browser forget its cursor.
LOST = "event: lost\nid:\ndata: {}\n\n"
HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would send nothing before its buffer is full
}
"""The headers of a response of server-sent events."""


async def server_sent_events(events: AsyncEvents) -> AsyncGenerator[str]:
    """Yield `events` as server-sent events: the content of a response with `HEADERS`.

    Each event is JSON such as `{"kind":"user","id":"42","online":true,"at":"2026-01-05T12:00:00Z"}`
    with its cursor as id. Where events were missed, an event `lost` follows; the page must then ask
    again who is online. A comment is sent every 15 seconds. Ends when `events` end. What comes at
    once is yielded as one text.
    """
    try:
        yield RETRY
        while not events.is_ended:
            try:
                batch = await events.wait_for_batch(BEAT_SECONDS)
            except EventsLost:
                yield LOST
            except PresenceUnavailable:
                yield BEAT
            else:
                yield (_text_of(batch) if isinstance(batch, Chunk) else messages_of(batch)) or BEAT
    finally:
        await events.aclose()


def iso(moment: datetime) -> str:
    """Return a moment in UTC as ISO 8601 text that ends with Z."""
    return moment.isoformat().replace("+00:00", "Z")


to_json = json.JSONEncoder(separators=(",", ":"), default=iso).encode
"""Returns JSON in ASCII, so that no terminal, log or browser interprets an id."""


def messages_of(events: Iterable[Event]) -> str:
    """Return events as text: of each an id, and data in JSON without line breaks."""
    return "".join(
        f"id: {cursor}\n"
        # `iso` is called here, because the encoder is slow to find out what it cannot encode.
        f"data: {to_json({'kind': kind, 'id': id, 'online': online, 'at': iso(at)})}\n\n"
        for kind, id, online, at, cursor in events
    )


_text_of = lru_cache(maxsize=64)(messages_of)  # of a chunk, made once for all streams
