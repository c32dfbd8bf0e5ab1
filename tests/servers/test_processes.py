"""Servers that start, replace and end processes; forks, event loops, and where no thread runs."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import redis
import trio

from presence_middleware import (
    AsyncPresence,
    Presence,
    Settings,
    SettingsError,
    WouldBlock,
    asgi,
    presence_of,
)
from presence_middleware.connections import health
from presence_middleware.recorder import Recorder, worker
from presence_middleware.wsgi import WsgiVisit
from tests.support.backends import Server, wait_until
from tests.support.servers import (
    ENDED,
    ROOT,
    TIMEOUT,
    Command,
    WebServer,
    environment,
    granian,
    gunicorn,
    hypercorn,
    uvicorn,
    uwsgi,
    waitress,
)
from tests.support.stopwatch import Stopwatch

WSGI, ASGI = "tests.support.site:wsgi_site", "tests.support.site:asgi_site"
NEVER = "100s"  # until the next regular write: longer than any of these tests
IDENTITY = "user=header:X-User"
WITHOUT_THREADS = {"WITHOUT_THREADS": "1"}
ROW = re.compile(r"^\| (.+?) \| (stored|may be lost) \|$", re.MULTILINE)
README = dict(ROW.findall((ROOT / "docs" / "servers.md").read_text()))

GUNICORN = "gunicorn: sync, gthread, gevent, asgi, uvicorn workers; with and without `--preload`"
UVICORN, NO_LIFESPAN = "uvicorn, asyncio and uvloop", "uvicorn without a lifespan"
HYPERCORN = "hypercorn with one worker: asyncio, uvloop, trio"
HYPERCORN_WORKERS = "hypercorn with several workers: the first to end has the others killed"
GRANIAN = ("granian, ASGI", "granian, WSGI")
UWSGI = ("uWSGI with `--master`, with and without threads", "uWSGI with gevent")
PRELOAD = "--preload"


class Case(NamedTuple):
    """A server, and the row of the README's table that tells of it."""

    row: str
    command: Command
    workers: int = 2
    variables: dict[str, str] = {}  # noqa: RUF012 - nobody writes to it


CASES = {
    "gunicorn": Case(GUNICORN, gunicorn(WSGI, 2)),
    "uvicorn": Case(UVICORN, uvicorn(ASGI), 1),
    "hypercorn trio": Case(HYPERCORN, hypercorn(ASGI, 1, "-ktrio"), 1),
    "granian asgi": Case(GRANIAN[0], granian(ASGI, 2, "--interface=asgi")),
    "waitress": Case("waitress", waitress(WSGI), 1),
    # Those below are slow.
    "gunicorn gevent preload": Case(GUNICORN, gunicorn(WSGI, 2, "-kgevent", PRELOAD)),
    "uvicorn without lifespan": Case(NO_LIFESPAN, uvicorn(ASGI, 1, "--lifespan=off"), 1),
    "granian wsgi": Case(GRANIAN[1], granian(WSGI, 2, "--interface=wsgi")),
    "gunicorn preload": Case(GUNICORN, gunicorn(WSGI, 2, PRELOAD)),
    "gthread": Case(GUNICORN, gunicorn(WSGI, 2, "--threads=4")),
    "gthread preload": Case(GUNICORN, gunicorn(WSGI, 2, "--threads=4", PRELOAD)),
    "gunicorn gevent": Case(GUNICORN, gunicorn(WSGI, 2, "-kgevent")),
    "gunicorn asgi": Case(GUNICORN, gunicorn(ASGI, 2, "-kasgi")),
    "gunicorn uvicorn": Case(GUNICORN, gunicorn(ASGI, 2, "-kuvicorn.workers.UvicornWorker")),
    "uvicorn asyncio": Case(UVICORN, uvicorn(ASGI, 2, "--loop=asyncio")),
    "uvicorn uvloop": Case(UVICORN, uvicorn(ASGI, 2, "--loop=uvloop")),
    "uvicorn workers off": Case(NO_LIFESPAN, uvicorn(ASGI, 2, "--lifespan=off")),
    "hypercorn asyncio": Case(HYPERCORN, hypercorn(ASGI), 1),
    "hypercorn uvloop": Case(HYPERCORN, hypercorn(ASGI, 1, "-kuvloop"), 1),
    "hypercorn workers": Case(HYPERCORN_WORKERS, hypercorn(ASGI, 2)),
    "hypercorn uvloop workers": Case(HYPERCORN_WORKERS, hypercorn(ASGI, 2, "-kuvloop")),
    "hypercorn trio workers": Case(HYPERCORN_WORKERS, hypercorn(ASGI, 2, "-ktrio")),
    "uwsgi without threads": Case(UWSGI[0], uwsgi(WSGI, 2), 2, WITHOUT_THREADS),
    "uwsgi gevent": Case(UWSGI[1], uwsgi(WSGI, 2, "--gevent=9", "--gevent-monkey-patch")),
    "uwsgi": Case(UWSGI[0], uwsgi(WSGI, 2)),
    "uwsgi threads": Case(UWSGI[0], uwsgi(WSGI, 2, "--threads=2")),
}


@pytest.fixture
def variables(variables: dict[str, str]) -> dict[str, str]:
    return variables | {"PRESENCE_IDENTITY": IDENTITY, "PRESENCE_FLUSH_INTERVAL": NEVER}


@pytest.fixture
def own_server(tmp_path: Path, valkey: Server) -> Iterator[Server]:
    """A server that the test may stop."""
    server = Server(valkey.binary, tmp_path)
    yield server
    server.process.send_signal(signal.SIGCONT)
    server.stop()


def ask(server: WebServer, user: str, path: str = "/pid") -> str:
    """By which process one was answered, over a connection of his own."""
    url, headers = f"http://{server.address}{path}", {"X-User": user}
    response = httpx.get(url, headers=headers, timeout=TIMEOUT, trust_env=False, verify=False)
    assert response.status_code == 200, server.output
    return response.text


def crowd(server: WebServer, workers: int) -> set[str]:
    """People who ask until so many processes have answered."""
    asked: set[str] = set()
    seen: set[str] = set()

    def everybody_answered() -> bool:
        names = [f"u{n}" for n in range(len(asked), len(asked) + 8)]
        asked.update(names)
        with ThreadPoolExecutor(8) as pool:
            seen.update(pool.map(lambda name: ask(server, name), names))
        return len(seen) >= workers

    wait_until(everybody_answered)
    return asked


def online(presence: Presence) -> set[str]:
    return {seen.id for seen in presence.online(limit=None)}


def ask_last(server: WebServer, presence: Presence, asked: set[str]) -> str:
    """Ask in the name of a user whose sighting waits for the next flush; return the name.

    A worker may still be about to write its first sightings, and takes another with them.
    """
    for number in range(20):
        name = f"last{number}"
        ask(server, name)
        asked.add(name)
        if not presence.is_online(name):
            return name
    raise AssertionError("every sighting was written at once")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=id, marks=[] if number < 5 else [pytest.mark.slow])
        for number, (id, case) in enumerate(CASES.items())
    ],
)
def test_all_workers_count_and_the_last_sighting_is_stored_as_the_readme_promises(
    variables: dict[str, str], presence: Presence, tmp_path: Path, case: Case
) -> None:
    variables |= case.variables
    with WebServer(case.command, ROOT, tmp_path / "log", **variables) as server:
        asked = crowd(server, case.workers)
        if "-ktrio" not in case.command(0):  # where asynchronous readers refuse
            asked.add("reader")
            assert '"user"' in ask(server, "reader", "/count")
        wait_until(lambda: presence.count() >= case.workers)  # each one's first, at once
        last = ask_last(server, presence, asked)
        assert server.stop() in ENDED
        said = "background threads are disabled" in server.output
    assert said == (case.variables == WITHOUT_THREADS)
    if README[case.row] == "stored":
        assert presence.is_online(last)
        assert online(presence) == asked


def test_the_readme_lists_the_tested_servers() -> None:
    assert set(README) == {case.row for case in CASES.values()}


@pytest.mark.parametrize("command", [gunicorn(WSGI), uvicorn(ASGI)], ids=["gunicorn", "uvicorn"])
def test_a_hung_redis_holds_up_the_end_of_a_server_for_two_seconds_at_most(
    variables: dict[str, str], own_server: Server, tmp_path: Path, command: Command
) -> None:
    variables |= {"PRESENCE_REDIS_URL": own_server.url}
    with WebServer(command, ROOT, tmp_path / "log", **variables) as server:
        ask(server, "first", "/count")  # which is written when the answer comes
        own_server.process.send_signal(signal.SIGSTOP)
        ask(server, "last")
        with Stopwatch() as watch:
            assert server.stop() in ENDED
        assert watch.seconds < 3.0  # gunicorn itself takes up to one
        assert "shutting down with 1 sightings unwritten" in server.output


@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(("--threads=4",), marks=pytest.mark.slow),
        pytest.param(("-kgevent",), marks=pytest.mark.slow),
    ],
    ids=["sync", "gthread", "gevent"],
)
def test_no_user_is_lost_when_workers_are_replaced_under_load(
    variables: dict[str, str], presence: Presence, tmp_path: Path, options: tuple[str, ...]
) -> None:
    command = gunicorn(WSGI, 2, "--max-requests=10", *options)
    with WebServer(command, ROOT, tmp_path / "log", **variables) as server:
        names: set[str] = set()

        def are_all_replaced() -> bool:
            """Whether who was to end has a successor, which obeys signals."""
            return server.output.count("ready") == 2 + server.output.count("Autorestarting")

        while server.output.count("ready") < 5:
            names.add(f"u{len(names)}")
            ask(server, f"u{len(names) - 1}")
        # Without requests, for each of them may be the last of a worker. Gunicorn forgets to stop
        # one that is just booting.
        wait_until(are_all_replaced)
        assert server.stop() in ENDED
    assert online(presence) == names


def test_readers_do_not_block_each_other_when_gevent_patches_late(
    variables: dict[str, str], own_server: Server, tmp_path: Path
) -> None:
    """With `--preload`, gunicorn patches the locks of threads after the app was made."""
    url = f"{own_server.url}?socket_timeout=9"
    variables |= {"PRESENCE_REDIS_URL": url, "PRESENCE_FLUSH_INTERVAL": "0.05s"}
    presence = Presence(Settings.from_env(variables))
    command = gunicorn(WSGI, 1, "-kgevent", PRELOAD)
    with WebServer(command, ROOT, tmp_path / "log", **variables) as server:
        ask(server, "first")
        wait_until(presence.count)
        own_server.process.send_signal(signal.SIGSTOP)
        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(ask, server, f"r{n}", "/count") for n in range(2)]
            for number in range(10):
                ask(server, f"u{number}")
            assert not any(reader.done() for reader in readers)
            own_server.process.send_signal(signal.SIGCONT)
        assert all(reader.result() for reader in readers)


# Where no thread runs


@pytest.fixture
def settings(valkey: Server, prefix: str) -> Settings:
    return settings_of(valkey, prefix)


def settings_of(server: Server, prefix: str, interval: str = NEVER) -> Settings:
    given = {"redis_url": server.url, "prefix": prefix, "identity": IDENTITY}
    return Settings.from_env({}, **given, flush_interval=interval)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "threads_run", lambda: False)


def visit(recorder: Recorder, name: str) -> None:
    WsgiVisit(recorder, {"HTTP_X_USER": name}).end()


@pytest.mark.usefixtures("no_threads")
def test_without_threads_other_requests_refresh_an_open_connection(
    valkey: Server, prefix: str
) -> None:
    now = [1_700_000_000.0]
    recorder = Recorder(settings_of(valkey, prefix, "1s"), clock=lambda: now[0])
    presence = Presence(recorder.settings, clock=lambda: now[0])
    open_visit = WsgiVisit(recorder, {"HTTP_X_USER": "bob"})
    for _ in range(20):
        now[0] += 60
        visit(recorder, "alice")
        assert set(presence.online_among(["alice", "bob"])) == {"alice", "bob"}
    open_visit.end()
    recorder.close()


@pytest.mark.usefixtures("no_threads")
def test_without_threads_only_an_occasional_request_waits_during_an_outage(
    own_server: Server, prefix: str
) -> None:
    recorder = Recorder(settings_of(own_server, prefix, "1s"))
    own_server.process.send_signal(signal.SIGSTOP)
    took = []
    with Stopwatch() as watch:
        for number in range(500):
            began = watch.seconds
            visit(recorder, f"u{number}")
            took.append(watch.seconds - began)
    assert [seconds for seconds in took if seconds > 0.25] == [max(took)]
    assert max(took) < 1.0  # one timeout
    own_server.process.send_signal(signal.SIGCONT)
    recorder.close()
    assert Presence(recorder.settings).count() == 500


# A thread that is dead, or stuck


@pytest.fixture
def always_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each visit wakes the thread, as if a second lay between two."""
    monkeypatch.setattr(worker, "WAKE_AGAIN", 0.0)


@pytest.mark.usefixtures("always_wakes")
def test_a_dead_thread_is_replaced_at_the_next_wake(valkey: Server, prefix: str) -> None:
    recorder = Recorder(settings_of(valkey, prefix, "0.05s"))
    visit(recorder, "bob")
    assert recorder.thread is not None
    recorder.worker.stopping.set()
    recorder.worker.wake()
    recorder.thread.join(10)
    assert not recorder.thread.is_alive()
    visit(recorder, "alice")
    wait_until(lambda: recorder.stats().flushed == 2)
    recorder.close()


@pytest.mark.usefixtures("always_wakes")
def test_a_stuck_write_is_logged_once_each_time_and_delays_no_request(
    own_server: Server,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(health, "STUCK_SECONDS", 0.1)
    client = redis.Redis.from_url(own_server.url, socket_timeout=None)
    recorder = Recorder(settings_of(own_server, prefix, "0.1s"), client=client)
    visit(recorder, "first")
    wait_until(lambda: recorder.stats().flushed == 1)
    for stuck in (1, 2):
        own_server.process.send_signal(signal.SIGSTOP)
        slowest = 0.0

        def is_said(watch: Stopwatch, stuck: int = stuck) -> bool:
            nonlocal slowest
            began = watch.seconds
            visit(recorder, "bob")
            slowest = max(slowest, watch.seconds - began)
            return len(caplog.messages) >= stuck

        with Stopwatch() as watch:
            wait_until(lambda: is_said(watch))
            for _ in range(100):
                assert is_said(watch)
        assert slowest < 0.1
        assert len(caplog.messages) == stuck
        assert "no write to Redis has completed" in caplog.messages[-1]
        own_server.process.send_signal(signal.SIGCONT)
        assert recorder.flush()
    recorder.close()
    client.close()


@pytest.mark.usefixtures("always_wakes")
def test_a_long_interval_is_not_logged_as_stuck(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "STUCK_SECONDS", 0.0)
    recorder = Recorder(settings)
    visit(recorder, "first")
    wait_until(lambda: recorder.stats().flushed == 1)
    for name in ("bob", "alice"):
        visit(recorder, name)
    recorder.close()
    assert not caplog.messages


# Forks


@pytest.mark.parametrize("how", ["hooked", "bare", "importing"])
def test_forked_children_record_and_read_whatever_their_parent_was_doing(
    variables: dict[str, str], presence: Presence, tmp_path: Path, how: str
) -> None:
    """They and their children are forked during a write, or while a thread imports the client."""
    command, env = [sys.executable, "-m", "tests.support.forks", how], environment(**variables)
    subprocess.run(command, cwd=ROOT, env=env, check=True, timeout=30)
    everybody = {*("parent", "child", "grandchild"), *("parent, later", "child, later")}
    assert online(presence) == (set() if how == "importing" else everybody | {"grandchild, later"})


# Trio


def test_under_trio_async_readers_refuse_and_a_thread_reads_in_their_place(
    settings: Settings,
) -> None:
    readers: list[AsyncPresence] = [AsyncPresence(settings)]
    seen: list[bool] = []

    async def handler(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        readers.append(presence_of(scope))
        for presence in readers:
            for question in (presence.count, partial(presence.leave, "bob")):
                with pytest.raises(WouldBlock, match=r"Presence in a thread.*to_thread"):
                    await question()
            with pytest.raises(WouldBlock, match=r"Presence in a thread.*to_thread"):
                presence.events("user")
        seen.append(await trio.to_thread.run_sync(Presence(settings).is_online, "ann"))
        await readers[0].aclose()

    async def visit() -> None:
        headers = [(b"x-user", b"bob")]
        scope: Any = {"type": "http", "method": "GET", "path": "/", "headers": headers}
        site = asgi.PresenceMiddleware(handler, settings=settings)
        await site(scope, trio.sleep_forever, lambda _: trio.lowlevel.checkpoint())

    Presence(settings).touch("ann")
    trio.run(visit)
    assert seen == [True]
    wait_until(lambda: online(Presence(settings)) == {"ann", "bob"})


def test_a_wrong_setting_in_trio_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRESENCE_WINDOW", "soon")

    def wrap() -> asgi.PresenceMiddleware:
        return asgi.PresenceMiddleware(lambda *_: trio.sleep(0))

    async def start() -> list[asgi.Message]:
        sent: list[asgi.Message] = []

        async def send(message: asgi.Message) -> None:
            sent.append(message)

        await wrap()({"type": "lifespan"}, trio.sleep_forever, send)
        return sent

    (message,) = trio.run(start)
    assert message["type"] == "lifespan.startup.failed"
    assert "PRESENCE_WINDOW" in message["message"]
    with pytest.raises(SettingsError):
        wrap()
