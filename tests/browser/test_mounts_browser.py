"""The rooms of pages, of their pulses and of the widget in Chromium, below a mount point."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from presence_middleware import Presence, Settings
from tests.browser.conftest import NewContext
from tests.support.backends import Server, wait_until
from tests.support.nginx import Nginx, needs_nginx
from tests.support.servers import ROOT, WebServer, gunicorn, uvicorn
from tests.support.statuses import FIREFOX

STRIPPED = "location {mount}/ {{ proxy_pass http://{address}/; proxy_set_header Host $http_host; }}"

pytestmark = pytest.mark.timeout(120)


class Shop:
    """A site at a mount point. `url` is its address in the browser."""

    def __init__(self, address: str, mount: str, variables: dict[str, str]) -> None:
        self.url = f"http://{address}{mount}"
        self.presence = Presence(Settings.from_env(variables))

    def in_room(self, room: str) -> list[str]:
        return [who.id for who in self.presence.online(room=room)]

    def writes_all(self) -> None:
        """Wait until everything is written that the site has received so far."""
        name = uuid.uuid4().hex
        headers = {"Cookie": f"member={name}", "User-Agent": FIREFOX}
        httpx.get(f"{self.url}/api", headers=headers, trust_env=False)
        wait_until(lambda: self.presence.is_online(name))


@pytest.fixture(
    params=[
        "SCRIPT_NAME",
        pytest.param("root_path, behind nginx", marks=needs_nginx),
        pytest.param("nginx, and nobody tells the app", marks=needs_nginx),
    ]
)
def shop(
    request: pytest.FixtureRequest, valkey: Server, prefix: str, tmp_path: Path
) -> Iterator[Shop]:
    mount = "/shop"
    variables = {
        **{"PRESENCE_REDIS_URL": valkey.url, "PRESENCE_PREFIX": prefix},
        **{"PRESENCE_PULSE_PATH": "/pulse", "PRESENCE_BOARD_PATH": "/presence"},
        **{"PRESENCE_ROOMS": "/t/{topic}/*", "PRESENCE_FLUSH_INTERVAL": "0.05s"},
        "PRESENCE_IDENTITY": "user=cookie:member:raw, guest=visitor",
    }
    # The site is told where it is mounted, as templates are by their framework.
    command = gunicorn("tests.support.site:wsgi_site", 1, "--threads=8")
    if request.param.startswith("root_path"):
        command = uvicorn(
            "tests.support.site:asgi_site", 1, f"--root-path={mount}", "--lifespan=off"
        )
    told = {"SCRIPT_NAME": mount} if request.param == "SCRIPT_NAME" else {}
    variables |= {"HTML": "1", "MOUNT": mount}
    with WebServer(command, ROOT, tmp_path / "log", **told, **variables) as server:
        if "nginx" not in request.param:
            yield Shop(server.address, mount, variables)
            return
        locations = STRIPPED.format(mount=mount, address=server.address)
        with Nginx(tmp_path / "nginx", locations) as proxy:
            yield Shop(proxy.address, mount, variables)


def moves_without_a_request(page: Page, path: str) -> None:
    """Show another page, as a cache does, and let its script send a pulse."""
    with page.expect_response(lambda answer: "presence=here" in answer.url):
        page.evaluate(f"history.pushState(null, '', {path!r})")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def shown_anew(page: Page) -> list[str]:
    """Return what the widgets show, after they have asked again. Answers are kept for a second."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_timeout(100)
    return [page.locator(place).inner_text() for place in ("b", "i")]


def test_a_page_its_pulse_and_its_widget_mean_one_room(shop: Shop, new_context: NewContext) -> None:
    context = new_context()
    context.add_cookies([{"name": "member", "value": "ann", "url": shop.url}])
    page = context.new_page()
    page.clock.install()
    with page.expect_response(lambda answer: "presence=here" in answer.url) as answer:
        page.goto(f"{shop.url}/t/1/a-title")
    assert answer.value.status == 204
    shop.writes_all()
    assert shop.in_room("/t/1") == ["ann"]
    mount = httpx.URL(shop.url).path.rstrip("/")
    moves_without_a_request(page, f"{mount}/t/2")
    wait_until(lambda: shop.in_room("/t/2") == ["ann"])
    page.reload()
    wait_until(lambda: shown_anew(page) == ["1 online", "1 online"])
    moves_without_a_request(page, f"{mount}/about")
    wait_until(lambda: shop.in_room("/t/2") == [])
    expect(page.locator("u")).to_have_text("")  # also after all answers
    assert shop.presence.is_online("ann")
    # Another app's page that has the script: this site cannot know its room.
    moves_without_a_request(page, f"{mount}/t/2")
    moves_without_a_request(page, f"{mount}s/t/1")
    shop.writes_all()
    assert shop.in_room("/t/2") == ["ann"]
    page.clock.fast_forward(3_000)
    with page.expect_response("**/counts"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    with page.expect_request("**/counts"):  # again, when the reader is counted, too
        page.clock.fast_forward(3_000)
    for _ in range(2):
        with page.expect_request("**/counts"):
            page.clock.fast_forward(65_000)
