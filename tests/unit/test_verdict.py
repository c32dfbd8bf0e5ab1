"""What a status says about a login, and which of several logins is ended.

What a request comes to is shown by whole sites: tests/unit/test_pulse.py and
tests/contract/test_logins.py.
"""

from presence_middleware.identity.resolver import BY_LAYER, NOBODY, Found, Matcher
from presence_middleware.recorder.verdict import Answer, answer_of, earlier_login


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
