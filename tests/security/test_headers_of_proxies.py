"""Inner layers that remove or spoil what the wrapper needs of a request behind a proxy."""

from collections.abc import Iterator
from typing import Any

import pytest

from presence_middleware import Presence, Settings, wsgi
from presence_middleware.recorder import recorder_for
from tests.support.statuses import FIREFOX

State = dict[str, Any]


def without_header(environ: State, start_response: Any) -> list[bytes]:
    """A layer such as paste.deploy's PrefixMiddleware: it takes the header out of the environ."""
    environ["REMOTE_ADDR"] = environ.pop("HTTP_X_FORWARDED_FOR")
    start_response("200 OK", [])
    return [b""]


@pytest.fixture
def site(prefix: str) -> Iterator[Settings]:
    given = Settings.from_env(
        {},
        redis_url=f"memory://{prefix}",
        identity="user=cookie:user:raw, guest=visitor",
        trusted_proxies="1",
        secret="s" * 32,
    )
    yield given
    recorder_for(given).close()


def ask(site: Settings, app: Any = without_header, **more: Any) -> None:
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "SCRIPT_NAME": "", "HTTP_HOST": "x"}
    environ |= {"REMOTE_ADDR": "10.0.0.1", "HTTP_USER_AGENT": FIREFOX, **more}
    wsgi.PresenceMiddleware(app, settings=site)(environ, lambda *_: list[bytes]().append)


def test_guests_stay_apart_if_a_layer_removes_the_header_of_the_proxy(site: Settings) -> None:
    for _ in range(2):
        for client in range(20):
            ask(site, HTTP_X_FORWARDED_FOR=f"198.51.100.{client}")
        recorder_for(site).flush()
        assert Presence(site).count("guest") == 20


@pytest.mark.parametrize("address", [b"10.0.0.1", 5, ["x"]])
def test_an_address_that_is_no_text_fails_no_request(site: Settings, address: object) -> None:
    def app(environ: State, start_response: Any) -> list[bytes]:
        return [b""]

    for number in range(3):
        ask(site, app, REMOTE_ADDR=address, HTTP_COOKIE=f"user=u{number}")
    ask(site, app, REMOTE_ADDR=address)
