"""A real Sentinel: three of them watch a primary and its replica, and the primary is killed."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from presence_middleware import AsyncPresence, Presence, PresenceUnavailable, Settings
from presence_middleware.connections.clients import sync_client
from presence_middleware.connections.embedded import find_server
from presence_middleware.recorder import Recorder
from presence_middleware.wsgi import WsgiVisit
from tests.support.backends import wait_until
from tests.support.servers import free_port

SERVICE = """port {port}
dir {folder}
sentinel monitor site 127.0.0.1 {primary} 2
sentinel down-after-milliseconds site 500
sentinel failover-timeout site 3000
"""


class Sentinels:
    """A primary, its replica, and three Sentinels that watch them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ports = [free_port() for _ in range(5)]
        self._processes: list[subprocess.Popen[bytes]] = []
        primary, replica, *sentinels = self.ports
        self.primary = self._run(primary, "--save", "")
        wait_until(lambda: self._is_up(primary))
        self._run(replica, "--save", "", "--replicaof", "127.0.0.1", str(primary))
        for port in sentinels:
            file = folder / f"{port}.conf"
            file.write_text(SERVICE.format(port=port, folder=folder, primary=primary))
            self._run(port, str(file), "--sentinel")
        wait_until(lambda: all(map(self._is_ready, sentinels)), 30)
        wait_until(self.is_replicated, 30)

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports[2:])
        return f"redis+sentinel://{hosts}/site/0"

    def is_replicated(self) -> bool:
        """Whether the replica has all that the primary has."""
        with redis.Redis(port=self.ports[0]) as primary, redis.Redis(port=self.ports[1]) as replica:
            here, there = primary.info("replication"), replica.info("replication")
        is_up = there.get("master_link_status") == "up"
        return is_up and bool(there["slave_repl_offset"] >= here["master_repl_offset"])

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _run(self, port: int, *options: str) -> "subprocess.Popen[bytes]":
        command = [str(find_server()), *options]
        if "--sentinel" not in options:
            command += ["--port", str(port), "--dir", str(self._folder)]
            command += ["--repl-diskless-sync-delay", "0", "--dbfilename", f"{port}.rdb"]
        process = subprocess.Popen([*command, "--logfile", str(self._folder / f"{port}.log")])
        self._processes.append(process)
        return process

    @staticmethod
    def _is_up(port: int) -> bool:
        with suppress(redis.ConnectionError), redis.Redis(port=port) as client:
            return bool(client.ping())
        return False

    def _is_ready(self, port: int) -> bool:
        """Return whether a Sentinel has found the replica and the two other Sentinels."""
        if not self._is_up(port):
            return False
        with redis.Redis(port=port) as client:
            (state,) = client.sentinel_masters().values()
        return bool(state["num-slaves"] == 1 and state["num-other-sentinels"] == 2)


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[Sentinels]:
    sentinels = Sentinels(tmp_path)
    yield sentinels
    sentinels.close()


def comes(recorder: Recorder, name: str) -> None:
    WsgiVisit(recorder, {"HTTP_X_USER": name}).end()


def answers(presence: Presence) -> bool:
    with suppress(PresenceUnavailable):
        return presence.count() > 0
    return False


@pytest.mark.matrix
def test_nobody_is_missing_after_a_failover(sentinels: Sentinels, prefix: str) -> None:
    settings = Settings.from_env(
        {},
        redis_url=sentinels.url,
        prefix=prefix,
        identity="user=header:X-User",
        flush_interval="0.05s",
    )
    recorder, presence = Recorder(settings), Presence(settings)
    comes(recorder, "before")
    wait_until(lambda: answers(presence))
    wait_until(sentinels.is_replicated)
    sentinels.primary.kill()
    number = 0
    while not (answers(presence) and number > 20):
        number += 1
        comes(recorder, f"during{number}")
        recorder.flush(0.1)
    comes(recorder, "after")
    wait_until(recorder.flush)
    names = {"before", "after", *(f"during{n + 1}" for n in range(number))}
    assert {seen.id for seen in presence.online(limit=None)} == names
    recorder.close()

    async def ask() -> int:
        readers = AsyncPresence(settings)
        count = await readers.count()
        await readers.aclose()
        return count

    assert asyncio.run(ask()) == len(names)


def test_without_a_sentinel_redis_is_unavailable_and_nothing_waits(prefix: str) -> None:
    url = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{free_port()}/site"
    with pytest.raises(PresenceUnavailable, match="No master found for 'site'"):
        Presence(Settings.from_env({}, redis_url=url, prefix=prefix)).count()


def test_options_of_the_url_reach_the_primary_and_the_sentinels(prefix: str) -> None:
    url = "valkey+sentinel://ann:a%3Ab@[::1],host:1/site/3?sentinel_password=c&socket_timeout=0.25"
    settings = Settings.from_env({}, redis_url=url, prefix=prefix)
    assert "a%3Ab" not in repr(settings)
    client = sync_client(settings.redis_url)
    manager = client.connection_pool.sentinel_manager
    asked = [each.connection_pool.connection_kwargs for each in manager.sentinels]
    assert [(each["host"], each["port"]) for each in asked] == [("::1", 26379), ("host", 1)]
    assert {each["password"] for each in asked} == {"c"}
    given = client.connection_pool.connection_kwargs
    assert (given["username"], given["password"], given["db"]) == ("ann", "a:b", 3)
    assert given["socket_timeout"] == 0.25
