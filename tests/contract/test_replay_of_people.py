"""What threads report in any order, through writes that fail, is what happened in order."""

import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
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

PEOPLE = st.sampled_from(["ann", "bob", "cid"])
ACTS = st.sampled_from([Act.SEEN, Act.SEEN, Act.GOODBYE, Act.LEFT, Act.ERASED])
GRACE = 75  # seconds
# Who, what, how many seconds ago. Two acts of a person never have the same moment. Of two goodbyes
# the first counts, or the second if they are written together, so a person says one at most.
DEEDS = st.lists(
    st.tuples(PEOPLE, ACTS, st.integers(0, 300)),
    max_size=8,
    unique_by=(
        lambda deed: (deed[0], deed[2]),
        lambda deed: (deed[0], deed[2] if deed[1] is not Act.GOODBYE else "goodbye"),
    ),
)
WRITES = st.sampled_from(["", "", "write", "fails before", "fails after", "loses all"])


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


def in_order(deeds: list[tuple[str, Act, int]]) -> Model:
    """What a store holds to which each deed was written by itself, in the order of time."""
    window = int(WINDOW) * SECOND
    model = Model(Limits(window, window, 1000, int(WINDOW - GRACE) * SECOND))
    for id, act, ago in sorted(deeds, key=lambda deed: -deed[2]):
        at = int(NOON - ago) * SECOND
        seen = [(id, at, at, None)] if act is Act.SEEN else []
        departures = [] if act is Act.SEEN else [(act, id, at, None)]
        model.write(seen, departures, Write("A", int(NOON) * SECOND))
    return model


def is_said_by_somebody(deeds: list[tuple[str, Act, int]]) -> bool:
    """Whether no goodbye follows a logout. It shows that somebody was there, if it comes first."""
    for id, act, ago in deeds:
        before = [(each, at) for who, each, at in deeds if who == id and at > ago]
        if (
            act is Act.GOODBYE
            and before
            and min(before, key=lambda deed: deed[1])[0] is not Act.SEEN
        ):
            return False
    return True


def test_what_was_reported_is_what_happened(valkey: Server, outage: Outage) -> None:
    @examples(
        max_examples=150,
        suppress_health_check=list(HealthCheck),
        # To look for the shortest history that fails takes minutes.
        phases=(Phase.explicit, Phase.generate),
        database=None,
    )
    @given(deeds=DEEDS.filter(is_said_by_somebody), data=st.data())
    def check(deeds: list[tuple[str, Act, int]], data: st.DataObject) -> None:
        prefix = f"t{uuid.uuid4().hex[:12]}"
        site = settings(valkey.url, prefix, pulse_path="/pulse")
        clock = Clock(NOON)
        recorder = Recorder(site, background=False, clock=clock)
        for id, act, ago in data.draw(st.permutations(deeds)):
            recorder.record(("user", id), NOON - ago, NOON - ago, act)
            how = data.draw(WRITES)
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
        for id in ("ann", "bob", "cid"):
            # What is reported after a later logout is refused, and its time is lost.
            seen = presence.last_seen(id)
            assert seen is None or seen.timestamp() * SECOND <= times.get(id, 0), id
        for later in (0, 30, GRACE, 200, 400):
            clock.now = NOON + later
            online = sorted(visitor.id for visitor in presence.online())
            assert online == sorted(expected.online(int(clock.now) * SECOND, int(WINDOW) * SECOND))
        recorder.close()

    check()
