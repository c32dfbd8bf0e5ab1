"""A small simulated crowd, so that the demo has something to show from the first second.

Each simulated visitor sends what a browser sends to the wrapped site: page views, pulses, logins,
logouts and goodbyes. So the crowd is counted as people are, and nothing here writes to Redis,
except the history of the day before. That is counted from the same stays.

The names of simulated users end with `(simulated)`. The crowd has a prefix of its own, see
`server.py`, so it is never among the visitors of a site or of a demo without a crowd.
"""

import heapq
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import takewhile
from random import Random
from typing import Any
from urllib.parse import quote
from wsgiref.types import WSGIApplication

from webob import Request

from ..errors import PresenceError
from ..parsers import DAY
from ..stores.keys import MINUTE
from ..wsgi import PresenceMiddleware
from .app import PAGES

PATHS = tuple(PAGES)
NETWORKS = ("198.51.100", "203.0.113")  # RFC 5737
HOSTS = 250  # of each network; a visitor has an address of its own
NAMES = ("Grace", "Katherine", "Margaret", "Radia", "Barbara", "Frances", "Karen", "Joan")
ONE_USER_IN = 5  # visitors
AGENT = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"

# Seconds, as all times here.
STAY = (60.0, 420.0)
AWAY = (20.0, 100.0)
NIGHT = 12.0  # times as long are visitors away in the middle of the simulated night
PAUSE = (5.0, 20.0)  # between two requests of a visitor
MOVES = 0.5  # how often a visitor opens another page after a pause, rather than reads on


class Visitor:
    """A simulated visitor: when it comes and goes, and the requests of its browser meanwhile."""

    def __init__(self, number: int, start: float) -> None:
        """`start` is when the demo starts. The same `number` always behaves alike."""
        self._number, self._start, self._cookie = number, start, ""
        user, is_guest = divmod(number, ONE_USER_IN)
        is_user = not is_guest and user < len(NAMES)
        self.name = f"{NAMES[user]} (simulated)" if is_user else ""
        """The name to log in with; empty for a guest."""
        self.address = f"{NETWORKS[number // HOSTS]}.{number % HOSTS + 1}"
        """The IP address of its requests."""

    def stays(self) -> Iterator[tuple[float, float]]:
        """Yield when this visitor comes and goes, in seconds since the epoch.

        The stays begin a day before the start and have no end.
        """
        random = Random(self._number)
        moment = self._start - DAY - random.uniform(*STAY)
        while True:
            departure = moment + random.uniform(*STAY)
            yield moment, departure
            night = (1 - math.cos(2 * math.pi * (departure - self._start) / DAY)) / 2
            moment = departure + random.uniform(*AWAY) * (1 + (NIGHT - 1) * night)

    def visit(self, app: WSGIApplication) -> Iterator[float]:
        """Yield when the next request to `app` is due, and send it when continued."""
        send, random = partial(self._send, app), Random(f"{self._number}-pages")
        for arrival, departure in self.stays():
            if departure <= self._start:
                continue
            moment = max(arrival, self._start)
            yield moment
            if self.name:
                send("/login", {"name": self.name})
            page = random.choice(PATHS)
            send(page)
            while (moment := moment + random.uniform(*PAUSE)) < departure:
                yield moment
                if random.random() < MOVES:
                    page = random.choice(PATHS)
                    send(page)
                else:
                    # As pulse.js reports the page that is read.
                    send(f"/pulse?presence=here:{quote(page)}", {})
            yield departure
            send("/logout" if self.name else "/pulse?presence=bye", {})

    def _send(self, app: WSGIApplication, url: str, form: dict[str, str] | None = None) -> None:
        """Send a request, which is a POST if there is a form, and keep the cookie of the site."""
        headers = {"User-Agent": AGENT, "Cookie": self._cookie, "Sec-Fetch-Site": "same-origin"}
        if form is None:
            headers |= {"Accept": "text/html", "Sec-Fetch-Mode": "navigate"}
        environ = {"REMOTE_ADDR": self.address}
        response: Any = Request.blank(url, environ, headers=headers, POST=form).get_response(app)
        _ = response.body  # reads and closes it
        self._cookie = response.headers.get("Set-Cookie", self._cookie).partition(";")[0]


def requests(visitors: Iterable[Visitor], app: WSGIApplication) -> Iterator[float]:
    """Yield when the next request of the visitors is due, and send it to `app` when continued."""
    return heapq.merge(*(visitor.visit(app) for visitor in visitors))


def past(visitors: Iterable[Visitor], start: float, linger: float) -> dict[int, dict[str, int]]:
    """Return how many of each kind were online in each minute of the day before the start.

    A guest stays online for `linger` seconds after a goodbye. Minutes are those since the epoch.
    """
    counts: Counter[tuple[str, int]] = Counter()
    for visitor in visitors:
        kind, after = ("user", 0.0) if visitor.name else ("guest", linger)
        for arrival, departure in takewhile(lambda stay: stay[0] <= start, visitor.stays()):
            first, end = (math.ceil(at / MINUTE) for at in (arrival, departure + after))
            counts.update((kind, minute) for minute in range(first, end))
    last = int(start // MINUTE)
    day = range(last - DAY // MINUTE + 1, last + 1)
    return {each: {kind: counts[kind, each] for kind in ("user", "guest")} for each in day}


def run_crowd(site: PresenceMiddleware, size: int) -> None:
    """Run a crowd of `size` visitors of `site`, as long as the process lives."""
    # While a machine sleeps, the monotonic clock stands still, and so does the crowd.
    start = time.time() - time.monotonic()
    arrival = start + time.monotonic()
    visitors = [Visitor(number, arrival) for number in range(size)]
    backend, settings = site.recorder.backend, site.recorder.settings
    # In an outage the chart begins empty, and the pages show that Redis does not answer.
    with suppress(PresenceError):
        for minute, counts in past(visitors, arrival, settings.grace_seconds).items():
            backend.driver.run(backend.history.record(minute, counts))
    for due in requests(visitors, site):
        if (pause := due - start - time.monotonic()) > 0:
            time.sleep(pause)
