"""What threads report in any order, through writes that fail, is what happened in order."""

import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from presence_middleware import Presence
from presence_middleware.connections.drivers import Driver
from presence_middleware.errors import PresenceUnavailable
from presence_middleware.recorder import Recorder
from presence_middleware.stores import Act, Write
from tests.support.backends import Server
from tests.support.model import SECOND, Limits, Model
from tests.support.timed_site import NOON, WINDOW, Clock, settings

SEEN, GOODBYE, LEFT, ERASED = Act.SEEN, Act.GOODBYE, Act.LEFT, Act.ERASED
PEOPLE = ["ann", "bob", "cid"]
GRACE = 75  # seconds
WRITES = ["", "", "write", "fails before", "fails after", "loses all"]
Deed = tuple[str, Act, int, str]
"""Who, what, how many seconds ago, and whether it is written then.

Two acts of a person never have the same moment. Of two goodbyes the first counts, or the second if
they are written together, so a person says one at most.
"""
DEEDS = st.lists(
    st.tuples(
        st.sampled_from(PEOPLE),
        st.sampled_from([SEEN, SEEN, GOODBYE, LEFT, ERASED]),
        st.integers(0, 300),
        st.sampled_from(WRITES),
    ),
    max_size=8,
    unique_by=(
        lambda deed: (deed[0], deed[2]),
        lambda deed: (deed[0], deed[2] if deed[1] is not GOODBYE else "goodbye"),
    ),
)


class Outage:
    """Redis fails before it has written, or after."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.how, run = "", Driver.run

        def failing(driver: Driver, *arguments: Any) -> Any:
            how, self.how = self.how, ""
            if how == "fails before":
                raise PresenceUnavailable(how)
            result = run(driver, *arguments)
            if how == "fails after":
                raise PresenceUnavailable(how)
            return result

        patch.setattr(Driver, "run", failing)


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    return Outage(monkeypatch)


def in_order(deeds: list[Deed]) -> Model:
    """What a store holds to which each deed was written by itself, in the order of time."""
    window = int(WINDOW) * SECOND
    model = Model(Limits(window, window, 1000, int(WINDOW - GRACE) * SECOND))
    for id, act, ago, _ in sorted(deeds, key=lambda deed: -deed[2]):
        at = int(NOON - ago) * SECOND
        seen = [(id, at, at, None)] if act is SEEN else []
        departures = [] if act is SEEN else [(act, id, at, None)]
        model.write(seen, departures, Write("A", int(NOON) * SECOND))
    return model


def is_said_by_somebody(deeds: list[Deed]) -> bool:
    """Whether no goodbye follows a logout. It shows that somebody was there, if it comes first."""
    for id, act, ago, _ in deeds:
        before = [(at, each) for who, each, at, _ in deeds if who == id and at > ago]
        if act is GOODBYE and before and min(before)[1] is not SEEN:
            return False
    return True


def lost_again(*acts: Act, how: str) -> list[Deed]:
    """Acts of somebody who was there, after which the server loses all data."""
    hows = [*[how] * (len(acts) - 1), "loses all"]
    deeds = [("ann", act, 9 - n, how) for n, (act, how) in enumerate(zip(acts, hows, strict=True))]
    return [("ann", SEEN, 10, "write"), *deeds]


def test_what_was_reported_is_what_happened(valkey: Server, outage: Outage) -> None:
    @examples(
        max_examples=150,
        suppress_health_check=list(HealthCheck),
        # To look for the shortest history that fails takes minutes.
        phases=(Phase.explicit, Phase.generate),
        database=None,
    )
    @given(deeds=DEEDS.filter(is_said_by_somebody))
    # Departures are written again, whether they were written before.
    @example(lost_again(GOODBYE, how=""))
    @example(lost_again(GOODBYE, SEEN, how=""))
    @example(lost_again(GOODBYE, SEEN, how="write"))
    @example(lost_again(GOODBYE, LEFT, how=""))
    @example(lost_again(GOODBYE, LEFT, how="write"))
    @example(lost_again(LEFT, GOODBYE, how=""))  # the page of the logout is closed as well
    @example(lost_again(LEFT, GOODBYE, how="write"))
    # A request of before the logout is refused, and is not written again.
    @example(
        [*lost_again(LEFT, how="")[:1], ("ann", LEFT, 0, "write"), ("ann", SEEN, 5, "loses all")]
    )
    # A goodbye that was written before its sighting is repeated with it.
    @example([("ann", GOODBYE, 3, "write"), ("ann", SEEN, 4, "write")])
    def check(deeds: list[Deed]) -> None:
        site = settings(valkey.url, f"t{uuid.uuid4().hex[:12]}", pulse_path="/pulse")
        clock = Clock(NOON)
        recorder = Recorder(site, background=False, clock=clock)
        for id, act, ago, how in deeds:
            recorder.record(("user", id), NOON - ago, NOON - ago, act)
            if how == "loses all":
                outage.how = ""
                assert recorder.flush()
                recorder.backend.driver.connect().flushdb()
                recorder.health.lost_connection()  # so that it looks whether its data is there
                recorder.run_once()
            elif how:
                outage.how = how.removeprefix("write")
                recorder.flush()
        outage.how = ""
        assert recorder.flush(), recorder.stats()
        expected, presence = in_order(deeds), Presence(site, clock=clock)
        times = expected.last_seen(int(NOON) * SECOND)
        for id in PEOPLE:
            last_seen = presence.last_seen(id)
            seen = 0 if last_seen is None else round(last_seen.timestamp() * SECOND)
            # What is reported after a later logout is refused, and its time is lost.
            has_left = any(who == id and act in (LEFT, ERASED) for who, act, _, _ in deeds)
            assert seen <= times.get(id, 0) if has_left else seen == times.get(id, 0), id
        ends = {lasts - ago for _, _, ago, _ in deeds for lasts in (GRACE, int(WINDOW))}
        for later in sorted({0, *(end + n for end in ends if end > 0 for n in (-1, 1))}):
            clock.now = NOON + later
            online = sorted(visitor.id for visitor in presence.online())
            assert online == sorted(expected.online(int(clock.now) * SECOND, int(WINDOW) * SECOND))
        recorder.close()

    check()
