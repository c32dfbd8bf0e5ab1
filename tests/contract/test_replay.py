"""Real and made-up traffic through a wrapped app: the stores match a brute-force count."""

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from presence_middleware import Presence, Settings
from presence_middleware.stores import STORES
from presence_middleware.wsgi import PresenceMiddleware
from tests.support.backends import Server
from tests.support.reference import Reference
from tests.support.timed_site import Clock, get, opened, settings

EVERY_STORE = pytest.mark.parametrize("store", list(STORES))


class Replay:
    """A wrapped app whose clock is that of its requests, and the sightings that it must know of."""

    def __init__(self, settings: Settings, kind: str) -> None:
        self.clock, self.reference = Clock(0), Reference()
        self.app = PresenceMiddleware(_hello, settings=settings, clock=self.clock)
        self.store = settings.store_of(kind)
        self._presence = Presence(settings, clock=self.clock)
        self._kind, self._raw = kind, not any(link.hashed for link in settings.identity)

    def request(self, at: float, id: str, environ: dict[str, str]) -> None:
        self.clock.now = at
        get(self.app, **environ)
        self.reference.saw(id, at)

    def check(self, now: float, *windows: float) -> None:
        """Asks everything at `now`, which must be no earlier than any request so far."""
        self.clock.now = now
        assert self.app.recorder.flush(), self.app.recorder.stats()
        for window in windows:
            getattr(self, "_check_" + self.store.replace("-", "_"))(now, window)

    def _check_sorted_set(self, now: float, window: float) -> None:
        expected = self.reference.online(now, window)
        assert self._count(window) == len(expected), (now, window)
        if self._raw:
            seen = self._presence.online(self._kind, limit=None, window=window)
            times = [(who.last_seen.timestamp(), who.id) for who in seen if who.last_seen]
            assert times == expected, (now, window)
            self._check_among(window, {id for _, id in expected})

    def _check_minute_sets(self, now: float, window: float) -> None:
        expected = self.reference.touched(now, window)
        assert {id for _, id in self.reference.online(now, window)} <= expected
        assert expected <= {id for _, id in self.reference.online(now, window + 60.000001)}
        assert self._count(window) == len(expected), (now, window)
        if self._raw:
            seen = self._presence.online(self._kind, limit=None, window=window)
            assert [who.id for who in seen] == sorted(expected), (now, window)
            self._check_among(window, expected)

    def _check_hyperloglog(self, now: float, window: float) -> None:
        expected = len(self.reference.touched(now, window))
        assert self._count(window) == pytest.approx(expected, rel=0.03, abs=5), (now, window)

    def _check_among(self, window: float, expected: set[str]) -> None:
        if ids := self.reference.ids()[::9]:
            among = self._presence.online_among(ids, self._kind, window=window)
            assert among == [id for id in ids if id in expected]

    def _count(self, window: float) -> int:
        return self._presence.count(self._kind, window=window)


def _hello(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


DAY = datetime(2026, 1, 6, tzinfo=UTC).timestamp()  # a midnight
BUSY = [(DAY - 9000, DAY - 7800), (DAY - 700, DAY + 500), (DAY + 9000, DAY + 9600)]
LENGTHS = (600.0, 61.0, 90.5, 3600.0, 1234.567)


def _trace(rng: random.Random) -> list[tuple[float, str]]:
    """Sightings in three busy spells with hours of quiet between; many on the edge of a minute."""
    seen = []
    for start, stop in BUSY:
        for _ in range(300):
            at = round(rng.uniform(start, stop), 6)
            edge = at // 60 * 60
            at = rng.choice([at, at, at, edge, edge + 1e-6, edge + 59.999999])
            seen.append((round(at, 6), f"user{int(rng.paretovariate(0.6)) % 400}"))
    return sorted(seen)


def _checkpoints(rng: random.Random, seen: list[tuple[float, str]]) -> list[float]:
    """Edges of minutes and their neighbours, ends of windows, and moments in the quiet."""
    moments = {DAY - 1e-6, DAY, DAY + 1e-6, DAY + 5000}
    for start, stop in BUSY:
        for minute in range(int(start) // 60, int(stop) // 60 + 12, 2):
            moments |= {minute * 60 + offset for offset in (-1e-6, 0, 1e-6, 30.25)}
    for at, _ in rng.sample(seen, 20):
        moments |= {at + length for length in LENGTHS}
    return sorted(round(moment, 6) for moment in moments)


@EVERY_STORE
@pytest.mark.parametrize("seed", [1, 2])
def test_windows_slide_over_minutes_midnight_and_quiet_hours(
    valkey: Server, prefix: str, store: str, seed: int
) -> None:
    rng = random.Random(seed)
    identity = "user=header:x-user"
    replay = Replay(
        settings(valkey.url, prefix, store=store, identity=identity, window=3600), "user"
    )
    seen = _trace(rng)
    coming = iter([*seen, (float("inf"), "")])
    at, id = next(coming)
    for moment in _checkpoints(rng, seen):
        while at <= moment:
            replay.request(at, id, {"HTTP_X_USER": id})
            at, id = next(coming)
        replay.check(moment, *rng.sample(LENGTHS, 2))
    assert at == float("inf"), "checkpoints go on to the end"
    replay.app.recorder.close()


def test_a_hyperloglog_of_tens_of_thousands_is_within_three_per_cent(
    valkey: Server, prefix: str
) -> None:
    rng, reference = random.Random(3), Reference()
    with opened(settings(valkey.url, prefix, store="hyperloglog")) as site:
        start = site.clock.now
        for minute in range(12):
            site.clock.now = start + minute * 60
            ids = [f"guest{rng.randrange(40_000)}" for _ in range(4_000)]
            site.saw(*ids, kind="guest")
            for id in ids:
                reference.saw(id, site.clock.now)
            for window in (60, 330, 600):
                expected = len(reference.touched(site.clock.now, window))
                assert site.presence.count("guest", window=window) == pytest.approx(
                    expected, rel=0.03
                )
