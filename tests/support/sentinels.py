"""A real Sentinel: three of them watch a primary and its replica."""

import subprocess
from pathlib import Path

import redis

from presence_middleware.embedded import find_server
from tests.support.backends import is_up, wait_until
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
        with redis.Redis(port=primary) as client:
            wait_until(lambda: is_up(client))
        self._run(replica, "--save", "", "--replicaof", "127.0.0.1", str(primary))
        for port in sentinels:
            file = folder / f"{port}.conf"
            file.write_text(SERVICE.format(port=port, folder=folder, primary=primary))
            self._run(port, str(file), "--sentinel")
        # They ask the primary for its replicas every ten seconds.
        wait_until(lambda: all(map(self._is_ready, sentinels)), 90)
        wait_until(self.is_replicated, 30)

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports[2:])
        return f"redis+sentinel://{hosts}/site/0"

    def is_replicated(self) -> bool:
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

    def _is_ready(self, port: int) -> bool:
        """Return whether a Sentinel has found the replica and the two other Sentinels."""
        with redis.Redis(port=port) as client:
            if not is_up(client):
                return False
            (state,) = client.sentinel_masters().values()
        return bool(state["num-slaves"] == 1 and state["num-other-sentinels"] == 2)
