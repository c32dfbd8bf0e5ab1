"""The pulse in a real browser: Chromium, where it is installed.

Firefox and Safari were not measured. In a headless browser, every tab is visible.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page

from presence_middleware import Presence, PresenceUnavailable, Settings
from tests.browser.conftest import NewContext, hide, show
from tests.support.backends import Server, matrix, wait_until
from tests.support.servers import WebServer, gunicorn

LINKS = """<!doctype html><title>Shop</title><body style="height: 9000px">
<a href="/a">a</a> <a href="/b">b</a> <a href="/slow">slow</a> <a href="/static/page">static</a>
<a href="/file">file</a> <a href="#x">hash</a> <a href="/mine">mine</a>
<script src="/pulse.js?v=3"{} async></script>"""
SITE = f'''
import time

from presence_middleware.wsgi import PresenceMiddleware

PAGE = """{LINKS}"""
POLICY = ("Content-Security-Policy", "default-src 'none'; script-src 'self'; connect-src 'self'; "
          "style-src 'unsafe-inline'")

def app(environ, start_response):
    path, headers = environ["PATH_INFO"], [("Content-Type", "text/html")]
    if path == "/other":
        start_response("200 OK", headers)
        return [b"<!doctype html>another site"]
    if path == "/me/pulse":
        member = environ["HTTP_COOKIE"].removeprefix("member=")
        environ["presence_middleware.visit"].identify("mine-" + member)
        start_response("200 OK", headers)
        return [b"noted"]
    if path == "/file":
        start_response("200 OK", [*headers, ("Content-Disposition", "attachment; filename=a.txt")])
        return [b"a file"]
    if path == "/slow":
        time.sleep(0.6)
    headers.append(POLICY)
    if path.startswith("/static/"):
        headers.append(("Cache-Control", "public, max-age=3600"))
    start_response("200 OK", headers)
    own = ' data-to="/me/pulse?of=me#here" data-stay' if path == "/mine" else ""
    return [PAGE.format(own).encode()]

application = PresenceMiddleware(app)
'''

LOGGED = ["--access-logfile=requests", "--access-logformat=%(r)s %(s)s %({cookie}i)s"]
pytestmark = pytest.mark.timeout(120)


class Site:
    """A site with a pulse on a real server, and a reader elsewhere."""

    def __init__(self, valkey: Server, folder: Path, window: str) -> None:
        (folder / "app.py").write_text(SITE)
        variables = {
            "PRESENCE_REDIS_URL": valkey.url,
            "PRESENCE_PREFIX": f"t{uuid.uuid4().hex[:12]}",
            "PRESENCE_PULSE_PATH": "/pulse",
            "PRESENCE_WINDOW": window,
            "PRESENCE_FLUSH_INTERVAL": "0.05s",
            "PRESENCE_IDENTITY": "user=cookie:member:raw, guest=visitor",
            "PRESENCE_EXCLUDE": "+/static/*, +/other, +/me/pulse, +/pulse",
        }
        command = gunicorn("app:application", 1, "--threads=8", *LOGGED)
        self.server = WebServer(command, folder, folder / "log", **variables)
        self.presence = Presence(Settings.from_env(variables))
        self._requests = folder / "requests"

    def requests(self, member: str) -> list[str]:
        """Return what a member's browsers have sent so far, in the order of the answers."""
        return [said for said, _, cookie in self.answers() if cookie == f"member={member}"]

    def answers(self) -> list[list[str]]:
        """Return the method and URL, the status and the cookies of all requests."""
        lines = map(str.split, self._requests.read_text().splitlines())
        return [[f"{method} {url}", *answer] for method, url, _, *answer in lines]


@pytest.fixture(scope="module", params=["9s"])
def site(
    request: pytest.FixtureRequest, valkey: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """With nine seconds, a pulse comes every three; a goodbye leaves 3.75."""
    site = Site(valkey, tmp_path_factory.mktemp("site"), request.param)
    with site.server:
        yield site


class Reader:
    """A member with a browser, who opens pages of a site."""

    def __init__(self, context: BrowserContext, site: Site) -> None:
        self.site, self.context, self.name = site, context, f"m{uuid.uuid4().hex[:8]}"
        self.url = f"http://{site.server.address}"
        self.context.add_cookies([{"name": "member", "value": self.name, "url": self.url}])

    def stops_timers(self) -> None:
        """Let pages that are opened from now on send no regular pulses."""
        self.context.add_init_script("window.setInterval = () => 0")

    def opens(self, path: str) -> Page:
        """Open a page in a tab, and wait for its first pulse."""
        before = len(self.sent())
        page = self.context.new_page()
        page.goto(self.url + path)
        self.waits_for(f"here:{path}", before)
        wait_until(lambda: self.is_online)
        return page

    def sent(self) -> list[str]:
        """Return the requests of this member so far, pulses and goodbyes in short."""
        short = "POST /pulse?presence="
        return [each.removeprefix(short) for each in self.site.requests(self.name)]

    def waits_for(self, request: str, before: int = 0, times: int = 1) -> None:
        """Wait until a request has arrived after the first `before`. The member stays online."""

        def has_arrived() -> bool:
            with suppress(PresenceUnavailable):  # a read that a busy machine delays says nothing
                assert before == 0 or self.is_online, list(self.sent())
            return self.sent()[before:].count(request) >= times

        wait_until(has_arrived, 20)

    @property
    def is_online(self) -> bool:
        return self.site.presence.is_online(self.name)


Reads = Callable[[], Reader]


@pytest.fixture
def reads(new_context: NewContext, site: Site) -> Reads:
    return lambda: Reader(new_context(), site)


@pytest.mark.parametrize("path", [*matrix("/b"), "/slow"])
def test_a_click_is_no_departure(reads: Reads, path: str) -> None:
    """The request for the next page, and even its pulse, may arrive before the goodbye."""
    ann = reads()
    page = ann.opens("/a")
    before = len(ann.sent())
    page.click(f"a[href='{path}']")
    ann.waits_for(f"here:{path}", before)
    ann.waits_for("bye", before)
    assert ann.sent()[before:].count("bye") == ann.sent()[before:].count(f"GET {path}") == 1
    if path == "/b":
        ann.waits_for(f"here:{path}", before, times=3)  # longer than a goodbye leaves


def test_a_page_from_the_back_forward_cache_pulses_again(reads: Reads) -> None:
    ann = reads()
    ann.stops_timers()
    page = ann.opens("/a")
    page.click("a[href='/b']")
    ann.waits_for("here:/b")
    before = len(ann.sent())
    page.go_back(wait_until="commit")
    ann.waits_for("here:/a", before)
    assert ann.sent().count("GET /a") == 1, "the page was not in the cache"
    assert ann.sent()[before:].count("here:/a") == 1
    ann.waits_for("bye", 1, times=2)  # that of the other page may come after the pulse


def test_a_page_that_comes_back_without_a_change_of_visibility_pulses(reads: Reads) -> None:
    ann = reads()
    ann.stops_timers()
    page = ann.opens("/a")
    before = len(ann.sent())
    page.mouse.move(9, 9)
    page.evaluate("for (const _ of '12') dispatchEvent(new Event('pagehide'))")
    ann.waits_for("bye", before)
    assert "here:/a" not in ann.sent()[before:]
    page.evaluate("for (const _ of '12') dispatchEvent(new Event('pageshow'))")
    ann.waits_for("here:/a", before)
    page.reload()
    ann.waits_for("here:/a", before, times=2)
    ann.waits_for("bye", before, times=2)
    assert ann.sent()[before:].count("here:/a") == ann.sent()[before:].count("bye") == 2
    page.evaluate(
        "{ const added = document.createElement('script'); added.src = '/pulse.js';"
        "document.body.append(added) }"
    )
    ann.waits_for("here:/a", before, times=3)


@pytest.mark.slow
def test_downloads_and_hash_changes_say_no_goodbye(reads: Reads) -> None:
    ann = reads()
    page = ann.opens("/a")
    before = len(ann.sent())
    with page.expect_download():
        page.click("a[href='/file']")
    page.click("a[href='#x']")
    ann.waits_for("here:/a", before)
    sent = ann.sent()
    assert "GET /file" in sent
    assert "bye" not in sent


@pytest.mark.slow
def test_the_last_tab_says_goodbye_and_its_member_is_soon_offline(reads: Reads) -> None:
    ann = reads()
    first = ann.opens("/a")
    with ann.context.expect_page() as opened:
        first.evaluate("void open('/b')")
    ann.waits_for("here:/b")
    opened.value.evaluate("close()")
    ann.waits_for("bye", 1)
    ann.waits_for("here:/a", len(ann.sent()), times=2)  # the other tab is still there
    first.goto("about:blank")
    ann.waits_for("bye", 1, times=2)
    closed = time.monotonic()
    wait_until(lambda: not ann.is_online)
    assert time.monotonic() - closed < 6, "after 3.75 seconds, not nine"


@pytest.mark.slow
def test_a_hidden_tab_is_silent_until_it_is_visible(reads: Reads) -> None:
    ann, bob = reads(), reads()
    page = ann.opens("/a")
    hide(page, with_event=False)
    bob.opens("/b")
    count = len(ann.sent())
    bob.waits_for("here:/b", 1, times=2)
    assert len(ann.sent()) == count
    page.evaluate("for (let timer = 0; timer < 100; timer++) clearInterval(timer)")
    # It was hidden for longer than the window.
    page.evaluate("{ const now = Date.now; Date.now = () => now() + 60000; }")
    show(page)
    wait_until(lambda: len(ann.sent()) > count)
    assert ann.sent()[-1] == "here:/a"


@pytest.mark.slow
@pytest.mark.parametrize("site", ["3s"], indirect=True)
def test_without_input_for_a_window_a_page_is_silent(reads: Reads) -> None:
    ann = reads()
    page = ann.opens("/a")
    wait_until(lambda: not ann.is_online)
    count = len(ann.sent())
    assert ann.sent()[2:].count("here:/a") >= 1
    bob = reads()
    kept = bob.opens("/b")
    for number in range(2, 6):
        kept.mouse.wheel(0, 100)
        bob.waits_for("here:/b", 1, times=number)
    assert len(ann.sent()) == count
    inputs: list[Callable[[], None]] = [
        lambda: page.evaluate("document.body.dispatchEvent(new Event('scroll'))"),  # of a part
        lambda: page.keyboard.press("Shift"),
        page.mouse.down,
        lambda: page.mouse.move(9, 9),
    ]
    for use in inputs:
        wait_until(lambda: not ann.is_online)
        use()
        wait_until(lambda: ann.is_online)
    assert "bye" not in ann.sent()


def test_a_page_of_another_site_is_refused(reads: Reads) -> None:
    ann = reads()
    ann.opens("/a")
    evil = ann.context.new_page()
    evil.goto(ann.url.replace("127.0.0.1", "localhost") + "/other")
    for said in ("bye", "here:/b"):
        evil.evaluate(
            """async (url) => {
                navigator.sendBeacon(url);
                const options = { method: "POST", mode: "no-cors", credentials: "include" };
                await fetch(url, options);
            }""",
            f"{ann.url}/pulse?presence={said}",
        )

    def refused() -> list[str]:
        return [said for said, status, _ in ann.site.answers() if status == "403"]

    wait_until(lambda: len(refused()) == 4)  # nobody waits for a beacon
    assert set(refused()) == {"POST /pulse?presence=bye", "POST /pulse?presence=here:/b"}
    assert ann.site.presence.count("guest") == 0


def test_a_url_of_the_sites_own_takes_the_pulse(reads: Reads) -> None:
    ann = reads()
    page = ann.context.new_page()
    # Scripts may send nothing to URLs with credentials, which a page may have been opened with.
    page.goto(f"{ann.url}/mine".replace("://", "://me:secret@"))
    # The script has data-stay: the handler of the page says in which room it is.
    wait_until(lambda: "POST /me/pulse?of=me&presence=here" in ann.sent())
    wait_until(lambda: ann.site.presence.is_online(f"mine-{ann.name}"))
    page.goto("about:blank")
    wait_until(lambda: "POST /me/pulse?of=me&presence=bye" in ann.sent())
    assert not any(each.startswith(("here:", "bye")) for each in ann.sent())
