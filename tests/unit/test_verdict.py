"""What a request comes to: the whole table, as somebody would fill it in by hand."""

import itertools

import pytest

from presence_middleware.identity.resolver import BY_LAYER, NOBODY, Found, Matcher
from presence_middleware.recorder.verdict import (
    LOGOUTS,
    Answer,
    Purpose,
    answer_of,
    earlier_login,
    verdict,
)
from presence_middleware.stores import Act


class Checked(Matcher):
    """Finds a user whom only an accepting response confirms."""

    is_checked = True


SHOWN: Found = ("user", "ann"), BY_LAYER
CHECKED: Found = ("user", "bob"), Checked()
BEFORE: Found = ("user", "eve"), BY_LAYER
CLAIMED: Found = ("user", "eve"), Checked()
ACTS: dict[str, dict[Found, object]] = {
    "-": dict.fromkeys((NOBODY, SHOWN, CHECKED)),
    "S": {(who, by): (Act.SEEN, who, by) for who, by in (SHOWN, CHECKED)},
    "G": {(who, by): (Act.GOODBYE, who, by) for who, by in (SHOWN, CHECKED)},
}
# By purpose, and by whether the app was asked to end a login: for each answer, the acts if the
# request shows at its end no user, a user, or a user whom only an accepting response confirms.
#                                  none accepted redirected refused failed
TABLE: dict[tuple[Purpose, Found], str] = {
    (Purpose.NO_VISIT, NOBODY): "--- --- --- --- ---",
    (Purpose.NO_VISIT, BEFORE): "--- --- --- --- ---",
    (Purpose.PAGE, NOBODY): "-S- -SS -S- -S- -S-",
    (Purpose.PAGE, BEFORE): "-S- -SS -S- -S- -S-",
    (Purpose.PULSE, NOBODY): "-S- -SS -S- -S- -S-",
    (Purpose.PULSE, BEFORE): "-S- -SS -S- -S- -S-",
    (Purpose.GOODBYE, NOBODY): "-G- -GG -G- -G- -G-",
    (Purpose.GOODBYE, BEFORE): "-G- -GG -G- -G- -G-",
    (Purpose.LOGOUT, NOBODY): "-S- -SS -S- -S- -S-",
    (Purpose.LOGOUT, BEFORE): "-S- LLL LLL -S- -S-",
    (Purpose.EXCLUDED_LOGOUT, NOBODY): "--- --- --- --- ---",
    (Purpose.EXCLUDED_LOGOUT, BEFORE): "--- LLL LLL --- ---",
    (Purpose.LOGOUT, CLAIMED): "-S- LLL -S- -S- -S-",
    (Purpose.EXCLUDED_LOGOUT, CLAIMED): "--- LLL --- --- ---",
}


def test_the_table_is_complete() -> None:
    asked = *itertools.product(Purpose, [NOBODY, BEFORE]), *itertools.product(LOGOUTS, [CLAIMED])
    assert set(TABLE) == set(asked)


@pytest.mark.parametrize(("purpose", "before"), list(TABLE))
def test_a_request_comes_to_what_the_table_says(purpose: Purpose, before: Found) -> None:
    shown = (NOBODY, SHOWN, CHECKED)
    found = [[verdict(purpose, answer, before, now) for now in shown] for answer in Answer]
    left = dict.fromkeys(shown, (Act.LEFT, *before))
    assert found == [
        [(left if act == "L" else ACTS[act])[now] for act, now in zip(row, shown, strict=True)]
        for row in TABLE[purpose, before].split()
    ]


def test_of_several_logins_that_of_the_earliest_rule_is_ended() -> None:
    first, second = Matcher(), Matcher()
    first.place, second.place = 0, 1
    ann, bob = ("user", "ann"), ("user", "bob")
    guest: Found = ("guest", "x"), first
    for found, login in (
        ([], NOBODY),
        ([NOBODY, guest], NOBODY),
        ([guest, (ann, second), guest], (ann, second)),
        ([(ann, second), (bob, first), (ann, second)], (bob, first)),
        ([(ann, first), (bob, first)], (ann, first)),
        ([(ann, first), (bob, BY_LAYER)], (bob, BY_LAYER)),
    ):
        known = NOBODY
        for each in found:
            known = earlier_login(known, each, {"user"})
        assert known == login, found


def test_each_status_says_something_about_the_login() -> None:
    said = {
        answer: [each for each in range(100, 600) if answer_of(each, "GET") is answer]
        for answer in Answer
    }
    accepted = [101, *range(200, 300), 304]
    assert answer_of(None, "GET") is Answer.NONE
    assert said == {
        Answer.NONE: [],
        Answer.ACCEPTED: accepted,
        Answer.REDIRECTED: [each for each in range(100, 400) if each not in accepted],
        Answer.REFUSED: [401, 403],
        Answer.FAILED: [each for each in range(400, 600) if each not in (401, 403)],
    }
