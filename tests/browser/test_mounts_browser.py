"""The rooms of pages, of their pulses and of the widget in Chromium, below a mount point."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from presence_middleware import Presence, Settings
from tests.support.backends import Server, wait_until
from tests.support.browsers import chromium, needs_chromium
from tests.support.nginx import Nginx, needs_nginx
from tests.support.servers import WebServer, gunicorn, uvicorn

PERSON = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"  # no crawler
# The site is told by its tests where it is mounted, as templates are by their framework.
SITE = '''
import os

from presence_middleware import asgi, wsgi

PAGE = """<!doctype html><title>Shop</title>
<b data-presence data-room></b> <i data-presence data-room="{mount}/t/2"></i>
<u data-presence data-room="/else/t/1"></u>
<script src="{mount}/pulse.js" async></script>
<script src="{mount}/presence/widget.js" async></script>""".replace("{mount}", os.environ["MOUNT"])

def wsgi_app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/html")])
    return [PAGE.encode()]

async def asgi_app(scope, receive, send):
    headers = [(b"content-type", b"text/html")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": PAGE.encode()})

wsgi_site, asgi_site = wsgi.PresenceMiddleware(wsgi_app), asgi.PresenceMiddleware(asgi_app)
'''
STRIPPING = (
    "location {mount}/ {{ proxy_pass http://{address}/; proxy_set_header Host $http_host; }}"
)

pytestmark = [needs_chromium, pytest.mark.timeout(120)]


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
        headers = {"Cookie": f"member={name}", "User-Agent": PERSON}
        httpx.get(f"{self.url}/api", headers=headers, trust_env=False)
        wait_until(lambda: self.presence.is_online(name))


@pytest.fixture(
    params=[
        "no mount point",
        "SCRIPT_NAME",
        pytest.param("root_path, behind nginx", marks=needs_nginx),
        pytest.param("nginx, and nobody tells the app", marks=needs_nginx),
    ]
)
def shop(
    request: pytest.FixtureRequest, valkey: Server, prefix: str, tmp_path: Path
) -> Iterator[Shop]:
    mount = "" if request.param == "no mount point" else "/shop"
    variables = {
        **{"PRESENCE_REDIS_URL": valkey.url, "PRESENCE_PREFIX": prefix},
        **{"PRESENCE_PULSE_PATH": "/pulse", "PRESENCE_BOARD_PATH": "/presence"},
        **{"PRESENCE_ROOMS": "/t/{topic}/*", "PRESENCE_FLUSH_INTERVAL": "0.05s"},
        "PRESENCE_IDENTITY": "user=cookie:member:raw, guest=visitor",
    }
    (tmp_path / "app.py").write_text(SITE)
    command = gunicorn("app:wsgi_site", 1, "--threads=8")
    if request.param.startswith("root_path"):
        command = uvicorn("app:asgi_site", 1, f"--root-path={mount}", "--lifespan=off")
    told = {"SCRIPT_NAME": mount} if request.param == "SCRIPT_NAME" else {}
    with WebServer(command, tmp_path, tmp_path / "log", MOUNT=mount, **told, **variables) as server:
        if "nginx" not in request.param:
            yield Shop(server.address, mount, variables)
            return
        locations = STRIPPING.format(mount=mount, address=server.address)
        with Nginx(tmp_path / "nginx", locations) as proxy:
            yield Shop(proxy.address, mount, variables)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium(f"--user-agent={PERSON}") as browser:
        yield browser


def moves_without_a_request(page: Page, path: str) -> None:
    """Show another page, as a cache does, and let its script send a pulse."""
    with page.expect_response(lambda answer: "presence=here" in answer.url):
        page.evaluate(f"history.pushState(null, '', {path!r})")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def test_a_page_and_its_pulse_and_its_widget_mean_the_same_room(
    shop: Shop, browser: Browser
) -> None:
    with browser.new_context() as context:
        context.add_cookies([{"name": "member", "value": "ann", "url": shop.url}])
        page = context.new_page()
        with page.expect_response(lambda answer: "presence=here" in answer.url) as answer:
            page.goto(f"{shop.url}/t/1/a-title")
        assert answer.value.status == 204
        shop.writes_all()
        assert shop.in_room("/t/1") == ["ann"]
        mount = httpx.URL(shop.url).path.rstrip("/")
        moves_without_a_request(page, f"{mount}/t/2")
        wait_until(lambda: shop.in_room("/t/2") == ["ann"])
        page.reload()
        expect(page.locator("b")).to_have_text("1 online")
        expect(page.locator("i")).to_have_text("1 online")
        moves_without_a_request(page, f"{mount}/about")
        wait_until(lambda: shop.in_room("/t/2") == [])
        expect(page.locator("u")).to_have_text("")  # also after all answers
        assert shop.presence.is_online("ann")
        if mount:  # another app's page that has the script: this site cannot know its room
            moves_without_a_request(page, f"{mount}/t/2")
            moves_without_a_request(page, "/t/1")
            shop.writes_all()
            assert shop.in_room("/t/2") == ["ann"]
