"""The reader for templates: plain calls under WSGI and ASGI alike, and None in an outage."""

from collections.abc import Callable, Iterable, MutableMapping
from datetime import datetime
from typing import Any, TypeVar, cast

from .connections import is_in_loop
from .errors import PresenceUnavailable, WouldBlock
from .lookup import state_of
from .presence import AsyncPresence
from .queries import Id, Queries, Window
from .recorder import Recorder, Visit
from .request import VISIT
from .stores import Plan, Sample, Sighting

TEMPLATE = "presence_middleware.template"
"""The key of a request's `TemplatePresence` in its environ or scope."""

T = TypeVar("T")


class TemplatePresence:
    """Reads who is online for the template of a request, and asks Redis only when it is used.

    All methods return None if Redis does not answer, and then also for the rest of the request, so
    that a page waits for an outage once. They return None if the request has not passed the
    middleware, as in the tests of a site. They raise `QueryError` and `UnsupportedQuery` as
    `Presence` does, and `WouldBlock` in an event loop.
    """

    def __init__(self, visit: Visit | None) -> None:
        """Create a reader for the request of `visit`; None if the request has no visit."""
        self.visit = visit
        self._is_unavailable = False

    def count(
        self, kind: str | None = None, *, window: Window = None, room: str | None = None
    ) -> int | None:
        """Return the number of ids online. The arguments are as for `Presence.count`."""
        return self._ask(lambda queries: queries.count(kind, window, room))

    def counts(self, *, window: Window = None, room: str | None = None) -> dict[str, int] | None:
        """Return the number of ids online of each kind. As `Presence.counts`."""
        return self._ask(lambda queries: queries.counts(window, room))

    def online(
        self,
        kind: str | None = None,
        *,
        limit: int | None = 100,
        window: Window = None,
        room: str | None = None,
    ) -> list[Sighting] | None:
        """Return who is online, newest first. The arguments are as for `Presence.online`."""
        return self._ask(lambda queries: queries.online(kind, window, limit, None, room))

    def is_online(self, id: Id, kind: str | None = None, *, window: Window = None) -> bool | None:
        """Return whether `id` is online. For a list, `online_among` is a single read."""
        return self._ask(lambda queries: queries.is_online(id, kind, window))

    def last_seen(self, id: Id, kind: str | None = None) -> datetime | None:
        """Return when `id` was last seen, in UTC. None may also mean that it never was."""
        return self._ask(lambda queries: queries.last_seen(id, kind))

    def last_seen_among(
        self, ids: Iterable[Id], kind: str | None = None
    ) -> dict[str, datetime | None] | None:
        """Return when each of `ids` was last seen, in a single read. The keys are text."""
        return self._ask(lambda queries: queries.last_seen_among(ids, kind))

    def online_among(
        self, ids: Iterable[Id], kind: str | None = None, *, window: Window = None
    ) -> list[str] | None:
        """Return which of `ids` are online, as text, in a single read."""
        return self._ask(lambda queries: queries.online_among(ids, kind, window))

    def online_friends(
        self, key: str, kind: str | None = None, *, window: Window = None
    ) -> list[str] | None:
        """Return which members of the Redis set `key` are online, newest first."""
        return self._ask(lambda queries: queries.online_friends(key, kind, window))

    def history(self, hours: float = 24, kind: str | None = None) -> list[Sample] | None:
        """Return how many ids were online in each of the last minutes. As `Presence.history`."""
        return self._ask(lambda queries: queries.history(hours, kind))

    def peak(self, kind: str | None = None) -> Sample | None:
        """Return the highest sample. None may also mean that there is no sample yet."""
        return self._ask(lambda queries: queries.peak(kind))

    def _ask(self, query: Callable[[Queries], Plan[T]]) -> T | None:
        visit = self.visit
        if visit is None or self._is_unavailable:
            return None
        if isinstance(visit, AsyncPresence) and is_in_loop():
            raise WouldBlock(
                "a template asked who is online inside the event loop: render it in a thread (in a "
                "handler with `def`, or as a TemplateResponse of Django), or await the answer in "
                "the handler and pass it to the template"
            )
        # As a visit does, but without its `run`, which must be awaited under ASGI.
        visit.note()
        try:
            return cast(Recorder, visit.recorder).read(query(visit.backend.queries))
        except PresenceUnavailable:
            self._is_unavailable = True
            return None


def template_presence(source: Any) -> TemplatePresence:
    """Return the template reader of a request. All templates of a request share it.

    `source` is as for `presence_of`; None stands for a template outside of a request. A WebSocket
    has a new reader for each call, because it outlives outages. Sends nothing to Redis. Raises
    `QueryError` if `source` is no request.
    """
    state = {} if source is None else state_of(source)
    visit: Visit | None = state.get(VISIT)
    shared = state.get(TEMPLATE)
    # A server may use an environ again for the next request.
    if isinstance(shared, TemplatePresence) and shared.visit is visit:
        return shared
    reader = TemplatePresence(visit)
    if visit is not None and state.get("type") != "websocket":
        cast(MutableMapping[str, Any], state)[TEMPLATE] = reader
    return reader
