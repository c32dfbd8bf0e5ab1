"""One process of a site samples, announces who has gone and cleans up; what the others cost."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest

from presence_middleware import Presence, PresenceUnavailable, Sample, upkeep
from presence_middleware.backend import Backend
from presence_middleware.errors import RedisRefused
from presence_middleware.recorder import Recorder
from presence_middleware.stores import Batch, History, Lease, Plan, keys, moment_of
from presence_middleware.stores.store import CLEANED
from tests.redis.test_connecting import SHORT, url_of_user
from tests.support.backends import Server, by_trips, wait_until
from tests.support.beside import in_child, on_call
from tests.support.clusters import Cluster
from tests.support.followed_site import LAG
from tests.support.timed_site import IDENTITY, NOON, WINDOW, Clock, Process, Start

ANNOUNCED: dict[str, Any] = {"events": "user", "flush_interval": 1}
EVERYTHING = {"rooms": "/t/{topic}", "events": "user", "pulse_path": "/pulse"}
UNSENT = {"info", "ping", "config|resetstat", "client|setinfo", "client|setname"}


class Processes:
    """Some processes of a site, whose clock the test moves."""

    def __init__(self, start: Start, url: str, prefix: str, number: int, **given: Any) -> None:
        self.clock, self.key = Clock(), keys.upkeep(prefix)
        given = {"clock": self.clock, "identity": IDENTITY, "flush_interval": "1s", **given}
        self.all = [start(url, **given).recorder for _ in range(number)]
        self.first, self.presence = self.all[0], Presence(self.all[0].settings, clock=self.clock)

    def go_on(self, seconds: int, *others: Recorder) -> None:
        """Let time pass, with a round of each process in each second; `others` only those."""
        for _ in range(seconds):
            self.clock.now += 1
            for recorder in others or self.all:
                recorder.run_once()

    def comes(self, id: str, kind: str = "user") -> None:
        self.first.record((kind, id), self.clock.now)

    def samples(self) -> int:
        return len(self.presence.history())

    @property
    def went(self) -> dict[str, int]:
        return self.first.stats().went


Open = Callable[..., Processes]


@pytest.fixture
def opened(own: Server, prefix: str, start: Start) -> Open:
    return lambda number=2, url=own.url, **given: Processes(start, url, prefix, number, **given)


@pytest.fixture
def processes(opened: Open) -> Processes:
    """Two processes, of which the first has the lease."""
    processes = opened()
    processes.first.run_once()
    return processes


@pytest.mark.parametrize("is_killed", [False, True])
def test_one_process_holds_the_lease(processes: Processes, client: Any, *, is_killed: bool) -> None:
    first, second = processes.all
    holder = client.get(processes.key)
    assert 20_000 < client.pttl(processes.key) <= 66_000
    processes.go_on(300)
    assert client.get(processes.key) == holder
    assert processes.samples() == 6
    if is_killed:
        client.pexpire(processes.key, 1)  # as time would do
        wait_until(lambda: not client.exists(processes.key))
    else:
        first.close()
        assert client.get(processes.key) is None
    processes.go_on(70, second)
    assert client.get(processes.key) not in (None, holder)
    assert processes.samples() == 7


def test_a_lease_that_is_too_long_is_taken(opened: Open, client: Any) -> None:
    processes = opened(1)
    client.set(processes.key, "killed", px=3_600_000)
    processes.go_on(1)
    assert client.get(processes.key) != b"killed"
    assert processes.samples() == 1


def test_a_lease_that_cannot_be_given_up_hinders_no_process_that_ends(
    processes: Processes, client: Any
) -> None:
    client.delete(processes.key)
    client.lpush(processes.key, "no text")
    processes.first.close()


def test_a_forked_child_holds_no_lease_of_its_parent(processes: Processes, client: Any) -> None:
    first = processes.first
    holder = client.get(processes.key)
    for seconds in (0, 70):  # a child that exits at once, and one that does something first

        def child(seconds: int = seconds) -> None:
            if seconds:
                processes.go_on(seconds, first)
            first.close()

        in_child(child)
        assert client.get(processes.key) == holder
    processes.clock.now += 70
    assert processes.samples() == 1  # of the parent


@pytest.mark.parametrize("has_looked", [False, True])
def test_whoever_lost_the_lease_steps_down_and_gives_up_nothing(
    processes: Processes, client: Any, *, has_looked: bool
) -> None:
    first = processes.first
    client.set(processes.key, "another", px=100_000)
    if has_looked:
        processes.go_on(600, first)
        assert client.get(processes.key) == b"another"
        assert processes.samples() == 2, "it had not looked when the first minute began"
    first.close()
    assert client.get(processes.key) == b"another"


def sent(client: Any) -> Counter[str]:
    """Return how often each command ran since the last reset."""
    found = client.info("commandstats").items()
    counted = Counter({name.removeprefix("cmdstat_"): stats["calls"] for name, stats in found})
    return Counter({name: count for name, count in counted.items() if name not in UNSENT})


@pytest.mark.parametrize(("given", "most"), [({}, 10), (EVERYTHING, 7)])
def test_an_idle_process_sends_few_commands(
    opened: Open, client: Any, prefix: str, given: dict[str, Any], most: int
) -> None:
    processes = opened(1, bots="count", **given)
    processes.comes("x7Kq", "guest")
    processes.first.run_once()
    processes.go_on(4)
    client.zadd(f"{prefix}:user:writers", {"ended": processes.clock.now - 86_400})
    client.config_resetstat()
    processes.go_on(1200)
    counted = sent(client)
    assert client.zscore(f"{prefix}:user:writers", "ended") is None, "it was cleaned up meanwhile"
    # Without a clock of tests, each look asks for the time as well.
    # A sweep in a clean-up has so many commands at most.
    in_scripts = (counted["eval"] + counted["evalsha"]) * 22
    assert counted.total() - in_scripts <= 20 * most, counted
    assert counted["xrange"] <= 10, "the oldest event is asked for when it may be due"


def test_waiting_processes_only_ask_how_long(opened: Open, client: Any) -> None:
    processes = opened(5, **EVERYTHING)
    processes.go_on(5)
    processes.all[1].backend.upkeep.hurry()  # it follows events
    client.config_resetstat()
    processes.go_on(300, *processes.all[1:])
    assert set(sent(client)) == {"pttl"}
    assert sent(client)["pttl"] <= 4 * 5 * 3


def test_whoever_follows_events_takes_the_lease_of_a_killed_process_soon(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, leaves would come later than ten seconds after it was killed."""
    processes, asked = opened(1, events="user"), list[float]()

    def take(*_: object) -> Plan[float]:
        asked.append(processes.clock.now)
        return 1.0  # second, after which it may be free
        yield Batch(())

    monkeypatch.setattr(Lease, "take", take)
    processes.go_on(2)
    processes.first.backend.upkeep.hurry()
    processes.go_on(9)
    assert len(asked) > 5, asked


def test_a_user_who_may_not_take_the_lease_asks_for_it_now_and_then(
    own: Server, opened: Open, client: Any, prefix: str
) -> None:
    opened(1, url_of_user(own, prefix, *SHORT.split(), "-set")).go_on(60)
    assert 1 < client.info("commandstats")["cmdstat_set"]["rejected_calls"] <= 11


def test_a_node_that_is_back_is_swept(opened: Open, cluster: Cluster) -> None:
    processes = opened(1, cluster.url, **ANNOUNCED, shards=3)
    recorder = processes.first
    processes.comes("ann")
    processes.go_on(int(WINDOW + LAG) - 1)
    health = recorder.health
    for shard in recorder.backend.stores["user"].all:
        health.failed(recorder.backend.driver.node_of(shard.name))
    processes.go_on(2)
    assert processes.went == {"user": 0}
    assert processes.first.stats().last_error is None
    health.failing.clear()
    processes.go_on(2)
    assert processes.went == {"user": 1}


def test_a_node_with_the_lease_that_is_away_stops_no_other(
    opened: Open, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("take", "renew"):
        monkeypatch.setattr(Lease, name, Mock(side_effect=PresenceUnavailable("away")))
    processes = opened(1, cluster.url, **ANNOUNCED, shards=3)
    processes.comes("ann")
    processes.go_on(int(WINDOW + LAG) + 2)
    assert processes.went == {"user": 1}
    assert not processes.first.health.is_outage


def test_after_a_failover_who_has_gone_is_announced_again(
    opened: Open, client: Any, prefix: str
) -> None:
    processes = opened(1, **ANNOUNCED)
    processes.comes("ann")
    processes.go_on(2)
    replicated = {key: client.dump(key) for key in client.keys(f"{prefix}:user:*")}
    processes.go_on(int(WINDOW + LAG) + 1)
    for key, value in replicated.items():
        client.restore(key, 3_600_000, value, replace=True)
    processes.first.health.lost_connection()
    processes.go_on(2)
    assert processes.went == {"user": 2}


def test_many_who_have_gone_at_once_are_announced_in_one_round(opened: Open) -> None:
    processes = opened(1, **ANNOUNCED)
    for number in range(2 * CLEANED):
        processes.first.record(("user", f"id{number}"), processes.clock.now - number / CLEANED)
    processes.go_on(2)
    processes.clock.now += WINDOW + LAG
    processes.go_on(1)
    assert processes.went == {"user": 2 * CLEANED}


def test_a_shard_that_cannot_be_swept_stops_the_sweep_of_no_other_kind(
    opened: Open, client: Any
) -> None:
    processes = opened(1, **{**ANNOUNCED, "events": "user,guest"}, shards=2)
    users = processes.first.backend.stores["user"]
    client.set(f"{users.all[0].name}:seen", "no sorted set")
    other = next(id for id in map(str, range(99)) if users.shard_for(id) is users.all[1])
    processes.comes(other)
    processes.comes("x7Kq", "guest")
    processes.go_on(int(WINDOW + LAG) + 2)
    assert processes.went == {"user": 1, "guest": 1}


def test_a_node_that_is_away_is_tried_once_for_all_its_shards() -> None:
    away = Mock(return_value=[PresenceUnavailable("away")])
    sweeping = upkeep.Sweeping(Mock(), {Mock(): 0.0, Mock(): 0.0}, least=1, most=60)
    with pytest.raises(PresenceUnavailable, match="away"):
        sweeping.run(Mock(run=away, node_of=lambda _: "node"), NOON)
    assert away.call_count == 1


def test_after_a_clock_was_set_back_the_holder_goes_on(opened: Open) -> None:
    processes = opened(1, **ANNOUNCED)
    processes.go_on(2)
    processes.clock.now -= 7200
    processes.comes("ann")
    processes.go_on(int(WINDOW + LAG) + 1)
    assert processes.went == {"user": 1}


# Clean-up: all stale ids, a bounded number at a time, and no current id.


KEEP = 600.0


@pytest.fixture
def site(start: Start) -> Process:
    """A site that stores guests for the window only, so that stale ids appear soon."""
    return start(window=KEEP)


def cleaned_up(site: Process, kind: str, key: str) -> list[int]:
    """Clean up in rounds until one reports that it was the last; return how many each removed."""
    backend, removed, more = Backend(site.settings), list[int](), True
    store = backend.stores[kind].all[0]
    while more:
        before = site.redis.zcard(key)
        more = backend.driver.run(store.clean_up(NOON))
        removed.append(before - site.redis.zcard(key))
    return removed


@pytest.mark.parametrize("name", ["seen", "gone"])
@pytest.mark.parametrize("stale", [0, 1, 999, 1000, 1001, 3500])
def test_a_command_removes_a_thousand_at_most_and_rounds_go_on(
    site: Process, stale: int, name: str
) -> None:
    key = f"{site.settings.prefix}:guest:{name}"
    # Four share each moment, and one of these is not split.
    crowd = {f"id{n}": NOON - KEEP - n // 4 for n in range(stale)}
    site.redis.zadd(key, crowd | {"online": NOON - KEEP + 0.000001})
    removed = cleaned_up(site, "guest", key)
    assert max(removed) <= CLEANED + 4
    assert sum(removed) == stale
    assert len(removed) == stale // CLEANED + 1
    assert site.redis.zrange(key, 0, -1) == [b"online"]


@pytest.mark.parametrize("kind", ["user", "guest"])
def test_who_left_minute_sets_stays_like_others(start: Start, prefix: str, kind: str) -> None:
    site = start(store="minute-sets")
    key = f"{prefix}:{kind}:gone"
    site.redis.zadd(key, {"old": NOON - WINDOW - 59, "too old": NOON - WINDOW - 61})
    cleaned_up(site, kind, key)
    assert site.redis.zrange(key, 0, -1) == [b"old"]


def test_future_times_are_lowered_to_now_a_thousand_at_a_time(site: Process) -> None:
    """After the server's clock was set back, no id is lost, and none stays an hour longer."""
    names = [f"{site.settings.prefix}:user:{name}" for name in ("seen", "left")]
    crowd = {f"id{n}": NOON + 3600 + n for n in range(2500)}
    site.redis.zadd(names[0], crowd | {"soon": NOON + 100, "now": NOON})
    site.redis.zadd(names[1], {"gone": NOON + 3600})
    assert cleaned_up(site, "user", names[0]) == [0, 0, 0]
    times = {at for _, at in site.redis.zrange(names[0], 0, -1, withscores=True)}
    assert max(times) == NOON + 100
    # All at one moment would have to be handled together.
    assert NOON - 0.001 <= min(times) <= max(times - {NOON + 100}) == NOON
    assert site.redis.zcard(names[0]) == 2502
    assert site.redis.zscore(names[1], "gone") == NOON


def test_a_clean_up_without_permission_is_no_outage_and_is_logged_once(
    valkey: Server,
    prefix: str,
    start: Start,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep, "CLEAN_EVERY", 0)
    monkeypatch.setattr(upkeep, "CLEAN_IDLE", 0)
    monkeypatch.setattr(upkeep, "STEPS_SECONDS", 0)  # or it is always due again
    site = start(url_of_user(valkey, prefix, "+@all", "-zremrangebyscore"))
    for number in range(5):
        site.saw(f"ann{number}")
        site.recorder.run_once()
    assert not site.recorder.health.is_outage
    (message,) = [message for message in caplog.messages if "stale entries" in message]
    assert "stale entries cannot be removed, so keys keep growing (Redis refused: " in message


@pytest.mark.parametrize(
    "error",
    [
        # Whoever installs the server again may change who may open its socket.
        PresenceUnavailable("Redis did not answer: Error 13 connecting: Permission denied."),
        RedisRefused("Redis refused: command not allowed when used memory > 'maxmemory'."),
    ],
    ids=repr,
)
def test_another_error_is_no_missing_permission_of_the_clean_up(
    start: Start,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    monkeypatch.setattr(upkeep.Sweeping, "run", Mock(side_effect=error))
    start().recorder.run_once()
    assert not [message for message in caplog.messages if "stale entries" in message]


def test_two_processes_that_clean_up_at_once_remove_nobody_who_is_online(site: Process) -> None:
    key = f"{site.settings.prefix}:guest:seen"
    site.redis.zadd(key, {f"id{n}": NOON - KEEP - n for n in range(CLEANED)} | {"online": NOON})

    def beside_another(batch: Batch) -> Plan[Any]:
        sent = [command[:2] for command in batch.commands]
        if any("ZREMRANGE" in str(name) and of == key for name, of in sent):
            cleaned_up(site, "guest", key)
        return (yield batch)

    backend = Backend(site.settings)
    backend.driver.run(by_trips(backend.stores["guest"].all[0].clean_up(NOON), beside_another))
    assert site.redis.zrange(key, 0, -1) == [b"online"]


# The number online for each minute, and the peak.


def go_on(worker: Process, *names: str, minutes: int = 1) -> None:
    """Let ids be seen in each of the next minutes, or none; each is sampled."""
    for _ in range(minutes):
        worker.clock.now += 60
        worker.saw(*names)
        worker.recorder.run_once()


def at(minute: int) -> Any:
    """A moment, in minutes after noon."""
    return moment_of(NOON - NOON % 60 + minute * 60)


def test_the_peak_stays_with_its_time_until_it_is_reset(start: Start, prefix: str) -> None:
    worker = start()
    ask = worker.presence
    assert ask.peak() is None
    go_on(worker, "ann")
    go_on(worker, "ann", "bob", "cy")
    go_on(worker, "ann", "bob", "cy")
    assert ask.peak() == Sample(at(2), 3)
    go_on(worker, minutes=15)
    assert ask.peak() == Sample(at(2), 3)
    assert ask.peak("guest") is None, "nobody was there"
    ask.reset_peak()
    assert ask.peak() is None
    go_on(worker, "zoe")
    assert ask.peak() == Sample(at(19), 1)
    worker.redis.expire(f"{prefix}:user:peak", 100)
    worker.clock.now += 3600
    go_on(worker)
    assert worker.redis.ttl(f"{prefix}:user:peak") > 100


def test_one_of_many_processes_that_begin_at_once_samples_a_minute(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes, wrote = opened(8), list[int]()
    on_call(monkeypatch, History, "record", lambda _, minute, __: wrote.append(minute))
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            list(pool.map(Recorder.run_once, processes.all))
            processes.clock.now += 60
    assert len(wrote) == len(set(wrote)) == processes.samples() == 5


def test_a_minute_keeps_its_first_sample(processes: Processes) -> None:
    processes.comes("ann")
    processes.first.close()
    processes.go_on(1, processes.all[1])
    assert [sample.count for sample in processes.presence.history()] == [0]
    assert processes.presence.peak() == Sample(at(0), 1), "the other process took a sample, too"


def test_samples_older_than_the_retention_are_hidden_and_expire(start: Start, prefix: str) -> None:
    worker = start(history="1h")
    go_on(worker, minutes=70)
    ask = worker.presence.history
    assert ask() == ask(hours=1)
    assert ask(hours=3 / 60) == [Sample(at(minute), 0) for minute in (68, 69, 70)]
    left = worker.redis.ttl(f"{prefix}:user:history:{int(NOON // 86400)}")
    assert 3600 < left <= 3600 + 120 + 86400


def test_after_a_loss_of_data_every_key_expires_again(start: Start, prefix: str) -> None:
    worker = start(rooms="/t/{topic}", events="user")
    client = worker.redis
    go_on(worker, "ann")
    client.delete(*client.keys(f"{prefix}:*"))
    go_on(worker, minutes=2)
    worker.saw("ann", room="/t/1")
    lives = {key.decode(): client.ttl(key) for key in client.keys(f"{prefix}:*")}
    names = {key.rpartition(":")[2] for key in lives}
    assert {"seen", "writers", "at", "moved", "progress", "changes"} <= names
    assert min(lives.values()) > 0, lives
