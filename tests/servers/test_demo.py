"""`presence demo`: a real server with two workers, with and without its simulated crowd."""

import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from presence_middleware.demo.app import PAGES
from presence_middleware.embedded import socket_path
from tests.support.backends import wait_until
from tests.support.commands import run
from tests.support.demo import PRESENCE, Demo
from tests.support.servers import environment, free_port

IPV6 = Path("/proc/net/if_inet6")  # its addresses
BROWSER = {"Accept": "text/html", "User-Agent": "Mozilla/5.0 Firefox/140.0"}

pytestmark = pytest.mark.timeout(180)


def processes_of(folder: Path) -> list[str]:
    """What runs in a folder or has it on its command line: the embedded server and its keeper."""
    listed = run(["ps", "-eww", "-o", "args="])
    return [line for line in listed.stdout.splitlines() if str(folder) in line]


def refusal(port: int, **variables: str) -> str:
    """Return why a demo does not begin."""
    ended = run([PRESENCE, "demo", f"--port={port}"], env=environment(**variables))
    assert ended.returncode == 2
    return ended.stderr


def test_the_demo_ends_without_a_word_and_keeps_apart_from_a_site(tmp_path: Path) -> None:
    """Also while a browser holds a connection open, ahead of a request."""
    site = {
        "PRESENCE_PREFIX": "shop",
        "PRESENCE_ROOMS": "",
        "PRESENCE_IDENTITY": "member=auth",
        "PRESENCE_STORE": "member=hyperloglog",
        "PRESENCE_SHARDS": "4",
    }
    with (
        Demo(tmp_path, crowd=3, **site) as demo,
        socket.create_connection(("127.0.0.1", demo.port)),
    ):
        wait_until(lambda: sum(demo.state()["counts"].values()) > 0)
        printed = demo.output
        assert "PRESENCE_PREFIX=demo-crowd" in printed
        path = socket_path(tmp_path / "presence_middleware" / "demo")
        with Redis(unix_socket_path=str(path), decode_responses=True) as client:
            assert {key.partition(":")[0] for key in client.scan_iter()} == {"demo-crowd"}
        # The commands work in another shell with the settings of the site, and in one without.
        line = next(line for line in printed.splitlines() if "in another shell" in line)
        doctor = line.split(": ", 1)[1].replace("count guest", "doctor")
        for given in (demo.environment, environment(XDG_STATE_HOME=str(tmp_path))):
            assert run(doctor, shell=True, env=given).returncode == 0
        assert processes_of(tmp_path)
        assert demo.interrupt(signal.SIGTERM) == 0
        assert demo.output == printed
        assert processes_of(tmp_path) == []


@pytest.mark.skipif(not (IPV6.exists() and IPV6.read_text()), reason="no IPv6 here")
def test_the_address_of_an_ipv6_host_is_one_that_a_browser_opens(tmp_path: Path) -> None:
    port = free_port()
    command = [PRESENCE, "demo", "--host=::1", f"--port={port}", "--crowd=0"]
    given = environment(XDG_STATE_HOME=str(tmp_path))
    with subprocess.Popen(command, env=given, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout
        printed = demo.stdout.readline()
        demo.terminate()
        assert printed == f"Who is online: http://[::1]:{port}/\n"


def test_each_page_shows_how_many_people_are_on_it(tmp_path: Path) -> None:
    unset = {"PRESENCE_REDIS_URL": "", "PRESENCE_BOARD_PATH": "", "PRESENCE_BOARD_TOKEN": ""}
    with Demo(tmp_path, 0, **unset) as demo:
        assert "simulated" not in demo.output
        assert "you are bot curl," in demo.get("curl/8")
        client = demo.visitor
        for number, path in enumerate(PAGES, 1):
            html = client.get(path, headers={**BROWSER, "User-Agent": f"Firefox/{number}"}).text
            assert "1 person on this page" in html
            assert "data-room" in html
        wait_until(lambda: demo.state()["pages"] == dict.fromkeys(PAGES, 1))
        assert "2 people on this page" in client.get("/t/tea", headers=BROWSER).text
        # This takes longer than the clocks of two workers may differ.
        assert "pass another --port" in refusal(demo.port, XDG_STATE_HOME="/nowhere")
        # Each worker would show a number of its own, and no other shell any.
        assert "leave PRESENCE_REDIS_URL out" in refusal(1, PRESENCE_REDIS_URL="memory://")
        # A reader moves on: nobody is on two pages.
        html = client.get("/t/stars", headers=BROWSER).text
        wait_until(lambda: demo.state()["pages"] == {**dict.fromkeys(PAGES, 1), "/t/stars": 2})
        for script in re.findall(r'<script src="(.*?)"', html):
            assert client.get(script).status_code == 200

        client.post("/login", data={"name": "Ada <script>"})
        # The worker that answered writes the user within its interval.
        wait_until(lambda: demo.state()["counts"]["user"] == 1)
        board, token = demo.board()
        assert "Who is online" in client.get(board).text
        listed = client.get(f"{board}/online", headers=token).json()["online"]
        assert [each["id"] for each in listed] == ["Ada <script>"]
        line = next(line for line in demo.output.splitlines() if "in another shell" in line)
        count = line.split(": ", 1)[1].replace("count guest", "count user")
        assert run(count, shell=True, env=demo.environment).stdout == "1\n"
        client.post("/logout")
        wait_until(lambda: demo.state()["counts"]["user"] == 0)
        assert demo.interrupt() == 0


def simulated(demo: Demo) -> list[str]:
    return [user["id"] for user in demo.state()["online"].get("user", [])]


@pytest.mark.slow
def test_the_crowd_is_labelled_and_moves_from_the_start(tmp_path: Path) -> None:
    with Demo(tmp_path, crowd=None) as demo:
        note = "40 visitors are simulated"
        assert f"{note}, also in the chart: --crowd 0 switches them off" in demo.output
        wait_until(lambda: demo.state()["counts"]["guest"] >= 15)
        state = demo.state()
        assert state["counts"]["user"] + state["counts"]["guest"] <= 40
        assert state["counts"]["bot"] == 0
        assert sum(state["pages"].values()) >= 15
        assert simulated(demo)
        assert all(name.endswith(" (simulated)") for name in simulated(demo))
        assert note in demo.visitor.get("/t/tea", headers=BROWSER).text
        assert note in demo.get("Lynx")
        wait_until(lambda: demo.state()["pages"] != state["pages"])

        # The board has a chart of the last day, which goes on.
        board, token = demo.board()
        samples = demo.visitor.get(f"{board}/history?kind=guest", headers=token).json()["samples"]
        assert len(samples) > 1000
        assert demo.interrupt(signal.SIGHUP) == 0

    # The same embedded server, and within the window of the crowd.
    with Demo(tmp_path) as demo:
        assert "1 guest online\n0 bots online\n1 person on this page\n" in demo.get("Lynx")


def test_each_page_answers_with_redis_away(tmp_path: Path) -> None:
    with Demo(tmp_path, 3, PRESENCE_REDIS_URL=f"unix://{tmp_path}/none") as demo:
        for path in PAGES:
            page = demo.visitor.get(path, headers=BROWSER)
            assert page.status_code == 200
            assert "on this page" not in page.text
            assert "The number online is unknown" in demo.get("Lynx", path)
        answers: list[Any] = [
            demo.visitor.post("/login", data={"name": "Ada", "page": "/t/tea"}),
            demo.visitor.post("/logout"),
        ]
        assert [(each.status_code, each.headers["location"]) for each in answers] == [
            (303, "/t/tea"),
            (303, "/"),
        ]
        assert "error" in demo.state()
        assert demo.interrupt() == 0
