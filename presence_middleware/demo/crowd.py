"""A small simulated crowd, so that the demo has something to show from the first second.

Each simulated visitor sends what a browser sends to the wrapped site: page views, pulses, logins,
logouts and goodbyes. So the crowd is counted as people are, and nothing here writes to Redis,
except the history of the day before. That is counted from the same stays.

The names of simulated users end with `(simulated)`. The crowd has a prefix of its own, see
`server.py`, so it is never among the visitors of a site or of a demo without a crowd.
"""

import heapq
import io
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from random import Random
from typing import Any
from urllib.parse import quote, urlencode
from wsgiref.types import WSGIApplication

from ..backend import Backend
from ..errors import PresenceError
from ..stores.keys import MINUTE
from ..wsgi import PresenceMiddleware

MAX_SIZE = 500
"""Simulated visitors at most. Each has an address of its own, of ranges for documentation."""
NETWORKS = ("198.51.100", "203.0.113")  # RFC 5737
HOSTS = 250
NAMES = ("Grace", "Katherine", "Margaret", "Radia", "Barbara", "Frances", "Karen", "Joan")
ONE_USER_IN = 5  # visitors
AGENT = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"

DAY = 24 * 3600.0  # seconds, as all times here
STAY = (60.0, 420.0)
AWAY = (20.0, 100.0)
NIGHT = 12.0  # times as long are visitors away in the middle of the simulated night
PAUSE = (5.0, 20.0)  # between two requests of a visitor
MOVES = 0.5  # how often a visitor opens another page after a pause, rather than reads on
TURN_SECONDS = 1.0  # until a process asks again whether it has its turn
LONGEST_STEP = 5.0  # a machine that was asleep repeats no more than this

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
        self._send("GET", path, HTTP_ACCEPT="text/html", HTTP_SEC_FETCH_MODE="navigate")

    def submit(self, path: str, **fields: str) -> None:
        """Submit a form."""
        self._send("POST", path, urlencode(fields).encode(), HTTP_SEC_FETCH_MODE="navigate")

    def pulse(self, path: str) -> None:
        """Report that somebody reads the page at `path`, as pulse.js does."""
        self._signal(f"here:{quote(path)}")

    def say_goodbye(self) -> None:
        """Report that the page was closed, as pulse.js does."""
        self._signal("bye")

    def _signal(self, value: str) -> None:
        query = f"presence={value}"
        self._send("POST", "/pulse", QUERY_STRING=query, HTTP_SEC_FETCH_SITE="same-origin")

    def _send(self, method: str, path: str, body: bytes = b"", **others: str) -> None:
        environ = {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": "",
            "PATH_INFO": path,
            "QUERY_STRING": "",
            "CONTENT_LENGTH": str(len(body)),
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": self._address,
            "HTTP_HOST": "localhost",
            "HTTP_USER_AGENT": AGENT,
            "HTTP_COOKIE": self._cookie,
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": io.StringIO(),
            "wsgi.multithread": True,
            "wsgi.multiprocess": True,
            "wsgi.run_once": False,
            **others,
        }
        response: Any = self._app(environ, self._start_response)
        try:
            for _ in response:
                pass
        finally:
            if hasattr(response, "close"):
                response.close()

    def _start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        for name, value in headers:
            if name == "Set-Cookie":
                self._cookie = value.partition(";")[0]
        return lambda _: None


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
                browser.submit("/login", name=self.name)
            page = random.choice(pages)
            browser.open(page)
            while (moment := moment + random.uniform(*PAUSE)) < departure:
                yield moment
                if random.random() < MOVES:
                    page = random.choice(pages)
                    browser.open(page)
                else:
                    browser.pulse(page)
            yield departure
            if self.name:
                browser.submit("/logout")
            else:
                browser.say_goodbye()


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

    def past(self, user: str, guest: str, linger: float) -> dict[str, dict[int, int]]:
        """Return how many were online in each minute of the day before the start, by kind.

        `user` and `guest` are the names of the kinds. A guest stays online for `linger` seconds
        after a goodbye, a user logs out. Minutes are counted since the epoch.
        """
        last = int(self._start // MINUTE)
        minutes = range(last - int(DAY // MINUTE) + 1, last + 1)
        counts = {kind: dict.fromkeys(minutes, 0) for kind in (user, guest)}
        for visitor in self._visitors:
            kind, after = (user, 0.0) if visitor.name else (guest, linger)
            count = counts[kind]
            for arrival, departure in visitor.stays():
                if arrival > self._start:
                    break
                end = math.ceil((departure + after) / MINUTE)
                for minute in range(math.ceil(arrival / MINUTE), end):
                    if minute in count:
                        count[minute] += 1
        return counts


def fill_history(backend: Backend, past: Mapping[str, Mapping[int, int]]) -> None:
    """Write the simulated `past` of each kind into the minutes of the history without a sample.

    Raises `PresenceUnavailable` if Redis does not answer.
    """
    driver, history = backend.driver, backend.history
    last = max(minute for counts in past.values() for minute in counts)
    for kind, counts in past.items():
        samples = driver.run(history.samples(kind, (min(counts) - 1) * MINUTE, last * MINUTE))
        missing = counts.keys() - {int(sample.at.timestamp() // MINUTE) for sample in samples}
        if missing:
            driver.run(history.fill(kind, {minute: counts[minute] for minute in missing}))


def start_crowd(
    site: PresenceMiddleware, pages: tuple[str, ...], size: int, has_turn: Callable[[], bool]
) -> Callable[[], None]:
    """Start a thread that runs a crowd of `size` visitors of the `pages` of `site`.

    The thread begins when `has_turn` returns True. Return a function that ends it.
    """
    stopped = threading.Event()
    arguments = site, pages, size, has_turn, stopped
    thread = threading.Thread(target=_run, args=arguments, name="demo-crowd", daemon=True)
    thread.start()

    def stop() -> None:
        stopped.set()
        thread.join()

    return stop


def _run(
    site: PresenceMiddleware,
    pages: tuple[str, ...],
    size: int,
    has_turn: Callable[[], bool],
    stopped: threading.Event,
) -> None:
    while not has_turn():
        if stopped.wait(TURN_SECONDS):
            return
    now, before = time.time(), time.monotonic()
    crowd = Crowd(site, pages, size, now)
    backend, settings = site.recorder.backend, site.recorder.settings
    user, guest, *_ = settings.kinds
    # In an outage the chart begins empty, and the pages show that Redis does not answer.
    with suppress(PresenceError):
        fill_history(backend, crowd.past(user, guest, settings.grace_seconds))
    due = crowd.run_until(now)
    while not stopped.wait(min(max(due - now, 0.0), LONGEST_STEP)):
        elapsed, before = time.monotonic() - before, time.monotonic()
        now += min(elapsed, LONGEST_STEP)
        due = crowd.run_until(now)
