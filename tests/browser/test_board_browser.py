"""The board in a real browser: Chromium, where it is installed."""

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Page, Route, expect

from presence_middleware import Presence, Settings
from presence_middleware.backend import Backend
from tests.browser.conftest import NewContext, hide, show, unlock
from tests.support.backends import wait_until
from tests.support.servers import BOARD, ROOT, TOKEN, WebServer, gunicorn

SVG = "image/svg+xml"
ODD_IDS = ["<img src=x onerror=document.title='run'>", "\x1b[2Jred", "abc\u202egnp.exe", "日本"]
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"
pytestmark = pytest.mark.timeout(120)

Opened = Callable[..., Page]


@pytest.fixture
def others() -> str:
    return ""


@pytest.fixture
def site(variables: dict[str, str], tmp_path: Path, others: str) -> Iterator[WebServer]:
    """Two workers, and a window so short that who goes is seen to go."""
    variables |= {**BOARD, "PRESENCE_ROOMS": "/t/{topic}/*", "HTML": "1", "PRESENCE_WINDOW": "6s"}
    variables |= {"PRESENCE_IDENTITY": f"user=header:X-User{others}, guest=visitor"}
    command = gunicorn("tests.support.site:wsgi_site", 2, "--threads=4")
    with WebServer(command, ROOT, tmp_path / "log", **variables) as server:
        yield server


@pytest.fixture
def open_board(new_context: NewContext, site: WebServer) -> Opened:
    def opened(path: str = "/presence", credentials: str = "", **looks: Any) -> Page:
        page = new_context(**looks).new_page()
        page.goto(f"http://{credentials}{site.address}{path}")
        return page

    return opened


def sample(variables: dict[str, str], *counts: int) -> int:
    """Record these numbers of users for the last minutes; return the current minute."""
    backend = Backend(Settings.from_env(variables))
    runs = backend.driver
    minute = int(runs.run(backend.clock.now()) // 60)
    for ago, count in enumerate(reversed(counts), 1):
        counted = {"user": count, "guest": 5 * count, "bot": 1}
        runs.run(backend.history.record(minute - ago, counted))
    return minute


@pytest.mark.slow
def test_the_page_shows_arrivals_and_departures(open_board: Opened) -> None:
    board = open_board()
    expect(board.locator("#state")).to_have_text("live")
    expect(board.locator("#count-guest")).to_have_text("0")  # who looks is nobody
    visitor = open_board("/")
    expect(board.locator("#count-guest")).to_have_text("1", timeout=15000)
    spoken = board.locator("[aria-live]")
    expect(spoken).to_have_text("Online: 0 users, 0 guests, 0 bots")  # not at each change
    board.get_by_text("As a table").click()
    expect(spoken).to_have_text("Online: 0 users, 1 guest, 0 bots")
    visitor.close()
    expect(board.locator("#count-guest")).to_have_text("0", timeout=15000)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["proxy-answers", "gateway-answers", "nobody-answers"])
def test_the_page_says_that_the_site_does_not_answer(open_board: Opened, how: str) -> None:
    board = open_board()
    state = board.locator("#state")
    expect(state).to_have_text("live")

    def answer(route: Route) -> None:
        if how == "proxy-answers":
            route.fulfill(status=502, content_type="text/html", body="<h1>502 Bad Gateway</h1>")
        elif how == "gateway-answers":
            route.fulfill(status=429, json={"error": {"message": "API rate limit exceeded"}})

    board.route("**/counts", answer)
    expect(state).to_have_text("the site does not answer", timeout=30000)
    board.unroute("**/counts")
    expect(state).to_have_text("live", timeout=20000)


@pytest.mark.slow
def test_a_page_asks_for_the_token_and_finds_users(open_board: Opened, presence: Presence) -> None:
    presence.touch("bob")
    board = open_board()
    expect(board.locator("#names")).to_be_hidden()
    for wrong in (" ", "the-token-of-another", "токен"):
        unlock(board, wrong)
        expect(board.get_by_role("alert")).to_have_text("That is not the token.")
        expect(board.locator("#names")).to_be_hidden()
    unlock(board, f"\xa0{TOKEN} ")
    expect(board.get_by_role("cell", name="bob")).to_be_visible()
    assert TOKEN not in board.url + board.content()
    expect(board.locator("#token")).to_have_value("")
    find(board, " zoe")
    expect(board.locator("#result")).to_have_text("zoe was not seen as user recently")
    expect(board.locator("#count-user")).to_have_text("0", timeout=15000)
    find(board, "bob")
    expect(board.locator("#result")).to_contain_text("bob is offline, last seen")
    # The token is changed.
    board.route("**/online?*", lambda route: route.fulfill(status=401, json={"error": "refused"}))
    expect(board.locator("#names")).to_be_hidden()
    board.unroute("**/online?*")
    unlock(board, TOKEN)
    expect(board.locator("#names")).to_be_visible()


@pytest.mark.slow
def test_an_id_is_shown_as_text(open_board: Opened, presence: Presence) -> None:
    presence.touch(ODD_IDS[0])
    board = open_board()
    unlock(board, TOKEN)
    for id in ODD_IDS:
        presence.touch(id)
        listed = board.locator("#online bdi").first
        expect(listed).to_have_text(id, use_inner_text=False, timeout=15000)
        find(board, id)
        expect(board.locator("#result")).to_contain_text("is online, seen")
        expect(board.locator("#result bdi")).to_have_text(id, use_inner_text=False)
    assert board.locator("img").count() == 0
    assert board.title() == "Who is online"


def find(board: Page, id: str) -> None:
    board.get_by_label("Find by id").fill(id)
    board.get_by_role("button", name="Find").click()


@pytest.mark.slow
def test_the_chart_draws_and_marks_its_peak(open_board: Opened, variables: dict[str, str]) -> None:
    minute = sample(variables, 3, 7, 4)
    board = open_board()
    peak = datetime.fromtimestamp((minute - 2) * 60, ZoneInfo("Europe/Berlin"))
    expect(board.locator("#chart .label")).to_have_text(
        re.compile(rf"^7 at 0?{peak.hour}:{peak:%M}$")  # at midnight, English has one digit
    )
    expect(board.locator("#chart .zone")).to_have_count(0)
    expect(board.locator("#chart .line")).to_have_count(1)
    expect(board.get_by_role("img")).to_have_accessible_name(board.locator("#summary").inner_text())
    expect(board.locator("#summary")).to_have_text(
        re.compile(r"^The most in 24 hours: 7 users at \S+ Ever: 7 on \d")
    )
    late: list[Route] = []
    board.route("**/history?kind=user", lambda route: late.append(route))  # noqa: PLW0108
    with board.expect_request("**/history?*"):
        board.get_by_text("As a table").click()
    board.locator("#charted").get_by_role("radio", name="guests").check()
    expect(board.locator("#chart .label")).to_contain_text("35 at ")
    expect(board.locator("#hours td.number").get_by_text("35", exact=True)).to_have_count(1)
    with board.expect_response("**/history?kind=user"):
        late[0].continue_()
    with board.expect_response("**/counts"):
        pass
    expect(board.locator("#hours td.number").get_by_text("35", exact=True)).to_have_count(1)


def test_the_hour_that_comes_twice_is_in_the_table_twice(
    open_board: Opened, variables: dict[str, str]
) -> None:
    """Also if it is asked for while a chart is drawn, and if the first answer is an error."""
    samples = [[f"2026-10-25T0{hour}:30:00Z", 5 + hour] for hour in (0, 1)]  # at half past two
    sample(variables, 3)
    board, late, fails = open_board(), list[Route](), iter([{"status": 503}])
    history = {"json": {"samples": samples}}
    board.route("**/history?*", lambda route: route.fulfill(**next(fails, history)))
    expect(board.locator("#summary")).to_contain_text("user")
    for path, choice in (
        ("chart.svg?*", board.locator("#charted").get_by_role("radio", name="guests")),
        ("counts", board.get_by_text("As a table")),  # while the chart is drawn
    ):
        board.route(f"**/{path}", lambda route: late.append(route), times=1)  # noqa: PLW0108
        with board.expect_request(f"**/{path}"):
            choice.click()
    for route in late:
        route.continue_()
        expect(board.locator("#summary")).to_contain_text("guest")
    hours = board.locator("#hours td")
    expect(hours).to_have_text(["2:00", "6", "2:00", "5"], timeout=15000)


def test_a_chart_that_has_changed_is_drawn_again_in_its_style(
    open_board: Opened, variables: dict[str, str]
) -> None:
    sample(variables, 3, 7, 4)
    board = open_board()
    # That of security.md, and not of the board: front ends add one to all pages of a site.
    policy = {"Content-Type": "text/html", "Content-Security-Policy": POLICY}
    board.route("**/presence", lambda page: page.fulfill(response=page.fetch(), headers=policy))
    board.reload()
    expect(board.locator("#chart .line")).to_have_css("stroke", "rgb(11, 110, 99)")
    drawn = board.locator("#chart svg").evaluate("each => each.outerHTML")
    users, guests = (board.get_by_role("radio", name=name).first for name in ("users", "guests"))
    guests.check()
    expect(board.locator("#chart .line")).to_have_css("stroke", "rgb(160, 65, 0)")
    newer = drawn.replace(' data-count="7"', ' data-count="9"')
    board.route("**/chart.svg*", lambda route: route.fulfill(content_type=SVG, body=newer))
    users.check()
    expect(board.locator("#summary")).to_contain_text("The most in 24 hours: 9 users at")
    expect(board.locator("#chart .label")).to_contain_text("9 at ")


def test_pages_with_credentials_in_their_url_work(open_board: Opened, presence: Presence) -> None:
    board = open_board(credentials=f"me:{TOKEN}@")
    expect(board.locator("#state")).to_have_text("live")
    presence.touch("bob")
    unlock(board, TOKEN)
    expect(board.get_by_role("cell", name="bob")).to_be_visible()
    expect(open_board("/", credentials="me:secret@").locator("em")).to_have_text("1 online")


@pytest.mark.slow
def test_a_widget_counts_its_room_and_another(open_board: Opened, presence: Presence) -> None:
    presence.touch("ann")
    one = open_board("/t/1/a-title")
    wait_until(lambda: presence.count("guest", room="/t/1") == 1)
    other = open_board("/t/caf%C3%A9&+")
    wait_until(lambda: presence.count("guest", room="/t/café&+") == 1)
    places = "s[data-room]"
    expect(other.locator(places).nth(0)).to_have_text("1 online")
    expect(other.locator(places).nth(1)).to_have_text("1 online")
    elsewhere = open_board("/home")  # by the same guest, who is in no room then
    expect(elsewhere.locator(places).nth(0)).to_have_text("")
    expect(elsewhere.locator(places).nth(1)).to_have_text(re.compile("^[01] online$"))
    expect(one.locator("em")).to_have_text("1 online")
    asked: list[str] = []
    one.on("request", lambda request: asked.append(request.url))
    hide(one)
    with one.expect_response("**/counts"):
        show(one)
    assert len([each for each in asked if each.endswith("/counts")]) == 1
    # As on a site whose users are in minute sets, which have no rooms.
    one.route(re.compile("room="), lambda route: route.fulfill(json={"counts": {"guest": 5}}))
    show(one)
    expect(one.locator(places).nth(0)).to_have_text("5 online")
    expect(one.locator("b")).to_have_text("")


@pytest.mark.slow
@pytest.mark.parametrize("others", [", customer=header:X-C, partner=header:X-P"])
@pytest.mark.parametrize("screen", [*product([360, 1200], ["light", "dark"])], ids=str)
def test_the_page_is_readable_on_any_screen(
    open_board: Opened, presence: Presence, variables: dict[str, str], screen: tuple[int, str]
) -> None:
    width, scheme = screen
    sample(variables, 3, 7, 4)
    presence.touch("x" * 200)
    board = open_board(viewport={"width": width, "height": 800}, color_scheme=scheme)
    expect(board.locator("#chart .line")).to_have_count(1)
    unlock(board, TOKEN)
    expect(board.locator("#online tr")).to_have_count(1)
    inspector = board.context.new_cdp_session(board)
    for size in (16, 28):  # of the text, which the reader chooses in the browser
        inspector.send("Page.setFontSizes", {"fontSizes": {"standard": size}})
        expect(board.locator("body")).to_have_css("font-size", f"{size}px")
        assert board.evaluate("document.documentElement.scrollWidth") == width
    ground = board.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 200) == (scheme == "dark")
    board.emulate_media(forced_colors="active")
    chosen = board.locator("#charted :checked + span")
    expect(chosen).to_have_css("outline", re.compile(r"^rgb\(\d+, \d+, \d+\) solid"))


@pytest.mark.slow
def test_a_hidden_page_sends_no_requests(open_board: Opened) -> None:
    board = open_board()
    expect(board.locator("#state")).to_have_text("live")
    hide(board, with_event=False)
    asked: list[str] = []
    board.on("request", lambda request: asked.append(request.url))
    other = open_board()
    for _ in range(2):
        with other.expect_response("**/counts"):
            pass
    assert asked == []
    with board.expect_response("**/counts") as answered:
        show(board)
    assert answered.value.request.headers["presence"] == "passive"
