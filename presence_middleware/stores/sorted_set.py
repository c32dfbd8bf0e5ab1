"""The default store: a sorted set of ids by last-seen time. Plans only, no I/O."""

from collections.abc import Iterable, Mapping, Sequence

from . import keys
from .departures import Departures
from .plan import Batch, Command, Plan, members_with_scores, score
from .record import (
    NO_MOVES,
    Move,
    Recorded,
    RecordScript,
    Stamped,
    Write,
    chunks,
    combine_replies,
    ids_with_times,
    raise_if_full,
    send_record_commands,
    to_microseconds,
    with_hashes,
)
from .store import Sighting, WithoutRooms, clamp_future_scores, moment_of

# Members in one reply, or removed by one command: about 1 ms of server time.
PAGE = 1000


class SortedSet(WithoutRooms):
    """The store `sorted-set`: exact times, newest first, about 100 bytes a member."""

    RECORD_SCRIPT: tuple[str, ...] = ("scored", "sorted_set")
    DEPART_SCRIPT: tuple[str, ...] = ("depart_scored", "depart_sorted_set")

    def __init__(
        self, prefix: str, kind: str, window: float, keep_seconds: float, max_members: int
    ) -> None:
        """Create a store as `Store` describes."""
        self.name, self.keep_seconds = f"{prefix}:{kind}", keep_seconds
        self.ttl = keys.ttl(keep_seconds)
        self._window, self._site_keep_seconds = window, keep_seconds
        self._seen_key = keys.seen(prefix, kind)
        self._writers_key = keys.writers(prefix, kind)
        self._script = RecordScript(
            self.RECORD_SCRIPT,
            prefix,
            kind,
            window=window,
            keep_seconds=keep_seconds,
            max_members=max_members,
        )
        self._departures = Departures(prefix, kind, window, keep_seconds, max_members)
        self._sets_of_times = [self._seen_key, self._departures.gone_key]
        """The sorted sets with last-seen times."""
        self._further_departure_keys: tuple[str, ...] = ()
        self._sets_of_moments = [
            self._seen_key,
            self._departures.left_key,
            self._departures.forgotten_key,
        ]
        """The sorted sets whose moments must not be in the future."""

    def record(
        self,
        sightings: Sequence[Stamped],
        write: Write | None = None,
        moves: Mapping[str, Move] = NO_MOVES,
    ) -> Plan[Recorded]:
        commands = self._record_commands(sightings, write, moves)
        return combine_replies((yield from send_record_commands(commands, self._ids_in)))

    def _record_commands(
        self, sightings: Sequence[Stamped], write: Write | None, moves: Mapping[str, Move]
    ) -> list[Command]:
        return self._script.commands_with_times(self._seen_key, sightings, write)

    def _ids_in(self, command: Command) -> Iterable[str]:
        """Return the ids in a record command."""
        return ids_with_times(command)

    def last_write(self, process: str) -> Plan[float | None]:
        exists, (members_marker, moment) = yield Batch(
            (("EXISTS", self._seen_key), ("ZMSCORE", self._writers_key, "", process))
        )
        is_evicted = members_marker is not None and not exists
        return None if is_evicted else score(moment)

    def touch(self, id: str, now: float, latest: float) -> Plan[None]:
        stamped = id, to_microseconds(now), to_microseconds(latest)
        (record,) = self._record_commands([stamped], None, NO_MOVES)
        undo = self._departures.undo(id)
        _, (_, full, *_) = yield Batch((undo, with_hashes(record, [id])), atomic=True)
        raise_if_full(self.name, full)

    def first_seen_after(self, moment: float) -> Plan[float | None]:
        first = (_after(moment), "+inf", "BYSCORE", "LIMIT", 0, 1, "WITHSCORES")
        (reply,) = yield Batch((("ZRANGE", self._seen_key, *first),))
        return members_with_scores(reply)[0][1] if reply else None

    def count(self, now: float, window: float) -> Plan[int]:
        (count,) = yield Batch((("ZCOUNT", self._seen_key, _after(now - window), "+inf"),))
        return int(count)

    def online(
        self, now: float, window: float, limit: int | None, before: Sighting | None
    ) -> Plan[list[Sighting]]:
        sightings = yield from self._pages(now - window, limit, before)
        if limit is None and len(sightings) > PAGE:
            # An id that was seen again between two pages has moved up, out of the pages that were
            # still to be read. So read once more the sightings newer than the first page.
            newest = sightings[0].last_seen
            listed = {sighting.id for sighting in sightings}
            newer = yield from self._pages(newest.timestamp() if newest else now, None, None)
            sightings = [sighting for sighting in newer if sighting.id not in listed] + sightings
        return sightings

    def _pages(
        self, cut: float, limit: int | None, before: Sighting | None
    ) -> Plan[list[Sighting]]:
        """Return the sightings later than `cut`, in as many round trips as there are pages."""
        sightings: list[Sighting] = []
        while limit is None or len(sightings) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(sightings))
            last = sightings[-1] if sightings else before
            page = yield from self._page(cut, size, last)
            if last is not None and page and page[-1] == last:
                # Another program wrote a time that is no whole microsecond: a datetime cannot
                # represent it, so the same page would be read for ever.
                break
            sightings += page
            if len(page) < size:
                break
        return sightings

    def _page(self, cut: float, size: int, before: Sighting | None) -> Plan[list[Sighting]]:
        """Return up to `size` sightings after `before`; of equal times, the greater id is first."""
        start: float | str = "+inf"
        previous: tuple[float, bytes] | None = None
        if before is not None and before.last_seen is not None:
            start = before.last_seen.timestamp()
            previous = start, before.id.encode()
        count = size if previous is None else PAGE
        page: list[tuple[str, float]] = []
        offset = 0
        while len(page) < size:
            order = ("BYSCORE", "REV", "LIMIT", offset, count, "WITHSCORES")
            command: Command = ("ZRANGE", self._seen_key, start, _after(cut), *order)
            (reply,) = yield Batch((command,))
            members = members_with_scores(reply)
            # Skip the members with the time of `before` that the previous page contained.
            page += [
                (id, time)
                for id, time in members
                if previous is None or (time, id.encode()) < previous
            ]
            offset += len(members)
            if len(members) < count:
                break
        return [Sighting(id, moment_of(time)) for id, time in page[:size]]

    def online_among(self, ids: list[str], now: float, window: float) -> Plan[list[Sighting]]:
        (scores,) = yield Batch((("ZMSCORE", self._seen_key, *ids),))
        times = [
            (id, float(time)) for id, time in zip(ids, scores, strict=True) if time is not None
        ]
        return [Sighting(id, moment_of(time)) for id, time in times if time > now - window]

    def online_friends(self, friends: str, now: float, window: float) -> Plan[list[Sighting]]:
        # The weight 0 ignores the scores of the friends, and MAX, unlike SUM, accepts an infinite
        # score.
        weights = ("WEIGHTS", 1, 0, "AGGREGATE", "MAX", "WITHSCORES")
        (reply,) = yield Batch((("ZINTER", 2, self._seen_key, friends, *weights),))
        members = members_with_scores(reply)
        online = sorted(((time, id) for id, time in members if time > now - window), reverse=True)
        return [Sighting(id, moment_of(time)) for time, id in online]

    def last_seen(self, ids: Sequence[str], now: float) -> Plan[dict[str, float]]:
        parts = list(chunks(ids))
        sets = self._sets_of_times
        replies = yield Batch(tuple(("ZMSCORE", key, *part) for key in sets for part in parts))
        newest: dict[str, float] = {}
        # An id that came back is in several sets for a moment: the newest time counts.
        for part, scores in zip(parts * len(sets), replies, strict=True):
            for id, moment in zip(part, map(score, scores), strict=True):
                if moment is not None and moment > newest.get(id, now - self.keep_seconds):
                    newest[id] = moment
        return newest

    def depart(
        self, id: str, moment: float, *, is_server_time: bool = True, erase: bool = False
    ) -> Plan[float]:
        departures = self._departures
        command = departures.depart(
            self.DEPART_SCRIPT,
            (
                self._seen_key,
                departures.left_key,
                departures.forgotten_key,
                departures.gone_key,
                self._writers_key,
                *self._further_departure_keys,
            ),
            id,
            moment,
            is_server_time=is_server_time,
            erase=erase,
        )
        (departed_at,) = yield Batch((command,))
        return float(departed_at)

    def keys(self, now: float) -> list[str]:
        return [self._seen_key]

    def keep_longer(self, seconds: float) -> None:
        self._site_keep_seconds = max(self.keep_seconds, seconds)
        self._script.lifetime = keys.ttl(self._site_keep_seconds)

    def clean_up(self, now: float, *, is_server_time: bool = True) -> Plan[bool]:
        departures = self._departures
        may_have_future = False
        if is_server_time:
            may_have_future = yield from clamp_future_scores(self._sets_of_moments, now)
        # Remove by score, never by rank: if two workers do this at once, the ranks have changed
        # for the second, which would remove ids that are online.
        cut = self._clean_before(now)
        stale = ("ZRANGE", self._seen_key, "-inf", cut, "BYSCORE")
        (last,) = yield Batch(((*stale, "LIMIT", PAGE - 1, 1, "WITHSCORES"),))
        page_end = members_with_scores(last)[0][1] if last else cut
        silent_since = now - self._window - 2 * keys.SLACK
        yield Batch(
            (
                ("ZREMRANGEBYSCORE", departures.gone_key, "-inf", cut),
                ("ZREMRANGEBYSCORE", self._writers_key, "-inf", silent_since),
                ("ZREMRANGEBYSCORE", self._seen_key, "-inf", page_end),
            )
        )
        return bool(last) or may_have_future

    def _clean_before(self, now: float) -> float:
        """Return the moment up to which last-seen times are removed."""
        return now - self._site_keep_seconds


def _after(moment: float) -> str:
    """Return the exclusive lower bound of a range of scores."""
    return f"({moment!r}"
