"""Made-up traffic through a wrapped app: the stores match a brute-force count."""

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from presence_middleware import Presence
from presence_middleware.wsgi import PresenceMiddleware
from tests.support.backends import Server
from tests.support.reference import Reference
from tests.support.timed_site import Clock, get, opened, settings


def check(presence: Presence, reference: Reference, store: str, window: float, now: float) -> None:
    """Ask everything at `now`, which must be no earlier than any sighting so far."""
    newest, touched = reference.online(now, window), reference.touched(now, window)
    exactly = {id for _, id in newest}
    count = presence.count(window=window)
    if store == "hyperloglog":
        assert count == pytest.approx(len(touched), rel=0.03, abs=5), (now, window)
        return
    listed = presence.online(limit=None, window=window)
    if store == "sorted-set":
        times = [(who.last_seen.timestamp(), who.id) for who in listed if who.last_seen]
        assert times == newest, (now, window)
    else:
        assert exactly <= touched <= {id for _, id in reference.online(now, window + 60.000001)}
        assert [who.id for who in listed] == sorted(touched), (now, window)
    expected = exactly if store == "sorted-set" else touched
    assert count == len(expected), (now, window)
    ids = reference.ids()[::9]
    among = presence.online_among(ids, window=window) if ids else []
    assert among == [id for id in ids if id in expected]


def hello(environ: dict[str, Any], start_response: Any) -> list[bytes]:
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


def test_windows_slide_over_minutes_midnight_and_quiet_hours(
    valkey: Server, prefix: str, store: str
) -> None:
    rng, reference, clock = random.Random(1), Reference(), Clock(0)
    given = settings(valkey.url, prefix, store=store, identity="user=header:x-user", window=3600)
    app = PresenceMiddleware(hello, settings=given, clock=clock)
    presence, seen = Presence(given, clock=clock), _trace(rng)
    coming = iter([*seen, (float("inf"), "")])
    at, id = next(coming)
    for moment in _checkpoints(rng, seen):
        while at <= moment:
            clock.now = at
            get(app, HTTP_X_USER=id)
            reference.saw(id, at)
            at, id = next(coming)
        clock.now = moment
        assert app.recorder.flush(), app.recorder.stats()
        for window in rng.sample(LENGTHS, 2):
            check(presence, reference, store, window, moment)
    assert at == float("inf"), "checkpoints go on to the end"
    app.recorder.close()


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
