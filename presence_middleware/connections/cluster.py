"""`redis+cluster://`: runs plans on the nodes that own the keys, even if nodes are away or move.

redis-py maps each slot to its node. Here, each node receives its commands in a pipeline of its
own. A Cluster pipeline of redis-py would ask a silent node again for each command, one timeout
after the other.
"""

import math
import time
from contextlib import suppress
from inspect import signature
from typing import Any

from ..errors import PresenceUnavailable
from ..stores.plan import Batch, Command
from .drivers import Driver, send

_KEYLESS = {"TIME", "INFO"}
# For how long a node that failed executes no commands without keys, in seconds.
PASSED_OVER = 30.0
# The position of the first key in a command, if it is not the first argument.
_KEY_POSITION = {"EVAL": 3, "EVALSHA": 3, "ZINTER": 2, "ZUNION": 2, "MEMORY": 2}


class ClusterDriver(Driver):
    """Runs plans over a client of a Cluster."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # By the name of a node: when it last failed to execute commands without keys.
        self._failed_at: dict[str, float] = {}

    def nodes(self) -> list[tuple[str, Driver]]:
        client = self.connect()
        return [
            (node.name, Driver(self.url, self.health, client.get_redis_connection(node)))
            for node in _primaries(client)
        ]

    def node_of(self, shard: str) -> str:
        try:
            return str(self.connect().get_node_from_key(shard).name)
        except Exception:
            return "nowhere"

    def execute(self, client: Any, batch: Batch) -> list[Any]:
        if batch.commands[0][0] not in _KEYLESS:
            return self._execute_on_owners(client, batch)
        from redis import exceptions

        # All processes use the same node, because the clocks of the nodes may differ. While it is
        # away, they use the next.
        failure: Exception | None = None
        for node in self._keyless_nodes(client):
            try:
                return super().execute(client.get_redis_connection(node), batch)
            except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
                failure = error
                self._failed_at[node.name] = time.monotonic()
        self.forget_client()  # no known node answers
        raise failure or PresenceUnavailable(
            "no node of the Cluster was found; check PRESENCE_REDIS_URL"
        )

    def _execute_on_owners(self, client: Any, batch: Batch, *, is_retry: bool = False) -> list[Any]:
        """Send each command to the node that owns its key; after an error, to who owns it by then.

        In a tolerant batch, the commands for a node that does not answer have errors as replies.
        """
        from redis import exceptions

        moved = exceptions.AskError, exceptions.ClusterError, exceptions.RedisClusterException
        nodes: dict[str, tuple[Any, dict[int, Command]]] = {}
        for number, command in enumerate(batch.commands):
            node = self._owner(client, command)
            nodes.setdefault(node and node.name, (node, {}))[1][number] = command
        replies: dict[int, Any] = {}
        for node, commands in nodes.values():
            part = Batch(tuple(commands.values()), batch.atomic)
            try:
                try:
                    if node is None:
                        raise exceptions.RedisClusterException("no known node has the slot")
                    if not self._is_writer and self.health.is_silent(node.name):
                        raise PresenceUnavailable("a node did not answer a moment ago")
                    part_replies = send(client.get_redis_connection(node), part)
                    refused = [reply for reply in part_replies if isinstance(reply, moved)]
                    if refused and not is_retry:
                        raise refused[0]
                except (exceptions.ConnectionError, exceptions.TimeoutError, *moved) as error:
                    self._refresh_nodes(client, node)
                    if is_retry or isinstance(error, exceptions.TimeoutError):
                        raise
                    part_replies = self._execute_on_owners(client, part, is_retry=True)
            except Exception as error:
                if not batch.is_tolerant:
                    raise
                if not isinstance(error, PresenceUnavailable):  # or else it was not asked
                    self.health.lost_connection()
                part_replies = [error] * len(commands)
            replies |= zip(commands, part_replies, strict=True)
        return [replies[number] for number in range(len(batch.commands))]

    def _owner(self, client: Any, command: Command) -> Any:
        """Return the node that executes a command, None if no known node has the slot."""
        from redis.exceptions import RedisClusterException

        name = str(command[0])
        if name in _KEYLESS:
            return next(iter(self._keyless_nodes(client)), None)
        with suppress(RedisClusterException):
            return client.get_node_from_key(command[_KEY_POSITION.get(name, 1)])
        return None

    def _keyless_nodes(self, client: Any) -> list[Any]:
        """Return the nodes that may execute commands without keys, the preferred first."""
        since = time.monotonic() - PASSED_OVER
        nodes = _primaries(client)
        return sorted(nodes, key=lambda node: self._failed_at.get(node.name, -math.inf) > since)

    def _refresh_nodes(self, client: Any, failed: Any) -> None:
        """Ask the Cluster again which node owns which slots."""
        # The other connections to the failed node are as dead.
        with suppress(Exception):
            client.get_redis_connection(failed).connection_pool.disconnect(inuse_connections=False)
        initialize, given = client.nodes_manager.initialize, {}
        if "last_failed_node_name" in signature(initialize).parameters:  # not in old versions
            given["last_failed_node_name"] = failed and failed.name
        try:
            initialize(**given)
        except Exception:
            self.forget_client()  # no known node answers
            raise


def _primaries(client: Any) -> list[Any]:
    return sorted(client.get_primaries(), key=lambda node: str(node.name))
