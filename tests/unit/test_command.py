"""The `presence` command as a user calls it: a process, its output, its exit status."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from presence_middleware import Presence, Settings
from tests.support.backends import Server, wait_until
from tests.support.servers import environment, free_port

PRESENCE = str(Path(sys.executable).parent / "presence")


def presence(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [PRESENCE, *arguments]
    return subprocess.run(
        command, env=environment(**settings), capture_output=True, text=True, timeout=30
    )


@pytest.fixture
def site(valkey: Server, prefix: str) -> dict[str, str]:
    return {"PRESENCE_REDIS_URL": valkey.url, "PRESENCE_PREFIX": prefix}


def test_count_and_online_answer_as_the_site_does(site: dict[str, str]) -> None:
    reader = Presence(Settings.from_env(site))
    reader.touch("bob")
    reader.touch("eve", "guest")
    assert presence("count", **site).stdout == "1\n"
    assert presence("count", "guest", **site).stdout == "1\n"
    assert re.fullmatch(r"bob\t\d+s\n", presence("online", **site).stdout)
    reader.touch("alice")
    assert presence("online", "--limit", "1", **site).stdout.startswith("alice\t")
    reader.leave("alice")
    assert presence("count", "--window", "20d", **site).stdout == "1\n"


def test_minute_sets_have_no_times_to_print(site: dict[str, str]) -> None:
    site["PRESENCE_STORE"] = "minute-sets"
    Presence(Settings.from_env(site)).touch("bob")
    assert presence("online", **site).stdout == "bob\n"


def test_an_id_cannot_command_the_terminal(site: dict[str, str]) -> None:
    Presence(Settings.from_env(site)).touch("\x1b[2Jbob\nroot\u202e\t1s")
    shown = presence("online", **site).stdout
    assert shown.startswith("\\x1b[2Jbob\\nroot\\u202e\\t1s\t")
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "settings", "status", "says"),
    [
        (["count", "member"], {}, 2, "unknown kind 'member'"),
        (["count", "--window", "soon"], {}, 2, "window is 'soon'"),
        (["count"], {"PRESENCE_WINDOW": "soon"}, 2, "PRESENCE_WINDOW='soon'"),
        (["online"], {"PRESENCE_STORE": "hyperloglog"}, 2, "sorted-set and minute-sets can"),
        (["count"], {"PRESENCE_REDIS_URL": "redis://localhost:1"}, 3, "Redis did not answer"),
    ],
)
def test_errors_are_reported_with_an_exit_status(
    site: dict[str, str], arguments: list[str], settings: dict[str, str], status: int, says: str
) -> None:
    ended = presence(*arguments, **{**site, **settings})
    assert ended.returncode == status
    assert ended.stdout == ""
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr


def test_counting_an_in_memory_site_from_outside_is_an_error_not_zero() -> None:
    ended = presence("count", PRESENCE_REDIS_URL="memory://")
    assert ended.returncode == 2
    assert "inside the process of the site" in ended.stderr


def test_commands_never_start_a_server(tmp_path: Path) -> None:
    ended = presence("count", PRESENCE_REDIS_URL=f"embedded://{tmp_path}/site")
    assert ended.returncode == 3
    assert "no embedded server is running" in ended.stderr
    assert not (tmp_path / "site").exists()


def test_without_click_the_command_names_the_package_to_install() -> None:
    program = (
        "import sys; sys.modules['click'] = None; from presence_middleware.cli import main; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert "pip install 'presence_middleware[cli]'" in ended.stderr


class Demo:
    """`presence demo` in a session of its own."""

    def __init__(self, state: Path) -> None:
        self.port = free_port()
        self.environment = environment(XDG_STATE_HOME=str(state))
        self._log = (state / "log").open("w+")
        self.process = subprocess.Popen(
            [PRESENCE, "demo", f"--port={self.port}"],
            env=self.environment,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", trust_env=False)
        wait_until(lambda: "Ctrl-C" in self.output(), 20)

    def output(self) -> str:
        assert self.process.poll() is None, Path(self._log.name).read_text()
        return Path(self._log.name).read_text()

    def get(self, agent: str) -> str:
        return self.client.get("/", headers={"User-Agent": agent}).text

    def close(self) -> None:
        self.client.close()
        self._log.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    demo = Demo(tmp_path)
    yield demo
    demo.close()


def shell(command: str, environment: dict[str, str]) -> str:
    return subprocess.run(command, shell=True, env=environment, stdout=-1, text=True).stdout


def processes_of(folder: Path) -> list[str]:
    """What runs in a folder or has it on its command line: the embedded server and its keeper."""
    listed = subprocess.run(["ps", "-eww", "-o", "args="], capture_output=True, text=True).stdout
    return [line for line in listed.splitlines() if str(folder) in line]


def test_the_demo_shows_visitors_and_leaves_nothing_behind(demo: Demo, tmp_path: Path) -> None:
    assert "you are bot curl," in demo.get("curl/8")
    assert "1 guest online\n1 bot online" in demo.get("Lynx")
    workers = set()
    for _ in range(200):
        text = demo.get("browser")
        workers.add(text.rsplit(maxsplit=1)[1])
        if len(workers) == 2:
            break
    assert len(workers) == 2
    assert "2 guests online" in text
    page = demo.client.get("/", headers={"Accept": "text/html"})
    assert page.headers["content-type"].startswith("text/html")

    demo.client.post("/login", data={"name": "Ada <script>"})
    state = demo.client.get("/online.json").json()
    assert state["you"] == {"kind": "user", "id": "Ada <script>"}
    assert state["counts"]["user"] == 1
    board, token = re.findall(r"the board: (\S+), its token: (\S+)", demo.output())[0]
    assert "Who is online" in demo.client.get(board).text
    named = demo.client.get(f"{board}/online", headers={"Authorization": f"Bearer {token}"})
    assert [one["id"] for one in named.json()["online"]] == ["Ada <script>"]
    told = next(line for line in demo.output().splitlines() if "in another shell" in line)
    count = told.split(": ", 1)[1]
    # The worker that answered without asking writes the second guest within its interval.
    wait_until(lambda: shell(count, demo.environment) == "2\n")
    demo.client.post("/logout")
    assert demo.client.get("/online.json").json()["counts"]["user"] == 0
    assert demo.client.get("/nothing").status_code == 404

    assert processes_of(tmp_path)
    os.killpg(demo.process.pid, signal.SIGINT)  # Ctrl-C reaches the whole group
    assert demo.process.wait(15) == 0
    assert processes_of(tmp_path) == []


def test_the_demo_reports_that_its_port_is_taken(demo: Demo) -> None:
    second = presence("demo", f"--port={demo.port}", XDG_STATE_HOME="/nowhere")
    assert second.returncode == 2
    assert "pass another --port" in second.stderr


def test_the_demo_shows_the_reason_when_redis_is_unavailable(tmp_path: Path) -> None:
    """Other sites decide themselves what to show; the demo shows the reason."""
    from presence_middleware.demo.app import app as demo_app
    from presence_middleware.wsgi import PresenceMiddleware

    app = PresenceMiddleware(demo_app, settings=Settings(redis_url=f"unix://{tmp_path}/none"))  # type: ignore[arg-type]
    transport = httpx.WSGITransport(app=app)
    with httpx.Client(transport=transport, base_url="http://demo") as client:
        answer = client.get("/")
        assert answer.status_code == 200
        assert "The number online is unknown" in answer.text
    app.recorder.close()


@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
def test_the_demo_lists_users_from_a_store_without_times(store: str, prefix: str) -> None:
    from presence_middleware.demo.app import app as demo_app
    from presence_middleware.wsgi import PresenceMiddleware

    settings = Settings.from_env({}, redis_url=f"memory://{prefix}", store=store)
    app = PresenceMiddleware(demo_app, settings=settings)
    transport = httpx.WSGITransport(app=app)
    with httpx.Client(transport=transport, base_url="http://demo") as client:
        client.cookies.set("demo-name", "ann")
        assert "user ann, 0s ago" in client.get("/").text
    app.recorder.close()
