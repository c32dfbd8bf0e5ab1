"""What a request comes to: the whole table, as somebody would fill it in by hand."""

import itertools

import pytest

from presence_middleware.recorder.verdict import Answer, Login, Purpose, answer_of, verdict
from presence_middleware.stores import Act

ACTS = {"-": None, "S": Act.SEEN, "G": Act.GOODBYE, "L": Act.LEFT}
# By purpose, and by whether the app was asked to end a login: for each answer, the acts if the
# request shows at its end no user, a user, or a user whom only an accepting response confirms.
#                                        none accepted redirected refused failed
TABLE = {
    (Purpose.NO_VISIT, Login.NONE): "--- --- --- --- ---",
    (Purpose.NO_VISIT, Login.SHOWN): "--- --- --- --- ---",
    (Purpose.PAGE, Login.NONE): "-S- -SS -S- -S- -S-",
    (Purpose.PAGE, Login.SHOWN): "-S- -SS -S- -S- -S-",
    (Purpose.PULSE, Login.NONE): "-S- -SS -S- -S- -S-",
    (Purpose.PULSE, Login.SHOWN): "-S- -SS -S- -S- -S-",
    (Purpose.GOODBYE, Login.NONE): "-G- -GG -G- -G- -G-",
    (Purpose.GOODBYE, Login.SHOWN): "-G- -GG -G- -G- -G-",
    (Purpose.LOGOUT, Login.NONE): "-S- -SS -S- -S- -S-",
    (Purpose.LOGOUT, Login.SHOWN): "-S- LLL LLL -S- -S-",
    (Purpose.EXCLUDED_LOGOUT, Login.NONE): "--- --- --- --- ---",
    (Purpose.EXCLUDED_LOGOUT, Login.SHOWN): "--- LLL LLL --- ---",
}


def test_the_table_is_complete() -> None:
    assert set(TABLE) == set(itertools.product(Purpose, [Login.NONE, Login.SHOWN]))


@pytest.mark.parametrize(("purpose", "before"), list(TABLE))
def test_a_request_comes_to_what_the_table_says(purpose: Purpose, before: Login) -> None:
    found = [
        [verdict(purpose, answer, before, now) for now in (Login.NONE, Login.SHOWN, Login.CHECKED)]
        for answer in Answer
    ]
    assert found == [[ACTS[act] for act in row] for row in TABLE[purpose, before].split()]


@pytest.mark.parametrize("answer", list(Answer))
@pytest.mark.parametrize("now", list(Login))
def test_a_login_to_end_is_ended_however_it_was_shown(answer: Answer, now: Login) -> None:
    acts = {verdict(Purpose.LOGOUT, answer, before, now) for before in (Login.SHOWN, Login.CHECKED)}
    assert len(acts) == 1


def test_each_status_says_something_about_the_login() -> None:
    said = {
        answer: [status for status in range(100, 600) if answer_of(status) is answer]
        for answer in Answer
    }
    accepted = [101, *range(200, 300), 304]
    assert answer_of(None) is Answer.NONE
    assert said == {
        Answer.NONE: [],
        Answer.ACCEPTED: accepted,
        Answer.REDIRECTED: [each for each in range(100, 400) if each not in accepted],
        Answer.REFUSED: [401, 403],
        Answer.FAILED: [each for each in range(400, 600) if each not in (401, 403)],
    }
