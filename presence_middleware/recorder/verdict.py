"""What a request comes to once its response is known. Pure: no I/O, no state."""

from collections.abc import Container
from enum import Enum

from ..identity.ids import Who
from ..identity.resolver import Found, Matcher
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
UNCOUNTED = (Purpose.NO_VISIT, Purpose.EXCLUDED_LOGOUT)
"""Requests of which only a logout is recorded: health checks, prefetches and the like."""


class Answer(Enum):
    """What the status of a response says about a login."""

    NONE = "the app raised before it answered, or nobody asked for the status"
    ACCEPTED = "the login is accepted"
    REDIRECTED = "neither: many sites redirect before they check a password"
    REFUSED = "the login is refused"
    FAILED = "an error"


def answer_of(status: int | None, method: str) -> Answer:
    """Return what a status says; None if no response has begun.

    Frameworks answer OPTIONS themselves, before a page could check a password.
    """
    if status is None:
        return Answer.NONE
    if (200 <= status < 300 or status in (101, 304)) and method != "OPTIONS":
        return Answer.ACCEPTED
    if status in (401, 403):
        return Answer.REFUSED
    return Answer.REDIRECTED if status < 400 else Answer.FAILED


ENDS_LOGIN = (Answer.ACCEPTED, Answer.REDIRECTED)
"""The answers to a logout that has succeeded."""
REFUSES = (Answer.REFUSED,)
"""The answers after which a request shows no login."""
REFUSES_AT_THE_END = (Answer.REFUSED, Answer.NONE)
"""The same at the end of the request, for an app may raise before it answers."""
_ACTS = {
    Purpose.PAGE: Act.SEEN,
    Purpose.PULSE: Act.SEEN,
    Purpose.LOGOUT: Act.SEEN,  # of a request that failed to log anybody out
    Purpose.GOODBYE: Act.GOODBYE,
}


def shown(found: Found, answer: Answer) -> Who | None:
    """Return whom a request shows. If that must be checked, the answer must accept the login."""
    who, matcher = found
    return None if matcher.is_checked and answer is not Answer.ACCEPTED else who


def earlier_login(known: Found, found: Found, users: Container[str]) -> Found:
    """Return the login of an earlier rule, or of the first that was found. Others are no login.

    `users` are the kinds of users.
    """
    who, matcher = found
    is_user = who is not None and who[0] in users
    return found if is_user and matcher.place < known[1].place else known


def verdict(
    purpose: Purpose, answer: Answer, before: Found, now: Found
) -> tuple[Act, Who, Matcher] | None:
    """Return the act that is recorded, whose it is and how they were found; or None.

    `before` is the login that the app was asked to end, as the request showed it until then. It is
    the user of `Act.LEFT`, at the moment of the answer; if it must be checked, only if the answer
    accepts it. `now` is what the request shows at its end. It is the user of all other acts: seen
    when the request arrived.
    """
    if purpose in LOGOUTS and answer in ENDS_LOGIN and (left := shown(before, answer)):
        return Act.LEFT, left, before[1]
    who, act = shown(now, answer), _ACTS.get(purpose)
    return None if who is None or act is None else (act, who, now[1])
