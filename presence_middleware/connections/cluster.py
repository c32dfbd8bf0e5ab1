"""`redis+cluster://h1,h2`: the nodes that have the keys, also while some are away or have moved.

The library knows which node has which slot; each node gets its commands in a pipeline of its own.
The library's pipelines would ask a node that is silent again for each command, timeout by timeout.
"""

from contextlib import suppress
from functools import partial
from typing import Any

from ..errors import PresenceUnavailable
from ..stores.plan import Batch, Command
from . import hosts
from .drivers import Driver, checked, execute, fill, ours

PORT = 6379
FORM = (
    "redis+cluster://[user:password@]node1[:6379],node2…, or rediss+cluster://… (TLS); a Cluster "
    "has no databases"
)
_KEYLESS = {"TIME", "INFO"}
_KEY_AT = {"EVAL": 3, "ZINTER": 2, "ZUNION": 2, "MEMORY": 2}  # else the first argument


def parse(rest: str) -> hosts.Hosts:
    """The nodes to ask first of the part behind `://`. Raises `ValueError`."""
    try:
        found = hosts.parse(rest, PORT)
    except ValueError:
        raise ValueError(FORM) from None
    if found.path not in ("", "0") or found.options.get("db", "0") != "0":
        raise ValueError(FORM)
    found.options.pop("db", None)
    return found


def client(nodes: hosts.Hosts, common: dict[str, Any], room: int) -> Any:
    """A client that asks these nodes for all others. Raises unless one of them answers.

    `room` is how many connections to each node it may have.
    """
    from redis import RedisCluster
    from redis.backoff import NoBackoff
    from redis.cluster import ClusterNode
    from redis.retry import Retry

    again = Retry(NoBackoff(), 1)  # the node that it asks first may be away
    options = {**common, **hosts.typed(nodes.options), "retry": again, "max_connections": room}
    first, *others = nodes.addresses
    return RedisCluster(
        # Only with a URL does the library use a connection class that is given.
        url=_url_of(*first),
        startup_nodes=[ClusterNode(*address) for address in others],  # type: ignore[no-untyped-call]
        require_full_coverage=False,  # where a node is away, the others go on
        **options,
    )


def _url_of(host: str, port: int) -> str:
    return f"redis://[{host}]:{port}" if ":" in host else f"redis://{host}:{port}"


class ClusterDriver(Driver):
    """Runs plans over a client of a Cluster."""

    _turn = 0

    def nodes(self) -> list[tuple[str, Driver]]:
        client = self._connect()
        return [
            (node.name, Driver(partial(client.get_redis_connection, node), self.health))
            for node in _primaries(client)
        ]

    def node_of(self, shard: str) -> str:
        try:
            return str(self._connect().get_node_from_key(shard).name)
        except Exception:
            return "nowhere"

    def lost_connection(self, client: Any) -> None:
        self.health.lost_connection()  # whose connection it was is seen to where it is found out

    def _exchange(self, client: Any, batch: Batch) -> list[Any]:
        is_keyless = batch.commands[0][0] in _KEYLESS
        return (self._ask_any if is_keyless else self._ask_owners)(client, batch)

    def _ask_any(self, client: Any, batch: Batch) -> list[Any]:
        """Asks the node that all processes ask; while it is away, the next: clocks may differ."""
        from redis import exceptions

        nodes = _primaries(client)
        failure: Exception | None = None
        for _ in nodes:
            try:
                return execute(client.get_redis_connection(nodes[self._turn % len(nodes)]), batch)
            except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
                failure = error
                self._turn += 1
        raise failure or PresenceUnavailable("no node of the Cluster is known")

    def _ask_owners(self, client: Any, batch: Batch, *, is_again: bool = False) -> list[Any]:
        """Ask each node for its keys.

        Of a tolerant batch, the commands for a node that does not answer have errors as replies.
        """
        from redis import exceptions

        try:
            nodes = _by_node(client, batch)
        except exceptions.RedisClusterException:  # nobody had the slot
            self._look_again(client, None)
            nodes = _by_node(client, batch)
        replies: dict[int, Any] = {}
        for node, commands in nodes:
            part = Batch(tuple(commands.values()), batch.atomic)
            try:
                answers = self._ask_owner(client, node, part, is_again=is_again)
            except Exception as error:
                if not batch.is_tolerant:
                    raise
                self.health.lost_connection()
                answers = [ours(error)] * len(commands)
            replies |= zip(commands, answers, strict=True)
        return checked([replies[number] for number in range(len(batch.commands))], batch)

    def _ask_owner(self, client: Any, node: Any, part: Batch, *, is_again: bool) -> list[Any]:
        """Ask one node; after an error, whoever has its keys by then."""
        from redis import exceptions

        try:
            pipeline = client.get_redis_connection(node).pipeline(transaction=part.atomic)
            answers: list[Any] = fill(pipeline, part).execute(raise_on_error=False)
            if not is_again:
                _raise_if_moved(answers)
        except (
            exceptions.ConnectionError,
            exceptions.TimeoutError,
            exceptions.ClusterError,
            exceptions.AskError,  # the key has moved
        ) as error:
            self._look_again(client, node)
            if is_again or isinstance(error, exceptions.TimeoutError):
                raise
            return self._ask_owners(client, part, is_again=True)
        return answers

    def _look_again(self, client: Any, failed: Any) -> None:
        """Learns anew who has which keys."""
        with suppress(Exception):  # others of its connections are as dead
            client.get_redis_connection(failed).connection_pool.disconnect(inuse_connections=False)
        try:
            client.nodes_manager.initialize(last_failed_node_name=failed and failed.name)
        except Exception:
            self._forget()  # none that is known is left: begin with the URL again
            raise


def _raise_if_moved(replies: list[Any]) -> None:
    from redis import exceptions

    for reply in replies:
        if isinstance(reply, (exceptions.AskError, exceptions.ClusterError)):
            raise reply


def _primaries(client: Any) -> list[Any]:
    return sorted(client.get_primaries(), key=lambda node: str(node.name))


def _by_node(client: Any, batch: Batch) -> list[tuple[Any, dict[int, Command]]]:
    """The commands for each node, by their number in the batch."""
    found: dict[str, tuple[Any, dict[int, Command]]] = {}
    for number, command in enumerate(batch.commands):
        node = client.get_node_from_key(command[_KEY_AT.get(str(command[0]), 1)])
        found.setdefault(node.name, (node, {}))[1][number] = command
    return list(found.values())
