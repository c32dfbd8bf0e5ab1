"""A small simulated crowd, so that the demo has something to show from the first second.

Each simulated visitor sends what a browser sends to the wrapped site: page views, pulses, logins,
logouts and goodbyes. So the crowd is counted as people are, and nothing here writes to Redis,
except the history of the day before. That is counted from the same stays.

The names of simulated users end with `(simulated)`. The crowd has a prefix of its own, see
`server.py`, so it is never among the visitors of a site or of a demo without a crowd.
"""

import heapq
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from random import Random
from typing import Any
from urllib.parse import quote
from wsgiref.types import WSGIApplication

from webob import Request

from ..backend import Backend
from ..errors import PresenceError
from ..parsers import DAY
from ..stores.keys import MINUTE
from ..wsgi import PresenceMiddleware

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

Stay = tuple[float, float]
"""When a visitor comes and goes, in seconds since the epoch."""


class Browser:
    """The browser of a simulated visitor: sends requests to a WSGI app of the same process."""

    def __init__(self, app: WSGIApplication, address: str) -> None:
        """`address` is the IP address that the app receives."""
        self._app, self._address = app, address
        self._cookie = ""

    def open(self, path: str) -> None:
        """Open a page."""
        self.send(path, Accept="text/html", Sec_Fetch_Mode="navigate")

    def pulse(self, presence: str) -> None:
        """Report as pulse.js does: `here:` and the path of the page that is read, or `bye`."""
        self.send(f"/pulse?presence={presence}", {}, Sec_Fetch_Site="same-origin")

    def send(self, url: str, form: dict[str, str] | None = None, **headers: str) -> None:
        """Send a request, which is a POST if there is a form, and keep the cookie of the site."""
        environ = {"REMOTE_ADDR": self._address, "HTTP_COOKIE": self._cookie}
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        request = Request.blank(url, environ, headers={"User-Agent": AGENT, **given}, POST=form)
        response: Any = request.get_response(self._app)
        _ = response.body  # reads and closes it
        cookie = response.headers.get("Set-Cookie", self._cookie)
        self._cookie = cookie.partition(";")[0]


class Visitor:
    """A simulated visitor: when it comes and goes, and what it does meanwhile."""

    def __init__(self, number: int, start: float, seed: int = 0) -> None:
        """`start` is when the demo starts. The same `number` and `seed` always behave alike."""
        self._number, self._start, self._seed = number, start, seed
        user, is_guest = divmod(number, ONE_USER_IN)
        is_user = not is_guest and user < len(NAMES)
        self.name = f"{NAMES[user]} (simulated)" if is_user else ""
        """The name to log in with; empty for a guest."""
        self.address = f"{NETWORKS[number // HOSTS]}.{number % HOSTS + 1}"
        """The IP address of its requests."""

    def stays(self) -> Iterator[Stay]:
        """Yield the stays of this visitor, from a day before the start and without an end."""
        random = Random(f"{self._seed}-{self._number}")
        moment = self._start - DAY - random.uniform(*STAY)
        while True:
            departure = moment + random.uniform(*STAY)
            yield moment, departure
            night = (1 - math.cos(2 * math.pi * (departure - self._start) / DAY)) / 2
            moment = departure + random.uniform(*AWAY) * (1 + (NIGHT - 1) * night)

    def visit(self, browser: Browser, pages: tuple[str, ...]) -> Iterator[float]:
        """Yield when the next request is due, and send it when the iterator is continued."""
        random = Random(f"{self._seed}-{self._number}-pages")
        for arrival, departure in self.stays():
            if departure <= self._start:
                continue
            moment = max(arrival, self._start)
            yield moment
            if self.name:
                browser.send("/login", {"name": self.name})
            page = random.choice(pages)
            browser.open(page)
            while (moment := moment + random.uniform(*PAUSE)) < departure:
                yield moment
                if random.random() < MOVES:
                    page = random.choice(pages)
                    browser.open(page)
                else:
                    browser.pulse(f"here:{quote(page)}")
            yield departure
            if self.name:
                browser.send("/logout", {})
            else:
                browser.pulse("bye")


class Crowd:
    """The simulated visitors of a site. They do nothing until `run_until` is called."""

    def __init__(
        self, app: WSGIApplication, pages: tuple[str, ...], size: int, start: float, seed: int = 0
    ) -> None:
        """Simulate `size` visitors of the `pages` of `app`, from `start` in seconds on."""
        self._start = start
        self._visitors = [Visitor(number, start, seed) for number in range(size)]
        visits = [visitor.visit(Browser(app, visitor.address), pages) for visitor in self._visitors]
        # The number decides between visitors that are due at the same time.
        self._due = [(next(visit), number, visit) for number, visit in enumerate(visits)]
        heapq.heapify(self._due)

    def run_until(self, now: float) -> float:
        """Send the requests that are due by `now`; return when the next is due."""
        while self._due[0][0] <= now:
            _, number, visit = self._due[0]
            heapq.heapreplace(self._due, (next(visit), number, visit))
        return self._due[0][0]

    def past(self, user: str, guest: str, linger: float) -> dict[int, dict[str, int]]:
        """Return how many of each kind were online in each minute of the day before the start.

        `user` and `guest` are the names of the kinds. A guest stays online for `linger` seconds
        after a goodbye, a user logs out. Minutes are counted since the epoch.
        """
        counts: Counter[tuple[str, int]] = Counter()
        for visitor in self._visitors:
            kind, after = (user, 0.0) if visitor.name else (guest, linger)
            for arrival, departure in visitor.stays():
                if arrival > self._start:
                    break
                first, end = (math.ceil(at / MINUTE) for at in (arrival, departure + after))
                counts.update((kind, minute) for minute in range(first, end))
        last = int(self._start // MINUTE)
        day = range(last - DAY // MINUTE + 1, last + 1)
        return {each: {kind: counts[kind, each] for kind in (user, guest)} for each in day}


def fill_history(backend: Backend, past: Mapping[int, Mapping[str, int]]) -> None:
    """Write the simulated `past` into the minutes of the history without a sample.

    Raises `PresenceUnavailable` if Redis does not answer.
    """
    for minute, counts in past.items():
        backend.driver.run(backend.history.record(minute, counts))


def start_crowd(site: PresenceMiddleware, pages: tuple[str, ...], size: int) -> Callable[[], None]:
    """Start a thread that runs a crowd of `size` visitors of the `pages` of `site`.

    Return a function that ends it.
    """
    stopped = threading.Event()

    def run() -> None:
        # While a machine sleeps, the monotonic clock stands still, and so does the crowd.
        start = time.time() - time.monotonic()
        crowd = Crowd(site, pages, size, start + time.monotonic())
        backend, settings = site.recorder.backend, site.recorder.settings
        user, guest, *_ = settings.kinds
        # In an outage the chart begins empty, and the pages show that Redis does not answer.
        with suppress(PresenceError):
            fill_history(backend, crowd.past(user, guest, settings.grace_seconds))
        due = 0.0
        while not stopped.wait(max(0.0, due - start - time.monotonic())):
            due = crowd.run_until(start + time.monotonic())

    thread = threading.Thread(target=run, name="demo-crowd", daemon=True)
    thread.start()

    def stop() -> None:
        stopped.set()
        thread.join()

    return stop
