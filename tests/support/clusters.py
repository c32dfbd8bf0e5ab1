"""A real Cluster: some primaries that share the slots, each with replicas or none."""

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import redis

from presence_middleware.embedded import find_server
from presence_middleware.stores.keys import SLOTS, slot_of
from tests.support.backends import Server, wait_until
from tests.support.servers import free_port

OPTIONS = (
    *("--cluster-enabled", "yes", "--cluster-node-timeout", "1000"),
    *("--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0"),
)


class Node(Server):
    def __init__(self, folder: Path) -> None:
        self.port, self.bus = free_port(), free_port()
        own = folder / str(self.port)
        own.mkdir()
        options = ("--cluster-port", str(self.bus), *OPTIONS)
        super().__init__(str(find_server()), own, *options, port=self.port)
        self.client = redis.Redis(port=self.port, socket_timeout=5)

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def ask(self, *command: str | int) -> Any:
        return self.client.execute_command(*command)

    def knows(self, id: str) -> bool:
        return any(state["node_id"] == id for state in self.ask("CLUSTER NODES").values())


class Cluster:
    """Up when this returns, on free ports of this machine."""

    def __init__(self, folder: Path, primaries: int = 3, *, replicas: int = 0) -> None:
        self.primaries = [Node(folder) for _ in range(primaries)]
        self.replicas = [Node(folder) for _ in range(primaries * replicas)]
        first = self.primaries[0]
        for number, node in enumerate(self.primaries):
            low, high = (SLOTS * n // primaries for n in (number, number + 1))
            node.ask("CLUSTER ADDSLOTSRANGE", low, high - 1)
        for node in [*self.primaries[1:], *self.replicas]:
            node.ask("CLUSTER MEET", "127.0.0.1", first.port, first.bus)
        for number, replica in enumerate(self.replicas):
            id = self.primaries[number % primaries].ask("CLUSTER MYID").decode()
            wait_until(partial(replica.knows, id), 30)
            replica.ask("CLUSTER REPLICATE", id)
        wait_until(lambda: all(map(self._is_ready, self.nodes)), 30)

    @property
    def nodes(self) -> list[Node]:
        return [*self.primaries, *self.replicas]

    @property
    def url(self) -> str:
        """The URL lists the first two nodes, because either may be down."""
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port},127.0.0.1:{self.nodes[1].port}"

    def owner_of(self, key: str) -> Node:
        """The primary that had a key's slot in the beginning."""
        return self.primaries[slot_of(key) * len(self.primaries) // SLOTS]

    def move(
        self, slot: int, source: Node, target: Node, meanwhile: Callable[[], None] = lambda: None
    ) -> int:
        """Move a slot as redis-cli does, a key at a time; return the number of keys."""
        target.ask("CLUSTER SETSLOT", slot, "IMPORTING", source.ask("CLUSTER MYID"))
        source.ask("CLUSTER SETSLOT", slot, "MIGRATING", target.ask("CLUSTER MYID"))
        moved = 0
        while found := source.ask("CLUSTER GETKEYSINSLOT", slot, 1):
            with suppress(redis.ResponseError):  # it has expired meanwhile
                source.ask("MIGRATE", "127.0.0.1", target.port, found[0], 0, 5000)
                moved += 1
            time.sleep(0.05)  # a scrap of the slot is here, and the rest is there
        meanwhile()
        for node in (target, source, *self.primaries):
            with suppress(redis.ResponseError):
                node.ask("CLUSTER SETSLOT", slot, "NODE", target.ask("CLUSTER MYID"))
        return moved

    def close(self) -> None:
        for node in self.nodes:
            node.stop()

    def _is_ready(self, node: Node) -> bool:
        """Return whether the node knows all other nodes and their slots."""
        info = node.ask("CLUSTER INFO")
        states = [state["flags"].split(",")[-1] for state in node.ask("CLUSTER NODES").values()]
        wanted = ["master"] * len(self.primaries) + ["slave"] * len(self.replicas)
        is_complete = info["cluster_state"] == "ok" and info["cluster_slots_ok"] == str(SLOTS)
        links = [replica.ask("INFO", "replication") for replica in self.replicas]
        is_linked = all(link.get("master_link_status") == "up" for link in links)
        return is_complete and sorted(states) == wanted and is_linked
