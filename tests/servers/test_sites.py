"""Whole sites over sockets: several servers and workers report the same."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from presence_middleware import Presence
from presence_middleware.embedded import supervisor
from tests.support.backends import wait_until
from tests.support.servers import (
    ENDED,
    ROOT,
    Command,
    Site,
    WebServer,
    environment,
    free_port,
    gunicorn,
    uvicorn,
)

NEVER = "100s"  # until the next regular write: longer than any of these tests
OTHER_PROGRAM = """
import json
from presence_middleware import Presence
presence = Presence.from_env()
print(json.dumps([presence.counts(), sorted(seen.id for seen in presence.online())]))
"""
WSGI, ASGI = "tests.support.live_site:wsgi_wrapped", "tests.support.live_site:asgi_wrapped"
LOCKS = (supervisor.SUPERVISOR_LOCK, supervisor.SERVER_LOCK)


def other_program(url: str) -> Any:
    """What a program says that has no more than one variable in common with the sites."""
    command = [sys.executable, "-c", OTHER_PROGRAM]
    env = environment(PRESENCE_REDIS_URL=url)
    return json.loads(subprocess.run(command, env=env, check=True, stdout=-1, timeout=30).stdout)


def is_alive(directory: Path, lock: str) -> bool:
    """Whether the supervisor of an embedded server, or the server, holds its lock."""
    descriptor = supervisor.open_lock(directory / lock)
    try:
        return not supervisor.try_lock(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.slow
def test_two_servers_and_another_program_report_the_same_count(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    url = f"embedded://{directory}"
    with (
        WebServer(gunicorn(WSGI, 4), ROOT, tmp_path / "wsgi", PRESENCE_REDIS_URL=url) as first,
        WebServer(uvicorn(ASGI, 2), ROOT, tmp_path / "asgi", PRESENCE_REDIS_URL=url) as second,
    ):
        sites = {"W": Site(first, 4, tmp_path), "A": Site(second, 2, tmp_path)}
        for name, site in sites.items():
            site.everywhere("/", x_user="ann")
            site.everywhere("/", x_user=f"{name}*")
            # Guests go by their browsers; two of them come to both sites.
            site.everywhere("/", user_agent="Both/*")
            site.everywhere("/", user_agent=f"{name}/*")
        truth = [{"user": 7, "guest": 10, "bot": 0}, ["A0", "A1", "W0", "W1", "W2", "W3", "ann"]]
        wait_until(lambda: other_program(url) == truth, 30)
        for site in sites.values():
            answers = site.everywhere("/who", user_agent="Both/0")
            assert answers == [truth] * site.workers
        assert other_program(url) == truth

        assert first.stop() == 0
        assert all(is_alive(directory, lock) for lock in LOCKS)
        assert second.stop() in ENDED
        wait_until(lambda: not any(is_alive(directory, lock) for lock in LOCKS))


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("command", "workers"),
    [(gunicorn(WSGI, 4), 4), (uvicorn(ASGI, 2), 2)],
    ids=["gunicorn", "uvicorn"],
)
def test_a_logout_on_a_worker_holds_on_all_workers(
    variables: dict[str, str],
    presence: Presence,
    tmp_path: Path,
    command: Command,
    workers: int,
) -> None:
    variables |= {"PRESENCE_FLUSH_INTERVAL": NEVER}
    with WebServer(command, ROOT, tmp_path / "log", **variables) as server:
        site = Site(server, workers, tmp_path)
        site.everywhere("/", x_user="somebody-*")
        wait_until(lambda: presence.count() == workers)
        site.everywhere("/", x_user="ann")
        assert not presence.is_online("ann")  # every worker has yet to write that it saw her
        site.get("/logout", x_user="ann")
        others = [f"somebody-{n}" for n in range(workers)]
        # Each worker writes what it holds before it answers.
        assert [who for _, who in site.everywhere("/who")] == [others] * workers
        assert presence.last_seen("ann") is not None
        assert server.stop() in ENDED
    assert not presence.is_online("ann")


@pytest.mark.parametrize(
    ("serve", "kind"), [(gunicorn, "wsgi"), (uvicorn, "asgi")], ids=["gunicorn", "uvicorn"]
)
def test_an_unreachable_redis_neither_stops_a_site_nor_changes_its_responses(
    tmp_path: Path, serve: Callable[[str], Command], kind: str
) -> None:
    bare, wrapped = (
        f"tests.support.live_site:{kind}_plain",
        f"presence_middleware.{kind}_app:application",
    )
    nowhere = {"PRESENCE_REDIS_URL": f"redis://127.0.0.1:{free_port()}", "PRESENCE_APP": bare}
    with (
        WebServer(serve(bare), ROOT, tmp_path / "bare") as plain,
        WebServer(serve(wrapped), ROOT, tmp_path / "wrapped", **nowhere) as server,
    ):
        expected = [answer(plain, f"/{n}") for n in range(3)]
        assert [answer(server, f"/{n}") for n in range(3)] == expected
        wait_until(lambda: "cannot record" in server.output)
        assert [answer(server, f"/{n}") for n in range(3)] == expected
        assert server.stop() in ENDED
        assert server.output.count("cannot record who is online") == 1


def answer(server: WebServer, path: str) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    with server.client("A") as browser:
        response = browser.get(path)
    headers = [(name, value) for name, value in response.headers.raw if name.lower() != b"date"]
    return response.status_code, headers, response.content
