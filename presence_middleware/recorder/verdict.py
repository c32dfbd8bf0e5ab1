"""What a request comes to once its response is known. Pure: no I/O, no state."""

from enum import Enum, IntEnum

from ..stores import Act


class Purpose(Enum):
    """What a request is."""

    NO_VISIT = (
        "a health check, a prefetch, a preflight, a request of another site, an excluded path"
    )
    PAGE = "a page, or another request of somebody who uses the site"
    PULSE = "a page that is still open"
    GOODBYE = "a page that was closed"
    LOGOUT = "a path of PRESENCE_LOGOUT"
    EXCLUDED_LOGOUT = "a path of PRESENCE_LOGOUT and of PRESENCE_EXCLUDE"


LOGOUTS = (Purpose.LOGOUT, Purpose.EXCLUDED_LOGOUT)


class Answer(Enum):
    """What the status of a response says about a login."""

    NONE = "the app raised before it answered, or nobody asked for the status"
    ACCEPTED = "the login is accepted"
    REDIRECTED = "neither: many sites redirect before they check a password"
    REFUSED = "the login is refused"
    FAILED = "an error"


class Login(IntEnum):
    """What a request shows about its user."""

    NONE = 0
    SHOWN = 1
    """An identity that counts whatever the response is."""
    CHECKED = 2
    """An identity that counts only if the response accepts it."""


def answer_of(status: int | None) -> Answer:
    """Return what a status says; None if no response has begun."""
    if status is None:
        return Answer.NONE
    if 200 <= status < 300 or status in (101, 304):
        return Answer.ACCEPTED
    if status in (401, 403):
        return Answer.REFUSED
    return Answer.REDIRECTED if status < 400 else Answer.FAILED


ENDS_LOGIN = {Answer.ACCEPTED, Answer.REDIRECTED}
"""The answers to a logout that has succeeded."""
_ACTS = {
    Purpose.PAGE: Act.SEEN,
    Purpose.PULSE: Act.SEEN,
    Purpose.LOGOUT: Act.SEEN,  # of a request that failed to log anybody out
    Purpose.GOODBYE: Act.GOODBYE,
}


def verdict(purpose: Purpose, answer: Answer, before: Login, now: Login) -> Act | None:
    """Return the act that is recorded, or None.

    `before` is the login that the app was asked to end, as the request showed it until then. It is
    the user of `Act.LEFT`, at the moment of the answer. `now` is what the request shows at its end.
    It is the user of all other acts: seen when the request arrived.
    """
    if purpose in LOGOUTS and before and answer in ENDS_LOGIN:
        return Act.LEFT
    if not now or (now is Login.CHECKED and answer is not Answer.ACCEPTED):
        return None
    return _ACTS.get(purpose)
