"""The board in Chromium with events: the list of names changes without polling."""

import re
import signal
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Page, Request, expect

from presence_middleware import Presence
from tests.browser.conftest import NewContext, hide, show, unlock
from tests.support.backends import Server, wait_until
from tests.support.nginx import Nginx, needs_nginx
from tests.support.servers import BOARD, ROOT, TOKEN, WebServer, uvicorn

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]


@pytest.fixture
def variables(own: Server, prefix: str) -> dict[str, str]:
    return {
        **{"PRESENCE_REDIS_URL": own.url, "PRESENCE_PREFIX": prefix},
        "PRESENCE_IDENTITY": "user=header:X-User, guest=visitor",
        **{**BOARD, "PRESENCE_FLUSH_INTERVAL": "1s", "PRESENCE_EVENTS": "user,guest"},
    }


@pytest.fixture
def site(variables: dict[str, str], tmp_path: Path) -> Iterator[WebServer]:
    command = uvicorn("tests.support.site:asgi_site")
    with WebServer(command, ROOT, tmp_path / "log", **variables) as site:
        yield site


class Board:
    """The page, and the requests that it sent after it was unlocked."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[Request] = []
        unlock(page, TOKEN[1:])
        expect(page.get_by_role("alert")).to_have_text("That is not the token.")
        page.on("request", lambda each: self.requests.append(each))  # noqa: PLW0108
        unlock(page, TOKEN)
        expect(page.locator("#names")).to_be_visible()

    def expect_names(self, *names: str) -> None:
        expect(self.page.locator("#online bdi")).to_have_text(list(names), timeout=20000)

    def sent(self, path: str) -> list[Request]:
        return [each for each in self.requests if f"/presence/{path}?" in each.url]


Opened = Callable[..., Board]
# A stream that has not begun after three seconds is one that a proxy holds back. A busy machine may
# take longer to begin one; no other timer of the page has arguments.
PATIENT = """const { setTimeout } = window;
window.setTimeout = (work, after, ...given) =>
  setTimeout(work, given.length ? 5 * after : after, ...given);"""


@pytest.fixture
def opened(new_context: NewContext) -> Opened:
    def open_board(site: WebServer | Nginx, *, is_held: bool = False) -> Board:
        page = new_context().new_page()
        page.add_init_script("" if is_held else PATIENT)
        page.goto(f"http://{site.address}/presence")
        return Board(page)

    return open_board


@pytest.fixture
def board(opened: Opened, site: WebServer, presence: Presence) -> Board:
    """The page, with ann in its list."""
    presence.touch("ann")
    board = opened(site)
    board.expect_names("ann")
    return board


def test_the_list_changes_without_polling(board: Board, presence: Presence) -> None:
    expect(board.page.locator("#since")).to_have_text("Came")
    expect(board.page.locator("#online td.number")).to_have_text(["earlier"])
    presence.touch("<b>bob")
    board.expect_names("<b>bob", "ann")
    expect(board.page.locator("#caption")).to_have_text("Newest first")
    presence.leave("ann")
    board.expect_names("<b>bob")
    presence.touch("ann")
    board.expect_names("ann", "<b>bob")
    for _ in range(2):  # the page polls the numbers, and between them would poll the names
        with board.page.expect_response("**/counts"):
            pass
    assert board.sent("online") == []
    presence.touch("x7Kq", "guest")
    for name, ids in (("guests", ["x7Kq"]), ("users", ["ann", "<b>bob"])):
        board.page.locator("#listed").get_by_role("radio", name=name).check()
        board.expect_names(*ids)
    assert TOKEN not in "".join(each.url for each in board.requests)
    assert ["last-event-id" in each.headers for each in board.sent("events")] == [False] * 3


def test_the_newest_hundred_are_listed_and_others_when_these_have_gone(
    opened: Opened, site: WebServer, presence: Presence
) -> None:
    for number in range(101):
        presence.touch(f"user{number}")
    board = opened(site)
    listed = board.page.locator("#online bdi")
    expect(listed).to_have_count(100)
    presence.touch("eve")
    expect(listed.first).to_have_text("eve")
    expect(listed).to_have_count(100)
    expect(board.page.locator("#caption")).to_have_text("The newest 100")
    for number in range(40, 101):
        presence.leave(f"user{number}")
    expect(listed).to_have_count(41, timeout=20000)
    presence.leave("user0")
    expect(listed).to_have_count(40)
    presence.touch("zoe")
    expect(listed.first).to_have_text("zoe")
    assert board.sent("online") == []
    assert len(board.sent("events")) == 2


@pytest.mark.parametrize("since", ["Came", "Last seen"])
def test_times_are_those_of_the_server(
    new_context: NewContext, site: WebServer, presence: Presence, since: str
) -> None:
    page, now = new_context().new_page(), datetime.now()
    if since == "Last seen":
        page.route("**/events?*", lambda route: route.fulfill(status=503))
    page.clock.install(time=now + timedelta(minutes=10))
    page.goto(f"http://{site.address}/presence")
    board = Board(page)
    expect(page.locator("#since")).to_have_text(since)
    presence.touch("bob")
    board.expect_names("bob")
    expect(page.locator("#online td.number")).to_have_text([re.compile("now|s ago")])
    with page.expect_request("**/chart.svg?*"), page.expect_request("**/events?*"):
        page.clock.set_system_time(now)


def test_a_hidden_page_goes_on_after_its_last_event(board: Board, presence: Presence) -> None:
    presence.touch("eve")
    board.expect_names("eve", "ann")
    with board.page.expect_event("requestfailed", lambda each: "/events?" in each.url):
        hide(board.page)
    presence.touch("bob")
    presence.leave("ann")
    with board.page.expect_request("**/events?*") as request:
        show(board.page)
    assert request.value.headers["last-event-id"]
    board.expect_names("bob", "eve")
    assert board.sent("online") == []


def test_the_list_survives_a_restart(board: Board, site: WebServer, presence: Presence) -> None:
    site.process.send_signal(signal.SIGTERM)
    site.process.wait(10)  # the stream is still open
    expect(board.page.locator("#state")).to_have_text("the site does not answer", timeout=20000)
    presence.touch("bob")
    with site:
        board.expect_names("bob", "ann")
        assert board.sent("events")[-1].headers["last-event-id"]
        presence.leave("ann")
        board.expect_names("bob")


def test_the_list_survives_a_loss_of_data(board: Board, own: Server, presence: Presence) -> None:
    own.stop()
    own.start()
    presence.touch("bob")
    board.expect_names("bob")
    presence.touch("eve")
    board.expect_names("eve", "bob")


HOLDS_BODIES = "proxy_ignore_headers X-Accel-Buffering; proxy_buffering on; postpone_output 0;"
PROXIES = {
    "nginx as it is": "",
    "holds answers back": HOLDS_BODIES.removesuffix(" postpone_output 0;"),
    "holds only their bodies back": HOLDS_BODIES,
}


@needs_nginx
@pytest.mark.parametrize("how", list(PROXIES))
def test_the_list_changes_behind_a_proxy_that_buffers(
    opened: Opened, site: WebServer, presence: Presence, tmp_path: Path, how: str
) -> None:
    location = f"location / {{ proxy_pass http://{site.address}; {PROXIES[how]} }}"
    is_held = how != "nginx as it is"
    presence.touch("ann")
    with Nginx(tmp_path / "nginx", location) as proxy:
        board = opened(proxy, is_held=is_held)
        board.expect_names("ann")
        presence.touch("bob")
        board.expect_names("bob", "ann")
        presence.leave("ann")
        board.expect_names("bob")
        expect(board.page.locator("#since")).to_have_text("Last seen" if is_held else "Came")
        assert bool(board.sent("online")) == is_held
        assert len(board.sent("events")) == 1
        if is_held:  # a buffer is full at last: what it held is old by now
            for number in range(60):
                presence.touch(f"user{number}")
            wait_until(lambda: presence.count() == 61)
            presence.touch("eve")
            presence.leave("bob")
            expect(board.page.locator("#online bdi")).to_have_count(61, timeout=20000)
            expect(board.page.locator("#online bdi").first).to_have_text("eve", timeout=20000)


def test_a_page_whose_stream_fails_polls(board: Board, presence: Presence) -> None:
    page_of_a_proxy = "<h1>503</h1>\n\n<hr>nginx"
    board.page.route("**/events?*", lambda route: route.fulfill(status=503, body=page_of_a_proxy))
    hide(board.page)
    show(board.page)
    expect(board.page.locator("#since")).to_have_text("Last seen")
    presence.touch("bob")
    board.expect_names("bob", "ann")
    board.page.unroute("**/events?*")
    expect(board.page.locator("#since")).to_have_text("Came", timeout=20000)
    presence.leave("ann")
    board.expect_names("bob")
