"""Check a site: its Redis server, its keys and its settings.

The doctor connects like the site. It writes nothing and runs no slow commands.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import NamedTuple

from . import parsers
from .backend import Backend
from .connections.server import Facts, eviction_policy, server_facts
from .errors import PresenceError
from .identity.bots import BOT
from .identity.rules import user_kinds
from .recorder.setup_hints import EXPLAIN
from .settings import Settings, variable
from .stores import Batch, Plan, Shards
from .stores.plan import Script, decoded, seconds_of

FLOORS = {"redis": (6, 2), "valkey": (7, 2)}  # the oldest servers that are supported
NEARLY_FULL = 0.9  # of PRESENCE_MAX_MEMBERS, and of the server's memory
MOST_SWEEP_LAG = 30.0  # seconds, or two flush intervals if they are longer
MOST_OFFSET = 1.0  # seconds between this host's clock and the server's
# The command that counts the members of a key, by its type. HyperLogLogs are strings.
_SIZES = {"zset": "ZCARD", "set": "SCARD", "string": "PFCOUNT"}


class Finding(NamedTuple):
    """A line of the report: the subject and result of a check, and whether it is right."""

    is_right: bool
    what: str
    is_warning: bool = False
    """True if nothing is wrong now, but something may be."""

    @property
    def mark(self) -> str:
        """`ok`, `warn` or `WRONG`."""
        return "WRONG" if not self.is_right else "warn" if self.is_warning else "ok"

    @classmethod
    def of(cls, is_right: bool, what: str, remedy: str) -> "Finding":
        """Return a finding of which a wrong one ends with the remedy."""
        return cls(is_right, what if is_right else f"{what}: {remedy}")


def effective_settings(settings: Settings, ini: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return by variable its `value`, and `from`: `environment`, `ini` or `default`.

    Values have the form of the environment, and that of a secret is `***`. `ini` has the settings
    of the Paste ini file from which, and from the environment, `settings` was made.
    """
    effective = {}
    for setting in fields(settings):
        name, value = variable(setting.name), getattr(settings, setting.name)
        below = "ini" if setting.name in ini else "default"
        origin = "environment" if os.environ.get(name) else below
        shown = parsers.text_of(value) or (setting.default and "none")
        if not setting.repr:  # a secret
            shown = "***" if value else ""
        elif setting.metadata["parse"] is parsers.duration:
            shown = parsers.format_duration(value)
        effective[name] = {"value": shown, "from": origin}
    return effective


def examine(backend: Backend) -> Iterator[Finding]:
    """Yield each finding as soon as its check has run. A check that cannot run is a finding, too.

    `backend` is the backend of the site. If Redis does not answer, that is the only finding.
    """
    settings, driver = backend.settings, backend.driver
    try:
        now = driver.run(backend.clock.now())
    except PresenceError as error:
        yield Finding(False, str(error))
        return
    questions = [
        (f"{name} ".lstrip(), node, question)
        for name, node in driver.nodes()
        for question in (version(), clock(), eviction(), memory())
    ]
    ours = [_commands(settings), _shards(backend), _shared_settings(backend, now), _logins(backend)]
    for kind, store in backend.stores.items():
        ours.append(_kind(kind, settings.store_of(kind), store, now))
        if settings.store_of(kind) != "hyperloglog":
            ours.append(_capacity(kind, store, settings, now))
        if kind in settings.events:
            ours.append(_events(kind, backend))
    found = list[Finding]()
    for name, asked, question in [*questions, *(("", driver, each) for each in ours)]:
        try:
            finding = asked.run(question)
        except PresenceError as error:
            finding = Finding(False, str(error))
        finding = finding._replace(what=name + finding.what)
        if finding not in found:  # a refusal may stop several checks
            found.append(finding)
            yield finding


def version() -> Plan[Finding]:
    """Check that the server is no older than `FLOORS`, and no read-only replica."""
    server = yield from server_facts("default")
    name = str(server.get("server_name", "redis"))
    version = str(server.get(f"{name}_version", server["redis_version"]))
    floor = FLOORS.get(name, FLOORS["redis"])
    is_new = tuple(map(int, re.findall(r"\d+", version)[:2])) >= floor
    remedy = f"{'.'.join(map(str, floor))} or later is required"
    if is_replica := bool(int(server.get("slave_read_only", 0))):
        remedy = "a read-only replica records nobody; name its primary in PRESENCE_REDIS_URL"
    return Finding.of(is_new and not is_replica, f"server: {name} {version}", remedy)


def clock() -> Plan[Finding]:
    """Check that the clock of this host is near the server's."""
    before = time.time()
    (server,) = yield Batch((("TIME",),))
    offset = seconds_of(server) - (before + time.time()) / 2
    # Sightings have the server's time, so an offset only affects ages computed on this host.
    remedy = "set this host's clock; last-seen times are the server's"
    what = f"clock: {offset:+.3f}s from this host's"
    return Finding.of(abs(offset) <= MOST_OFFSET, what, remedy)


def eviction() -> Plan[Finding]:
    """Check that the server evicts no keys.

    A `volatile` policy is the default of many hosted servers, and harmless until memory is short.
    """
    memory = yield from server_facts("memory")
    policy = eviction_policy(memory)
    is_harmless = policy is not None and policy.startswith("volatile") and _has_memory(memory)
    remedy = "; when memory is short, the server evicts keys: set maxmemory-policy noeviction"
    what = f"eviction: {memory['maxmemory_policy']}{remedy if policy else ''}"
    return Finding(policy is None or is_harmless, what, is_harmless)


def memory() -> Plan[Finding]:
    """Check that the memory of the server is not nearly full."""
    memory = yield from server_facts("memory")
    used, most = int(memory["used_memory"]), int(memory["maxmemory"])
    limit = f" of {_bytes(most)}" if most else ", no limit"
    what = f"memory: {_bytes(used)}{limit}"
    return Finding.of(_has_memory(memory), what, "nearly full; raise maxmemory")


def _has_memory(memory: Facts) -> bool:
    used, most = int(memory["used_memory"]), int(memory["maxmemory"])
    return not most or used < NEARLY_FULL * most


def _commands(settings: Settings) -> Plan[Finding]:
    """Check that the server runs transactions and scripts; with events, that it has streams.

    HyperLogLogs need no scripts, but the chart of the board does.
    """
    key = f"{settings.prefix}:doctor"  # it is not there, so nothing is written
    streams = (("XLEN", key),) if settings.events else ()
    lease = ("SET", key, "", "XX", "EX", 1), ("GETEX", key, "EX", 1)
    script = Script("return 0")
    stores = {settings.store_of(kind) for kind in settings.kinds}
    if settings.board_path or stores != {"hyperloglog"}:
        yield Batch((("EVAL", script.text, 1, key), ("EVALSHA", script.digest, 1, key)))
    yield Batch((*lease, *streams), atomic=True)
    return Finding(True, "commands: those that recording needs")


def _shards(backend: Backend) -> Plan[Finding]:
    """Check that all processes use the same number of shards; report their spread over nodes."""
    yield from backend.layout.check(0)
    driver, shards = backend.driver, next(iter(backend.stores.values())).all
    each = Counter(driver.node_of(shard.name) for shard in shards).values()
    spread = f", {_range(each)} on each of {len(each)} nodes" if driver.nodes()[0][0] else ""
    return Finding(True, f"shards: {backend.settings.shards}{spread}")


def _shared_settings(backend: Backend, now: float) -> Plan[Finding]:
    """Check that the settings that all processes must share are equal."""
    others = (yield from backend.shared_settings.read(now)).differing
    found = [f"{name} is {value!r} in another process" for name, value in others.items()]
    what = ", ".join(found) or "the same in all processes that record"
    return Finding(not others, f"settings: {what}")


def _kind(kind: str, how: str, store: Shards, now: float) -> Plan[Finding]:
    """Report the members, bytes and times to live of a kind's keys; every key must expire."""
    keys = store.keys(now)
    types = map(decoded, (yield Batch(tuple(("TYPE", key) for key in keys))))
    there = {key: type for key, type in zip(keys, types, strict=True) if type in _SIZES}
    if not there:
        return Finding(True, f"kind {kind}: {how}, no keys, no id was seen lately")
    sizes = yield Batch(tuple((_SIZES[type], key) for key, type in there.items()))
    lives = yield Batch(tuple(("TTL", key) for key in there))
    usage = yield Batch(tuple(("MEMORY", "USAGE", key) for key in there))
    members = dict(zip(there, map(int, sizes), strict=True))
    # How evenly the members are spread over the shards, if there are several.
    each_shard = [
        sum(size for key, size in members.items() if key.startswith(f"{shard.name}:"))
        for shard in store.all
    ]
    balance = f" ({_range(each_shard)} a shard)" if len(each_shard) > 1 else ""
    lasting = [key for key, life in zip(there, lives, strict=True) if int(life) == -1]
    what = (
        f"kind {kind}: {how}, {_number(sum(members.values()), 'member')} in "
        f"{_number(len(there), 'key')}{balance}, {_bytes(sum(int(used or 0) for used in usage))}"
    )
    # A key may have expired since its type was read.
    longest = parsers.format_duration(max(0, *map(int, lives)))
    never = f"these keys never expire: {', '.join(lasting)}"
    return Finding(not lasting, f"{what}, {never if lasting else f'expire within {longest}'}")


def _capacity(kind: str, store: Shards, settings: Settings, now: float) -> Plan[Finding]:
    """Check that a kind has room for new ids. With `max_members` ids online, it refuses more."""
    if settings.store_of(kind) == "sorted-set":
        members = yield from store.count(now, settings.window)
    else:
        # In minute sets, an id is a member of each minute in which it was seen.
        sizes = yield Batch(tuple(("SCARD", key) for key in store.keys(now)))
        members = sum(map(int, sizes))
    share = members / settings.max_members
    what = f"capacity of {kind}: {members} online of {settings.max_members} ({share:.0%})"
    remedy = "more ids than that are refused; raise PRESENCE_MAX_MEMBERS"
    return Finding.of(share < NEARLY_FULL, what, remedy)


def _events(kind: str, backend: Backend) -> Plan[Finding]:
    """Check that processes of the site announce who comes, and in time who has gone."""
    announced = f"events of {kind}:"
    if not (yield from backend.is_announced(kind)):
        what = f"{announced} a process that records does not announce them"
        return Finding.of(False, what, "set PRESENCE_EVENTS to the same kinds in all processes")
    lag = yield from backend.queries.sweep_lag(kind)
    if lag is None:
        return Finding(True, f"{announced} nobody came or went lately")
    if lag <= max(MOST_SWEEP_LAG, 2 * backend.settings.flush_interval):
        return Finding(True, f"{announced} up to date, late by {lag:.0f} s")
    return Finding(
        False,
        f"{announced} nobody sweeps, late by {parsers.format_duration(round(lag))}: who has gone "
        "is announced only while a process of the site runs with PRESENCE_EVENTS and threads",
    )


def _logins(backend: Backend) -> Plan[Finding]:
    """Report who is online. If there are only guests, their logins may not count."""
    counts = yield from backend.queries.counts()
    users = user_kinds(backend.settings.identity)
    has_people = any(counts[kind] for kind in counts if kind != BOT)
    is_suspect = bool(users) and has_people and not any(counts[kind] for kind in users)
    see = f": if users are logged in now, they count as guests{EXPLAIN}" if is_suspect else ""
    what = ", ".join(f"{counts[kind]} {kind}" for kind in counts)
    return Finding(True, f"online: {what}{see}", is_suspect)


def _number(count: int, unit: str) -> str:
    return f"{count} {unit}{'' if count == 1 else 's'}"


def _range(numbers: Collection[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
