"""Logs that grow: each line is read once, and the numbers are those of `presence replay`."""

import errno
import gzip
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from presence_middleware import Presence, Settings
from presence_middleware.cli.logs import MOST_READERS
from presence_middleware.replay.files import READ_BYTES, ROTATED_SECONDS, GrowingLog, Pipe
from presence_middleware.replay.lines import Line, Tally, parse
from presence_middleware.replay.site import Follower, Moment, count_online
from presence_middleware.stores import moment_of
from tests.support.backends import Server, wait_until
from tests.support.commands import run_command
from tests.support.servers import environment, free_port
from tests.support.terminal import COMMAND, piped
from tests.support.timed_site import NOON, Clock, settings

MINUTE = int(NOON) // 60 * 60


def line(at: float, user: str = "-", address: str = "192.0.2.7", path: str = "/") -> bytes:
    moment = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(at))
    return f'{address} - {user} [{moment}] "GET {path} HTTP/1.1" 200 1 "-" "Firefox"\n'.encode()


def parsed(text: bytes) -> Line:
    found = parse(text)
    assert found
    return found


class Log:
    """A log that a web server writes, and how often it was rotated."""

    def __init__(self, path: Path) -> None:
        self.path, self.rotations = path, 0
        self.files: list[Any] = []
        """The newest is that in which it writes."""
        self.reopen()

    def write(self, text: bytes) -> None:
        self.files[-1].write(text)

    def rename(self) -> None:
        """Rotate as logrotate does; the server reopens its log later."""
        self.rotations += 1
        self.path.rename(self.path.with_suffix(f".{self.rotations}"))

    def reopen(self) -> None:
        self.files.append(self.path.open("ab", buffering=0))

    def truncate(self) -> None:
        os.truncate(self.path, 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path / "access.log")
    yield log
    for file in log.files:
        file.close()


@pytest.fixture
def growing(log: Log) -> Callable[..., GrowingLog]:
    return lambda since=None, report=print, monotonic=time.monotonic: GrowingLog(
        str(log.path), since, report, monotonic
    )


Growing = Callable[..., GrowingLog]


def read(source: GrowingLog) -> list[bytes]:
    """Return all lines that have come, in several reads."""
    lines, quiet = list[bytes](), 0
    while quiet < 3:
        found = source.read()
        lines += found
        quiet = 0 if found else quiet + 1
    return lines


@pytest.mark.parametrize("line", [b"begun", line(MINUTE, path=f"/{'x' * 999}").strip()])
def test_a_log_is_followed_from_its_last_line(growing: Growing, log: Log, line: bytes) -> None:
    """A server that buffers its log writes parts of lines."""
    log.write(b"one\ntwo\n" + line[:-2])
    source = growing()
    assert read(source) == []
    log.write(line[-2:] + b"\nnext")
    assert read(source) == [line]
    log.write(b"\n")
    assert read(source) == [b"next"]


def test_a_renamed_log_is_read_to_its_end_and_then_for_a_minute(growing: Growing, log: Log) -> None:
    clock = Clock(0.0)
    source = growing(monotonic=clock)
    log.write(b"a\n")
    log.rename()
    log.write(b"b\n")
    assert read(source) == [b"a", b"b"]  # there is no file of that name for a while
    (before,) = log.files
    log.reopen()
    log.write(b"c\n")
    before.write(b"late\n")
    assert sorted(read(source)) == [b"c", b"late"]
    before.write(b"later\n")
    assert read(source) == [b"later"]
    clock.now = ROTATED_SECONDS
    before.write(b"too late\n")
    log.write(b"d\n")
    assert read(source) == [b"d"]


def test_a_renamed_log_is_read_to_its_end_however_long_it_takes(growing: Growing, log: Log) -> None:
    clock, read = Clock(0.0), 0
    source = growing(monotonic=clock)
    log.write((b"x" * 999 + b"\n") * (3 * READ_BYTES // 1000))
    log.rename()
    log.reopen()
    while lines := source.read():
        read += len(lines)
        clock.now += ROTATED_SECONDS
    assert read == 3 * READ_BYTES // 1000


@pytest.mark.parametrize("regrown", [b"", b"x\n", b"as long as before\n" * 40])
def test_a_truncated_log_is_read_from_its_start(growing: Growing, log: Log, regrown: bytes) -> None:
    """Also if it is as long as before, or longer, when it is looked at again."""
    log.write(b"one line of many\n" * 30)
    source = growing(since=0.0)
    assert len(read(source)) == 30
    log.truncate()
    log.write(regrown)
    assert read(source) == regrown.splitlines()
    log.write(b"end\n")
    assert read(source) == [b"end"]


@pytest.mark.parametrize("ago", [0, 1, 59, 600, 3599, 9999])
def test_a_large_log_is_read_since_a_time(growing: Growing, log: Log, ago: int) -> None:
    log.write(b"".join(line(MINUTE - 3600 + second) for second in range(3600)))
    lines = read(growing(since=MINUTE - ago))
    assert len(lines) == min(ago, 3600)
    expected = [line(MINUTE - ago + number) for number in range(ago)]
    assert [each + b"\n" for each in lines] == expected[-3600:]


def test_a_rotated_log_that_cannot_be_opened_is_reported_once(growing: Growing, log: Log) -> None:
    said = list[str]()
    source = growing(report=said.append)
    log.rename()
    assert not read(source) + said  # there is no file of that name for a while
    log.path.symlink_to(log.path)
    assert not read(source) + read(source)
    assert said == [f"{log.path} cannot be read after a rotation: {os.strerror(errno.ELOOP)}"]
    log.path.unlink()
    log.reopen()
    log.write(b"again\n")
    assert read(source) == [b"again"]


def test_an_endless_line_takes_bounded_memory_and_counts_as_one(growing: Growing, log: Log) -> None:
    source, tally = growing(), Tally()
    for _ in range(100):
        log.write(b"x" * READ_BYTES)
        assert read(source) == []
    log.write(b"\n" + line(MINUTE))
    assert [bool(tally.parse(raw)) for raw in read(source)] == [False, True]
    assert tally.example == repr("x" * 100)


def traffic(rng: random.Random, minute: int) -> list[bytes]:
    """Return the lines of a minute: users, guests, crawlers and files that are no visits."""
    lines = []
    for second in sorted(rng.choices(range(1, 61), k=200)):
        user = rng.choice(["-", "-", f"user{int(rng.paretovariate(0.7)) % 60}"])
        address = f"198.51.100.{int(rng.paretovariate(0.6)) % 250}"
        path = rng.choice(["/", "/t/1", "/robots.txt", "/t/2?a=1"])
        lines.append(line(minute - 60 + second, user, address, path))
    return lines


def test_a_followed_log_gives_the_numbers_of_a_replay(
    valkey: Server, prefix: str, growing: Growing, log: Log
) -> None:
    """Minute by minute, through rotations of both kinds."""
    site = settings(
        valkey.url, prefix, identity="user=auth, guest=ip:raw", window=300, exclude=("/robots.txt",)
    )
    rng, clock, tally, followed = random.Random(5), Clock(MINUTE), Tally(), list[Line]()
    follower = Follower(site, tally, clock)
    source, presence, seen = growing(), Presence(site, clock=clock), []
    for number in range(1, 25):
        clock.now = MINUTE + 60 * number
        lines = traffic(rng, int(clock.now)) if not 10 <= number < 17 else []
        rotated = rng.randrange(len(lines) + 1)
        log.write(b"".join(lines[:rotated]))
        if number % 3 == 1:
            log.rename()
        log.write(b"".join(lines[rotated:]))
        read_lines = read(source)
        if number % 3 == 1:
            log.reopen()
        elif number % 3 == 2:
            log.truncate()
        assert read_lines == [each.removesuffix(b"\n") for each in lines]
        for each in filter(None, map(tally.parse, read_lines)):
            follower.add(each)
            followed.append(each)
        follower.recorder.run_once()
        seen.append(Moment(int(clock.now), tuple(presence.counts().values())))
    moments = list(count_online(followed, site, tally))
    assert moments == seen
    assert max(moment.counts for moment in moments) > (20, 20)
    assert min(moment.counts for moment in moments) == (0, 0)
    assert not tally.odd


def test_a_pipe_that_is_quiet_is_not_waited_for() -> None:
    reader, writer = os.pipe()
    pipe = Pipe(reader)
    assert pipe.read() == []
    os.write(writer, b"a line\nand a half")
    assert pipe.read() == [b"a line"]
    os.close(writer)
    assert pipe.read() == [b"and a half"]
    assert pipe.has_ended
    os.close(reader)


def test_lines_are_written_early_if_half_of_the_people_wait(
    valkey: Server, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    site = settings(valkey.url, prefix, identity="user=auth", max_pending=10, flush_interval=60)
    clock = Clock()
    follower = Follower(site, Tally(), clock)
    assert follower.write_if_due()
    for number in range(6):
        assert not follower.write_if_due()
        follower.add(parsed(line(clock.now, f"user{number}")))
    assert follower.write_if_due()
    for number in range(11):
        follower.add(parsed(line(clock.now, f"another{number}")))
    assert follower.write_if_due()
    assert "more than 10 people waited for a write at once" in caplog.text


def test_a_line_counts_at_its_own_time(valkey: Server, prefix: str) -> None:
    clock, said = Clock(), list[str]()
    tally = Tally(said.append)
    site = settings(valkey.url, prefix, identity="user=auth, guest=user-agent", rooms=("/t/{t}",))
    follower, presence = Follower(site, tally, clock), Presence(site, clock=clock)
    ages = {"now": 0.0, "ann": 599.0, "old": 600.0, "older": 86400.0, "soon": -60.0}
    for user, age in ages.items():
        follower.add(parsed(line(int(clock.now) - age, user, path=f"/t/{user}")))
    follower.recorder.run_once()
    assert {each.id for each in presence.online()} == {"now", "ann", "soon"}
    assert presence.last_seen("soon") == moment_of(clock.now)
    assert presence.count(room="/t/ann") == 1
    for number in range(103):
        follower.add(parsed(line(clock.now).replace(b"Firefox", b"Firefox/%d" % number)))
    assert tally.odd == {"old": 2, "ahead": 1, "refused": 3}
    said_first = ("a line is 600 seconds old", "a line is 60 seconds ahead", "more than 100 new gu")
    assert len(said) == 3
    assert all(text.startswith(first) for text, first in zip(said, said_first, strict=True))
    follower.recorder.run_once()
    clock.now += 2
    assert presence.counts() == {"user": 2, "guest": 100}


CADDY: dict[str, Any] = {
    "level": "info",
    "ts": 1767614430.52,
    "request": {
        "remote_ip": "10.0.0.1",
        "client_ip": "192.0.2.7",
        "method": "GET",
        "uri": "/caf%C3%A9?a=1",
        "headers": {"User-Agent": ["Firefox"], "Referer": ["http://from.example/"]},
    },
    "user_id": "éve 愛",
    "status": 200,
}
NGINX = {
    "time_local": "05/Jan/2026:12:00:30 +0000",
    "remote_addr": "192.0.2.7",
    "remote_user": "éve 愛",
    "request": "GET /caf%C3%A9?a=1 HTTP/1.1",
    "status": "200",
    "http_referer": "http://from.example/",
    "http_user_agent": "Firefox",
}
APART = {**NGINX, "request": None, "request_method": "GET", "request_uri": "/caf%C3%A9?a=1"}
FOUND = {"address": "192.0.2.7", "method": "GET", "path": "/café"}
FOUND |= {"user": "éve 愛", "user_agent": "Firefox"}
TIMES = ["2026-01-05T12:00:30Z", "2026-01-05T13:00:30+01:00", 1767614430520, "1767614430.123"]
WITHOUT_HEADERS: list[Any] = [None, {}, {"Accept": [], "User-Agent": None}]
JSON: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (CADDY, {}),
    (NGINX, {}),
    (APART, {}),
    *(({**CADDY, "ts": time}, {}) for time in TIMES),
    # Some servers write é as it is, others as \\u00e9.
    *(({**CADDY, "user_id": user}, {"user": user}) for user in ("éve", "ÿ", "愛")),
    ({**CADDY, "user_id": "é\udce9"}, {"user": "Ã©é"}),  # a byte that is no UTF-8
    # A filter of Caddy's log removes headers.
    *(
        ({**CADDY, "request": {**CADDY["request"], "headers": left}}, {"user_agent": None})
        for left in WITHOUT_HEADERS
    ),
]


@pytest.mark.parametrize(("fields", "differs"), JSON, ids=str)
@pytest.mark.parametrize("is_escaped", [True, False])
def test_lines_of_json_are_read(
    fields: dict[str, Any], differs: dict[str, Any], *, is_escaped: bool
) -> None:
    text = json.dumps(fields, ensure_ascii=is_escaped)
    found = parsed(text.encode(errors="surrogateescape"))
    request, expected = found.request, {**FOUND, **differs}
    assert found.at == 1767614430
    assert {name: getattr(request, name) for name in expected} == expected
    referer = "http://from.example/" if expected["user_agent"] else None
    assert request.header("referer") == referer
    assert parsed(json.dumps({**fields, "status": 401}).encode()).request.user is None


def test_half_a_character_in_json_hides_nobody() -> None:
    """Some servers write a User-Agent that they cut off within a character."""
    half = {**NGINX, "remote_user": "a\ud83d", "request": "GET /\ude00 x"}
    request = parsed(json.dumps(half).encode()).request
    assert (request.user, request.path) == ("a\ufffd", "/\ufffd")


WRONG_TIMES: list[Any] = [
    *(None, "soon", [], 1e400, 10**400, -1e300, -1),
    *("31/Feb/2026:12:00:30 +0000", "01/Jan/1969:00:00:00 +0000"),
]


@pytest.mark.parametrize(
    "text",
    [
        *("{", "{}", "{" * 9999, '{"ts": 1' + "0" * 5000 + "}", '{"request": 7, "ts": 1}'),
        *(json.dumps({**CADDY, "ts": wrong}) for wrong in WRONG_TIMES),
        json.dumps({**CADDY, "request": {"headers": {"User-Agent": [], "X": 7}}}),
        json.dumps({**NGINX, "request": "-"}),
        json.dumps({**NGINX, "remote_addr": 7}),
        *(json.dumps({**APART, name: ""}) for name in ("request_method", "request_uri")),
    ],
)
def test_other_json_is_unreadable(text: str) -> None:
    assert parse(text.encode()) is None


@pytest.mark.parametrize(
    ("is_served", "status", "said"),
    [
        (
            True,
            0,
            ["the format is combined", "no known format: 'garbage'", "lines: 2; in no known"],
        ),
        (False, 3, ["1 sightings unwritten"]),
    ],
)
def test_a_pipe_is_followed_to_its_end_and_an_outage_has_a_status_of_its_own(
    variables: dict[str, str], *, is_served: bool, status: int, said: list[str]
) -> None:
    if not is_served:
        variables["PRESENCE_REDIS_URL"] = f"redis://127.0.0.1:{free_port()}"
    env = environment(**variables)
    given = b"garbage\n" + line(time.time(), "ann").strip()
    command = [*COMMAND, "follow", "-"]
    found = subprocess.run(command, input=given, stderr=subprocess.PIPE, env=env, timeout=60)
    assert found.returncode == status
    assert [found.stderr.decode().count(text) for text in said] == [1] * len(said)
    assert not is_served or Presence(Settings.from_env(variables)).is_online("ann")


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("signum", "host"),
    [
        (signal.SIGTERM, "127.0.0.1"),
        pytest.param(
            *(signal.SIGINT, "[::1]"), marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6")
        ),
    ],
)
def test_a_signal_writes_what_waits_and_the_board_shows_it(
    variables: dict[str, str], log: Log, signum: int, host: str
) -> None:
    log.write(line(time.time() - 60, "ann"))
    port = free_port()
    command = ["follow", str(log.path), "--since", "5m", "--board", f"{host}:{port}"]
    with (
        piped(*command, **variables) as process,
        httpx.Client(trust_env=False, base_url=f"http://{host}:{port}") as client,
    ):
        wait_until(lambda: _shows(client, 1), 60)
        assert client.get("/").headers["location"] == "/presence"
        assert "Who is online" in client.get("/presence").text
        # As the check of a load balancer goes away.
        with socket.create_connection((host.strip("[]"), port)) as checks:
            checks.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with ExitStack() as held:  # of connections that ask nothing: others wait for their end
            for _ in range(MOST_READERS + 1):
                held.enter_context(socket.create_connection((host.strip("[]"), port)))
            late = held.enter_context(socket.create_connection((host.strip("[]"), port)))
            late.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert not select.select([late], [], [], 0.2)[0]
        with ExitStack() as held:  # of readers who ask at once
            address = host.strip("[]"), port
            asking = [held.enter_context(socket.create_connection(address)) for _ in range(90)]
            process.send_signal(signal.SIGSTOP)
            for each in asking:
                each.sendall(b"GET /presence/chart.svg HTTP/1.0\r\n\r\n")
            process.send_signal(signal.SIGCONT)
            assert all(each.recv(12) == b"HTTP/1.0 200" for each in asking)
        log.write(line(time.time(), "bob"))
        wait_until(lambda: _shows(client, 2), 60)
        process.send_signal(signum)
        told = process.communicate(timeout=30)[1]
    assert (process.returncode, "Traceback" in told, "queue" in told) == (0, False, False)
    assert Presence(Settings.from_env(variables)).is_online("bob")


def _shows(client: httpx.Client, users: int) -> bool:
    try:
        counts = client.get("/presence/counts").json().get("counts")
    except httpx.TransportError:
        return False
    return bool(counts == {"user": users, "guest": 0, "bot": 0})


@pytest.mark.parametrize(
    ("arguments", "site", "says"),
    [
        ("-", {"PRESENCE_IDENTITY": "user=cookie:sid, guest=ip:raw"}, "user=cookie:sid"),
        ("-", {"PRESENCE_IDENTITY": "user=auth, hidden=identify"}, "IDENTITY: hidden=identify:raw"),
        ("-", {"PRESENCE_IDENTITY": "user=auth:name, guest=visitor"}, "user=auth:name:raw can"),
        ("-", {"PRESENCE_IDENTITY": "user=auth:checked, guest=visitor"}, "user=auth:raw:checked"),
        ("-", {"PRESENCE_REDIS_URL": "memory://x"}, "memory://"),
        ("-", {"PRESENCE_ENABLED": "0"}, "PRESENCE_ENABLED=0"),
        ("- --since soon", {}, "'soon'"),
        ("- --board 8001", {}, "HOST:PORT"),
        ("- --board localhost:70000", {}, "HOST:PORT"),
        ("- --board nowhere.invalid:8001", {}, "cannot listen"),
        ("/nowhere/access.log", {}, "does not exist"),
        ("{}/access.log.1.gz", {}, "access.log.1.gz is compressed"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    arguments: str, site: dict[str, str], says: str, variables: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "access.log.1.gz").write_bytes(gzip.compress(line(time.time())))
    env = {**variables, "PRESENCE_SECRET": "a secret of a test", **site}
    found = run_command("follow", *arguments.format(tmp_path).split(), env=env)
    assert found.exit_code == 2
    assert says in found.stderr
    assert "Traceback" not in found.stderr
