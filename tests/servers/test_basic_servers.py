"""Sites that check HTTP Basic themselves, on real servers: a refused login is not recorded."""

from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from presence_middleware import Presence
from tests.support.backends import wait_until
from tests.support.servers import ROOT, Command, WebServer, gunicorn, uvicorn, waitress
from tests.support.statuses import FIREFOX, basic

SITE = "tests.support.basic_site"
RIGHT, WRONG = basic("ann:opensesame"), basic("ann:guessed")
SERVERS = {
    "gunicorn": gunicorn(f"{SITE}:wsgi_wrapped", 1, "--worker-class=gthread"),
    "waitress": waitress(f"{SITE}:wsgi_wrapped"),
    "uvicorn": uvicorn(f"{SITE}:asgi_wrapped"),
}


@pytest.fixture
def settings(variables: dict[str, str]) -> dict[str, str]:
    return {
        **variables,
        "PRESENCE_IDENTITY": "user=basic, guest=visitor",
        "PRESENCE_FLUSH_INTERVAL": "0.05s",
        "PRESENCE_LOGOUT": "/logout",
    }


@pytest.mark.parametrize("command", SERVERS.values(), ids=SERVERS)
def test_a_wrong_password_is_a_guest_and_the_right_password_is_the_user(
    command: Command, settings: dict[str, str], presence: Presence, tmp_path: Path
) -> None:
    def ask(authorization: str, path: str = "/") -> tuple[int, str]:
        response = client.get(path, headers={"Authorization": authorization})
        return response.status_code, response.text

    with WebServer(command, ROOT, tmp_path / "log", **settings) as server:
        with server.client(FIREFOX) as client:  # which keeps its connection
            for path in ("/", "/stream", "/logout"):
                assert ask(WRONG, path) == (401, "no")
            wait_until(lambda: presence.count("guest") == 1)
            assert presence.count("user") == 0
            assert ask(RIGHT, "/stream")[1].endswith("yes")
            wait_until(lambda: presence.is_online("ann"))
            assert ask(WRONG, "/logout")[0] == 401
            assert ask(RIGHT)[0] == 200
            assert presence.is_online("ann"), "nobody logs out with a guessed password"
            assert ask(RIGHT, "/logout")[0] == 200
            wait_until(lambda: not presence.is_online("ann"))
            assert presence.counts() == {"user": 0, "guest": 1, "bot": 0}
        assert "Traceback" not in server.output


def test_a_refused_websocket_is_not_recorded(
    settings: dict[str, str], presence: Presence, tmp_path: Path
) -> None:
    with WebServer(SERVERS["uvicorn"], ROOT, tmp_path / "log", **settings) as server:
        url = f"ws://{server.address}/"
        with pytest.raises(InvalidStatus, match="403"):
            connect(url, additional_headers={"Authorization": WRONG}, user_agent_header=FIREFOX)
        wait_until(lambda: presence.count("guest") == 1)
        assert presence.count("user") == 0
        with connect(url, additional_headers={"Authorization": RIGHT}):
            wait_until(lambda: presence.is_online("ann"))
