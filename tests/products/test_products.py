"""People at real products: guests, refused logins, logins and logouts, as settings alone tell."""

from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import httpx
import pytest

from presence_middleware import Presence, Settings
from tests.products.catalog import PASSWORD, PRODUCTS, SECRET, WRONG_PASSWORD, Product
from tests.support.asking import Request, ids
from tests.support.backends import wait_until
from tests.support.products import python_of
from tests.support.servers import WebServer

# An environment is installed within the time of the first test that needs it.
pytestmark = [pytest.mark.products, pytest.mark.timeout(600)]

SITE = Settings.from_env({}, identity="guest=visitor", secret=SECRET, enabled=False)
WRITTEN_SECONDS = 30.0  # as long as a machine that stalls may keep its server from an answer
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:{0}.0) Gecko/20100101 Firefox/{0}.0"


class Visitors:
    """Browsers at a product, each of a version of its own and so a guest of its own."""

    def __init__(self, product: Product, server: WebServer, presence: Presence) -> None:
        self.product, self.server, self._presence = product, server, presence
        self._versions = count(100)
        with self.open() as client:
            self.user = product.arrive(client)

    def open(self) -> httpx.Client:
        return self.server.client(FIREFOX.format(next(self._versions)))

    def see(self, client: httpx.Client, page: str = "") -> None:
        """Open a page, by default one that counts for everybody; it may ask for a login."""
        assert not client.get(page or self.product.page).is_server_error, self.server.output

    def users(self) -> list[str]:
        """Return the ids of users online, once all visits so far are written.

        A process writes all that waits at once, so the sign is that a later guest was written; and
        that write is complete when the one after it has begun.
        """
        for _ in range(2):
            with self.open() as guest:
                self.see(guest)
                agent = guest.headers["User-Agent"].encode()
            id = str(ids(SITE, Request([("User-Agent", agent)], peer="127.0.0.1")))
            wait_until(partial(self._presence.is_online, id, "guest"), WRITTEN_SECONDS)
        return [seen.id for seen in self._presence.online("user")]


@pytest.fixture(params=PRODUCTS)
def visitors(
    request: pytest.FixtureRequest, tmp_path: Path, variables: dict[str, str], presence: Presence
) -> Iterator[Visitors]:
    """Those of each product; at the end its server must have complained of nothing."""
    product = PRODUCTS[request.param]()
    requirements = tuple(filter(None, [*product.requirements, product.server]))
    python = python_of(product.name, requirements, product.extras)
    folder = tmp_path / "product"
    folder.mkdir()
    product.prepare(folder, python)
    recorded = {"PRESENCE_FLUSH_INTERVAL": "0.1s", "PRESENCE_SECRET": SECRET, **variables}
    told = {**recorded, **product.settings, **product.environment(folder)}
    log = tmp_path / "log"
    with WebServer(product.command, folder, log, python=python, **told) as server:
        yield Visitors(product, server, presence)
        assert "Traceback" not in server.output, server.output


def test_login_makes_a_guest_a_user_unless_refused(visitors: Visitors, presence: Presence) -> None:
    product = visitors.product
    assert visitors.users() == []
    with visitors.open() as stranger:
        product.log_in(stranger, WRONG_PASSWORD)
        assert not product.knows(stranger)
        for page in product.public_pages:
            visitors.see(stranger, page)
        assert visitors.users() == [], "a refused login brings no user online"
    with visitors.open() as ada:
        guests = presence.count("guest")
        visitors.see(ada)
        visitors.see(ada, product.private_page)
        assert visitors.users() == []
        assert presence.count("guest") == guests + 3, "Ada and those who were looked for"

        product.log_in(ada, PASSWORD)
        assert product.knows(ada)
        assert visitors.users() == [visitors.user]

        if product.has_logout:
            product.log_out(ada)
            assert not product.knows(ada)
            wait_until(lambda: not presence.is_online(visitors.user), WRITTEN_SECONDS)
            visitors.see(ada)
            assert visitors.users() == []
            assert presence.last_seen(visitors.user) is not None
