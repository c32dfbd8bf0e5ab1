"""The requests of pulse.js: which requests they are, and what they say. No I/O.

A page sends `POST …?presence=here:/its/path` while somebody reads it, and `POST …?presence=bye`
when it is closed. Everything after `here:` is the path of the page below the mount point of the
app, as its URL has it.
"""

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from .request import Request, query_of

MAX_QUERY = 4096
"""Longer queries are no signals: a path in them would be longer than any room's name."""
# A path may contain a `&`, so the parameter is the last of the query.
_SIGNAL = re.compile(r"(?:^|&)presence=(?:(bye)|here(?::(.*))?)\Z", re.DOTALL)


class Signal(NamedTuple):
    """What a page says about its reader."""

    is_goodbye: bool
    """True if the page was closed, False if somebody reads it."""
    page: str | None
    """The decoded path of the page below the mount point of the app. None if it is not said."""
    is_same_origin: bool
    """True if a page of this site sent it, and not a page of another site."""
    is_own: bool
    """True if it was sent to `PRESENCE_PULSE_PATH`, whose response is always empty."""


def read_signal(request: Request, *, is_own: bool) -> Signal | None:
    """Return the signal in a request, or None. Never raises.

    `is_own` is True for a POST to `PRESENCE_PULSE_PATH`: without a readable query, that is a pulse
    from an unknown page. Other requests are signals if their method is POST and their query ends
    with the parameter `presence`.
    """
    try:
        query = query_of(request.state)
        match = _SIGNAL.search(query) if len(query) <= MAX_QUERY else None
        if request.method != "POST" or (match is None and not is_own):
            return None
        is_same = is_same_origin(request)
    except Exception:  # a malformed environ or scope, of which the filter of visits warns
        return None
    bye, page = match.groups() if match else (None, None)
    decoded = None if page is None else unquote(page, errors="surrogateescape")
    return Signal(bye is not None, decoded, is_same, is_own)


def is_same_origin(request: Request) -> bool:
    """Return whether a page of this site sent a request.

    Browsers say so in Sec-Fetch-Site, but not over plain HTTP. There, the Origin must have the host
    of this request. A request without both headers has not come from a page.
    """
    site = request.header("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin, host = request.header("origin"), request.header("host")
    return bool(origin and host) and urlsplit(origin or "").netloc.lower() == (host or "").lower()
