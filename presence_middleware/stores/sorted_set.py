"""The default store: a sorted set of ids by last-seen time. Plans only, no I/O."""

from collections.abc import Sequence

from . import keys
from .departures import Departures
from .future import clamp_future_scores
from .plan import Batch, Plan, score, scored
from .record import (
    Recorded,
    RecordScript,
    Stamped,
    Write,
    microseconds,
    refuse_if_full,
    scored_ids,
    send,
    total,
    with_hashes,
)
from .store import Sighting, moment_of

PAGE = 1000  # members a reply, and removed by one command: about 1 ms of server time


class SortedSet:
    """Exact, newest first, and remembers `keep` seconds; about 100 bytes a member."""

    def __init__(self, prefix: str, kind: str, window: float, keep: float, most: int) -> None:
        self.name, self.keep, self.ttl = f"{prefix}:{kind}", keep, keys.ttl(keep)
        self._window, self._kept = window, keep
        self._seen = keys.seen(prefix, kind)
        self._writers = keys.writers(prefix, kind)
        self._script = RecordScript("sorted_set", prefix, kind, window=window, keep=keep, most=most)
        self._departures = Departures(prefix, kind, window, keep, most)

    def record(self, sightings: Sequence[Stamped], write: Write | None = None) -> Plan[Recorded]:
        return total(
            (yield from send(self._script.scored(self._seen, sightings, write), scored_ids))
        )

    def last_write(self, process: str) -> Plan[float | None]:
        had_members, moment = ("ZSCORE", self._writers, ""), ("ZSCORE", self._writers, process)
        is_there, had, wrote = yield Batch((("EXISTS", self._seen), had_members, moment))
        is_evicted = had is not None and not is_there
        return None if is_evicted else score(wrote)

    def touch(self, id: str, now: float) -> Plan[None]:
        moment = microseconds(now)
        (record,) = self._script.scored(self._seen, [(id, moment, moment)], None)
        undo = self._departures.undo(id)
        _, (_, full, _) = yield Batch((undo, with_hashes(record, [id])), atomic=True)
        refuse_if_full(self.name, full)

    def count(self, now: float, window: float) -> Plan[int]:
        (count,) = yield Batch((("ZCOUNT", self._seen, _after(now - window), "+inf"),))
        return int(count)

    def online(
        self, now: float, window: float, limit: int | None, before: Sighting | None
    ) -> Plan[list[Sighting]]:
        found = yield from self._pages(now - window, limit, before)
        if limit is None and len(found) > PAGE:
            # Who was seen again between two pages has moved up, past the one being read.
            newest = found[0].last_seen
            listed = {sighting.id for sighting in found}
            again = yield from self._pages(newest.timestamp() if newest else now, None, None)
            found = [sighting for sighting in again if sighting.id not in listed] + found
        return found

    def _pages(
        self, cut: float, limit: int | None, before: Sighting | None
    ) -> Plan[list[Sighting]]:
        found: list[Sighting] = []
        while limit is None or len(found) < limit:
            wanted = PAGE if limit is None else min(PAGE, limit - len(found))
            last = found[-1] if found else before
            page = yield from self._page(cut, wanted, last)
            if last is not None and page and page[-1] == last:
                break  # times that are no whole microseconds are not ours: there is no end to them
            found += page
            if len(page) < wanted:
                break
        return found

    def _page(self, cut: float, wanted: int, before: Sighting | None) -> Plan[list[Sighting]]:
        """Up to `wanted` sightings after `before`; of equal times, the greater id comes first."""
        start, skipped = _start(before)
        fresh: list[tuple[str, float]] = []
        offset = 0
        while len(fresh) < wanted:
            limits = ("LIMIT", offset, PAGE if skipped else wanted)
            (reply,) = yield Batch(
                (
                    (
                        "ZRANGE",
                        self._seen,
                        start,
                        _after(cut),
                        "BYSCORE",
                        "REV",
                        *limits,
                        "WITHSCORES",
                    ),
                )
            )
            members = scored(reply)
            fresh += [(id, at) for id, at in members if not skipped or (at, id.encode()) < skipped]
            offset += len(members)
            if len(members) < limits[2]:
                break
        return [Sighting(id, moment_of(at)) for id, at in fresh[:wanted]]

    def online_among(self, ids: list[str], now: float, window: float) -> Plan[list[Sighting]]:
        (scores,) = yield Batch((("ZMSCORE", self._seen, *ids),))
        seen = [(id, float(at)) for id, at in zip(ids, scores, strict=True) if at is not None]
        return [Sighting(id, moment_of(at)) for id, at in seen if at > now - window]

    def online_friends(self, friends: str, now: float, window: float) -> Plan[list[Sighting]]:
        # A friend's own score weighs nothing, and MAX, unlike SUM, bears an infinite one.
        weights = ("WEIGHTS", 1, 0, "AGGREGATE", "MAX", "WITHSCORES")
        (reply,) = yield Batch((("ZINTER", 2, self._seen, friends, *weights),))
        online = [(at, id) for id, at in scored(reply) if at > now - window]
        return [Sighting(id, moment_of(at)) for at, id in sorted(online, reverse=True)]

    def last_seen(self, id: str, now: float) -> Plan[float | None]:
        replies = yield Batch((("ZSCORE", self._seen, id), self._departures.last_seen(id)))
        moments = [moment for moment in map(score, replies) if moment is not None]
        newest = max(moments, default=None)
        return None if newest is None or newest <= now - self.keep else newest

    def depart(
        self, id: str, moment: float, *, is_server_time: bool = True, erase: bool = False
    ) -> Plan[float]:
        departures = self._departures
        names = (
            *(self._seen, departures.left, departures.forgotten, departures.gone),
            self._writers,
        )
        script = "depart_sorted_set"
        command = departures.depart(
            script, names, id, moment, is_server_time=is_server_time, erase=erase
        )
        (at,) = yield Batch((command,))
        return float(at)

    def keys(self, now: float) -> list[str]:
        return [self._seen]

    def keep_longer(self, seconds: float) -> None:
        self._kept = max(self.keep, seconds)
        self._script.lifetime = keys.ttl(self._kept)

    def clean_up(self, now: float, *, is_server_time: bool = True) -> Plan[bool]:
        are_ahead = False
        if is_server_time:
            left = self._departures
            names = (self._seen, left.left, left.forgotten)
            are_ahead = yield from clamp_future_scores(names, now)
        # By score, never by rank: when two workers do this at once, ranks have moved for the
        # second, and it would remove people who are online.
        stale = ("ZRANGE", self._seen, "-inf", now - self._kept, "BYSCORE")
        (last,) = yield Batch(((*stale, "LIMIT", PAGE - 1, 1, "WITHSCORES"),))
        limit = scored(last)[0][1] if last else now - self._kept
        silent = now - self._window - 2 * keys.SLACK
        yield Batch(
            (
                ("ZREMRANGEBYSCORE", self._departures.gone, "-inf", now - self._kept),
                ("ZREMRANGEBYSCORE", self._writers, "-inf", silent),
                ("ZREMRANGEBYSCORE", self._seen, "-inf", limit),
            )
        )
        return bool(last) or are_ahead


def _after(moment: float) -> str:
    return f"({moment!r}"


def _start(before: Sighting | None) -> tuple[float | str, tuple[float, bytes] | None]:
    """Where a page starts, and the (score, id) that it must stay below."""
    if before is None or before.last_seen is None:
        return "+inf", None
    at = before.last_seen.timestamp()
    return at, (at, before.id.encode())
