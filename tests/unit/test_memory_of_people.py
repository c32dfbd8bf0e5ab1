"""Whom a process knows beyond the people that it has room for."""

from typing import cast

import pytest

from presence_middleware.people import People
from presence_middleware.rooms import Room
from presence_middleware.stores import Act, Store
from tests.support.memory import traced

WINDOW, GRACE = 600.0, 75.0
LIMIT = 50
ROOM = 4 * LIMIT


def guests(first: int, number: int) -> list[tuple[str, str]]:
    return [("guest", f"guest {first + each}") for each in range(number)]


def people(*guests: tuple[str, str]) -> People:
    made = People(LIMIT, WINDOW, GRACE)
    made.turn(0.0)
    for guest in guests:
        made.note(guest, 1.0, 1.0)
    return made


def test_guests_are_known_beyond_the_limit_until_the_period_after_theirs_ends() -> None:
    came = guests(0, ROOM - LIMIT)
    known = people(*came)
    for period in (1, 2, 3):
        assert all(known.knows(guest) for guest in came) is (period < 3)
        for each in known.take(LIMIT):
            known.written([each], (), 0)
        known.turn(period * WINDOW)


def test_a_sighting_that_was_refused_is_not_sent_again_after_a_loss() -> None:
    known, ann = people(), ("user", "ann")
    known.note(ann, 5.0, 1.0)
    (taken,) = known.take(LIMIT)
    taken.person.id, taken.person.shard = "ann", (shard := cast(Store, object()))
    known.written([taken], {"ann"}, 0)
    known.lost(shard, 0.0)
    assert known.is_empty
    known.note(ann, 7.0, 6.0)  # and in again
    assert not known.is_empty


def test_few_others_are_taken_for_known() -> None:
    known = people(*guests(0, ROOM - LIMIT))
    assert sum(map(known.knows, guests(ROOM, 2000))) < 10


def test_with_more_guests_than_there_is_room_for_everybody_is_known() -> None:
    assert all(map(people(*guests(0, 2 * ROOM)).knows, guests(3 * ROOM, 1000)))


def test_however_many_guests_come_they_take_a_bounded_share_of_memory() -> None:
    known = people(*guests(0, ROOM))
    with traced() as held:
        for guest in guests(ROOM, 20 * ROOM):
            known.note(guest, 1.0, 1.0)
        assert held() < 20_000
    assert known.knows(("guest", "guest 0"))


def test_a_person_who_comes_again_and_again_takes_no_further_room() -> None:
    known = people(*guests(0, 2 * LIMIT))
    for moment in range(2 * ROOM):
        known.note(("guest", "a regular"), float(moment), float(moment))
    assert sum(map(known.knows, guests(ROOM, 1000))) < 10


def test_a_bounded_number_of_departures_waits() -> None:
    known = people()
    for number in range(10 * LIMIT):
        known.note(("user", f"user {number}"), 2.0, 2.0, Act.LEFT)
    assert len(known) == 2 * LIMIT


def test_a_request_counts_though_an_older_connection_was_seen_just_after_it() -> None:
    """The server may refuse the connection, because its user logged out since it was opened."""
    ann = ("user", "ann")
    known = people()
    known.note(ann, 10.0, 0.0)  # a connection, opened at 0
    (taken,) = known.take(LIMIT)
    known.note(ann, 9.9, 9.9)  # a request, reported late
    taken.person.id = "ann"
    known.written([taken], {"ann"}, 0)
    (again,) = known.take(LIMIT)
    assert again.arrival == 9.9
    known.written([again], (), 0)
    assert (known.flushed, known.pending, known.dropped["left"]) == (1, 0, 1)


@pytest.mark.parametrize("acts", [(Act.LEFT, Act.ERASED), (Act.ERASED, Act.LEFT)])
def test_an_erasure_stays_one_in_any_order_with_a_logout(acts: tuple[Act, Act]) -> None:
    for moments in ((20.0, 21.0), (21.0, 20.0), (20.0, 20.0)):
        known = people()
        for act, moment in zip(acts, moments, strict=True):
            known.note(("user", "ann"), moment, moment, act)
        (taken,) = known.take(LIMIT)
        (erased, *left) = [(each.act, each.at) for each in taken.departures]
        is_in_order = acts[0] is Act.ERASED and moments[0] < moments[1]
        assert erased == (Act.ERASED, 20.0 if is_in_order else max(moments))
        assert left == [(Act.LEFT, 21.0)] * is_in_order


def test_after_a_loss_those_wait_again_of_whom_something_is_lost() -> None:
    known, shard = people(("user", "before")), object()
    known.note(("user", "after"), 20.0, 20.0)
    known.note(("user", "gone"), 20.0, 20.0, Act.LEFT)
    taken = known.take(LIMIT)
    for each in taken:
        each.person.shard = cast(Store, shard)
        for departure in each.departures:
            departure.moment = 20_000_000
    known.written(taken, (), 0)
    known.lost(cast(Store, shard), 10.0)
    assert len(known) == 2
    assert {each.person.who[1] for each in known.take(LIMIT)} == {"after", "gone"}


def test_after_a_loss_whoever_waits_already_enters_their_room_again() -> None:
    known, shard, room = people(), cast(Store, object()), Room(7, 20.0)
    known.note(("user", "ann"), 20.0, 20.0, room=room)
    (taken,) = known.take(LIMIT)
    taken.person.shard = shard
    known.written([taken], (), 0)
    known.note(("user", "ann"), 30.0, 30.0)
    known.lost(shard, 10.0)
    (again,) = known.take(LIMIT)
    assert (again.seen, again.room, known.pending) == (30.0, room, 1)


@pytest.mark.parametrize(
    ("first", "then", "last"),
    [(Room(7, 1.0), Room(8, 2.0), 8), (Room(8, 2.0), Room(7, 1.0), 8), (None, Room(7, 1.0), 7)],
)
def test_the_room_entered_last_is_written(first: Room | None, then: Room, last: int) -> None:
    """The second request is reported during a write. An older one has taken longer."""
    known = people()
    known.note(("user", "ann"), 2.0, 2.0, room=first)
    taken = known.take(LIMIT)
    known.note(("user", "ann"), then.since, then.since, room=then)
    known.written(taken, (), 0)
    taken += known.take(LIMIT)
    assert [each.room.number for each in taken if each.room][-1] == last


def test_a_logout_after_one_that_a_reader_has_written_is_sent_with_its_own_moment() -> None:
    known = people()
    known.note(("user", "ann"), 30.0, 30.0, Act.LEFT)
    known.departed(("user", "ann"), Act.LEFT, 20.0, 20_000_000)  # reported late
    ((departure,),) = (each.departures for each in known.take(LIMIT))
    assert (departure.at, departure.moment) == (30.0, None)


def test_an_erasure_during_a_write_that_fails_leaves_nobody_pending_for_ever() -> None:
    ann = ("user", "ann")
    known = people()
    known.note(ann, 10.0, 0.0)  # a connection, opened at 0
    known.take(LIMIT)
    known.note(ann, 9.9, 9.9)  # a request, reported late
    known.note(ann, 11.0, 11.0, Act.ERASED)
    known.restore()
    known.written(known.take(LIMIT), (), 0)
    assert known.is_empty
    assert known.pending == 0
