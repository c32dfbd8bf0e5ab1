"""How a URL reaches a server: TLS, Sentinels, users, and passwords that change."""

import asyncio
import gc
import shutil
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from traceback import format_exception
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import fakeredis
import pytest
import redis
import trustme
import valkey

from presence_middleware import AsyncPresence, Presence, Settings
from presence_middleware.connections import drivers
from presence_middleware.errors import PresenceUnavailable, QueryError
from presence_middleware.recorder import Recorder
from presence_middleware.stores import STORES
from presence_middleware.wsgi import WsgiVisit
from tests.support.asking import in_loop
from tests.support.backends import Server, client_of, wait_until
from tests.support.beside import in_thread, on_call
from tests.support.faults import hung
from tests.support.servers import free_port
from tests.support.stopwatch import Stopwatch
from tests.support.timed_site import awaited

PASSWORD = "canary-password-of-the-user"
PROGRAM = shutil.which("redis-server")

# What a user of the server must be allowed to do, by what wants it.
RIGHTS = {
    "everything": "eval evalsha time expire exists zscore set get getex pttl multi exec ping "
    "client|setname zadd zrem zremrangebyscore zremrangebyrank zrange",
    "sorted-set": "zcard zcount zmscore zinter",
    "minute-sets": "sadd scard smismember srem sunion zcard zcount zmscore zinter",
    "hyperloglog": "pfadd pfcount",
}
SHORT = "+@read +@write +@connection +@transaction -@dangerous +eval +evalsha +time +client|setname"


def certificate_of(authority: trustme.CA, file: Path) -> Path:
    authority.cert_pem.write_to_path(str(file))
    return file


class TlsServer(Server):
    """A redis-server that requires TLS and a client certificate from the network."""

    def __init__(self, folder: Path, *options: str) -> None:
        authority, self.port = trustme.CA(), free_port()
        self.authority = certificate_of(authority, folder / "authority.pem")
        # Of the server and of its clients.
        self.own = folder / "own.pem"
        issued = authority.issue_cert("localhost", "127.0.0.1")
        issued.private_key_and_cert_chain_pem.write_to_path(str(self.own))
        super().__init__(
            str(PROGRAM),
            folder,
            *("--tls-port", str(self.port), "--tls-auth-clients", "yes"),
            *("--tls-cert-file", str(self.own), "--tls-key-file", str(self.own)),
            *("--tls-ca-cert-file", str(self.authority), *options),
        )
        rights = ("on", f">{PASSWORD}", "~*", "+@all")
        self.client.execute_command("ACL", "SETUSER", "site", *rights)

    def tls_url(self, scheme: str = "rediss", ca: Path | None = None, *, own: bool = True) -> str:
        """As a site writes it; `own`: with the client's certificate."""
        mine = f"&ssl_certfile={self.own}&ssl_keyfile={self.own}"
        ca = ca or self.authority
        place = f"{scheme}://site:{PASSWORD}@localhost:{self.port}/0?ssl_ca_certs={ca}"
        place += "&ssl_min_version=771"
        return place + (mine if own else "")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    if PROGRAM is None:
        pytest.skip("redis-server is not installed")
    server = TlsServer(tmp_path_factory.mktemp("tls"))
    yield server
    server.stop()


@pytest.fixture
def cluster(tmp_path: Path, server: TlsServer) -> Iterator[TlsServer]:
    """A TLS server that is a Cluster by itself."""
    cluster = TlsServer(tmp_path, "--cluster-enabled", "yes", "--tls-cluster", "yes")
    ask = cluster.client.execute_command
    ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    wait_until(lambda: b"cluster_state:ok" in ask("CLUSTER", "INFO"))
    yield cluster
    cluster.stop()


def settings(url: str, prefix: str, store: str = "sorted-set") -> Settings:
    identity = "user=header:x-user, guest=visitor"
    return Settings.from_env({}, redis_url=url, prefix=prefix, store=store, identity=identity)


def records(site: Settings) -> bool:
    """Whether a user and a guest who come are written, and the stale removed."""
    recorder = Recorder(site, background=False)
    for environ in ({"HTTP_X_USER": "ann"}, {"REMOTE_ADDR": "1.2.3.4"}):
        WsgiVisit(recorder, environ).end()
    recorder.run_once()
    is_written = recorder.people.is_empty
    recorder.close()
    return is_written and recorder.stats().last_error is None


QUESTIONS: dict[str, Callable[[Settings], dict[str, int]]] = {
    "sync": lambda site: Presence(site).counts(),
    "async": lambda site: awaited(site, AsyncPresence.counts),
}


@pytest.mark.parametrize(
    ("place", "scheme"),
    [
        *(("server", "rediss"), ("server", "valkeys"), ("cluster", "rediss+cluster")),
        pytest.param("cluster", "valkeys+cluster", marks=pytest.mark.matrix),
    ],
)
def test_options_in_the_url_are_enough_for_tls(
    request: pytest.FixtureRequest, prefix: str, place: str, scheme: str, patience: str
) -> None:
    server: TlsServer = request.getfixturevalue(place)
    site = settings(server.tls_url(scheme) + patience.replace("?", "&"), prefix)
    assert records(site)
    for ask in QUESTIONS.values():
        assert ask(site) == {"user": 1, "guest": 1, "bot": 0}
    assert PASSWORD not in repr(site)


@pytest.mark.parametrize(("place", "scheme"), [("server", "rediss"), ("cluster", "rediss+cluster")])
def test_options_of_tls_reach_each_connection(
    request: pytest.FixtureRequest, prefix: str, place: str, scheme: str
) -> None:
    server: TlsServer = request.getfixturevalue(place)
    site = settings(f"{server.tls_url(scheme)}&ssl_ciphers=UNKNOWN", prefix)
    with pytest.raises(PresenceUnavailable, match="No cipher can be selected"):
        Presence(site).counts()


Wrong = Callable[[TlsServer, Path], str]
UNVERIFIED, UNANSWERED = "certificate verify failed", "Redis did not answer"
WRONG: dict[str, tuple[str, Wrong]] = {
    "authority": (
        UNVERIFIED,
        lambda server, folder: server.tls_url(ca=certificate_of(trustme.CA(), folder / "other")),
    ),
    "no authority": (
        UNVERIFIED,
        lambda server, _: server.tls_url().replace("ssl_ca_certs", "ssl_ca_path"),
    ),
    # Cut off, at one moment or another of the handshake: in words of the system's own.
    "no certificate": (UNANSWERED, lambda server, _: server.tls_url(own=False)),
    "no file": ("No such file", lambda server, folder: server.tls_url(ca=folder / "none")),
    "password": (
        "invalid username-password pair",
        lambda server, _: server.tls_url().replace(PASSWORD, PASSWORD[:-1]),
    ),
    "no TLS": (UNANSWERED, lambda server, _: f"redis://:{PASSWORD}@localhost:{server.port}/0"),
}


@pytest.mark.parametrize("wrong", list(WRONG))
def test_errors_contain_no_credentials(
    server: TlsServer,
    prefix: str,
    tmp_path: Path,
    *,
    patience: str,
    wrong: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    said, url_of = WRONG[wrong]
    url = url_of(server, tmp_path)
    site = settings(url + patience.replace("?", "&" if "?" in url else "?"), prefix)
    for ask in QUESTIONS.values():
        with pytest.raises(PresenceUnavailable, match=said) as caught:
            ask(site)
        assert PASSWORD[:-1] not in str(caught.value)
    assert not records(site)
    assert said in caplog.text
    assert PASSWORD[:-1] not in caplog.text


def sockets_to(port: int) -> int:
    """Return how many sockets this process has open to this port."""
    count = 0
    for each in gc.get_objects():
        # Of its class: a lazy object of Django, asked for its own, would be made.
        if issubclass(type(each), socket.socket) and each.fileno() != -1:
            try:
                count += each.getpeername()[1:2] == (port,)
            except OSError:
                continue  # It is not connected.
    return count


async def until_no_socket(port: int) -> None:
    """Wait until this process has no socket to this port."""
    async with asyncio.timeout(10):
        while sockets_to(port):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("failure", ["no answer", "cancelled", "password", "closed"])
def test_a_failed_tls_read_leaves_no_socket(
    server: TlsServer, prefix: str, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_sent = threading.Event()

    async def read() -> None:
        # With time for a handshake on a slow machine.
        url = f"{server.tls_url()}&socket_connect_timeout=2"
        if failure == "password":
            url = url.replace(PASSWORD, PASSWORD[:-1])
            with pytest.raises(PresenceUnavailable, match="invalid username-password pair"):
                await AsyncPresence(settings(url, prefix)).count()
            return
        presence = AsyncPresence(settings(url, prefix))
        assert await presence.count() == 0
        assert sockets_to(server.port) == 1
        with hung(server):
            if failure == "closed":
                await presence.aclose()
            elif failure == "cancelled":
                on_call(monkeypatch, drivers, "send", lambda *_: is_sent.set())
                reading = asyncio.create_task(presence.count())
                await asyncio.to_thread(is_sent.wait)
                reading.cancel()
            else:
                with pytest.raises(PresenceUnavailable, match="Timeout reading"):
                    await presence.count()
            await until_no_socket(server.port)

    gc.collect()  # closes the sockets that other tests have left in cycles, as redis-py 5 does
    asyncio.run(read())
    assert sockets_to(server.port) == 0


@in_loop
async def test_a_server_with_too_many_clients_is_asked_a_few_times_only(own: Server) -> None:
    own.client.config_set("maxclients", 1)
    given = settings(own.url, "presence")
    with pytest.raises(PresenceUnavailable, match="Redis did not answer: "):
        Presence(given).count()
    assert 0 < own.client.info("stats")["rejected_connections"] < 9
    presence = AsyncPresence(given)
    with pytest.raises(PresenceUnavailable, match="Redis did not answer: "):
        await presence.count()
    assert 0 < own.client.info("stats")["rejected_connections"] < 18


def test_a_client_of_valkey_py_is_one_of_redis_py(own: Server) -> None:
    client = valkey.Valkey.from_url(own.url)
    presence = Presence(settings(own.url, "presence"), client=client)
    presence.touch("ann")  # the server has no script yet
    assert presence.is_online("ann")
    client.set("friends", "of another type")
    with pytest.raises(QueryError):
        presence.online_friends("friends")


@pytest.mark.parametrize("is_passed", [False, True], ids=["client of the URL", "passed client"])
def test_a_reader_that_is_cancelled_cancels_no_other(
    server: TlsServer, prefix: str, is_passed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    # An old redis-py takes this option for a text.
    url = server.tls_url().replace("&ssl_min_version=771", "")
    url = f"{url}&socket_connect_timeout=2&socket_timeout=0.5"

    async def read() -> list[Any]:
        client = redis.asyncio.Redis.from_url(url) if is_passed else None
        presence = AsyncPresence(settings(url, prefix), client=client)
        assert await asyncio.gather(*(presence.count() for _ in range(3))) == [0] * 3
        health = presence.backend.health
        with hung(server):
            readers = [asyncio.create_task(presence.count()) for _ in range(2)]
            # Both close the other connections, and the server confirms the end of none.
            while health.generation < len(readers):
                await asyncio.sleep(0.01)
            readers[0].cancel()
            errors = await asyncio.gather(*readers, return_exceptions=True)
        if client is not None:
            await client.aclose()
        await presence.aclose()
        await until_no_socket(server.port)
        return errors

    gc.collect()  # closes the sockets that other tests have left in cycles, as redis-py 5 does
    _, error = asyncio.run(read())
    assert isinstance(error, PresenceUnavailable)
    gc.collect()  # destroys the tasks of the loop, which then log an error that nobody saw
    assert not caplog.records


@pytest.mark.parametrize("is_connected", [False, True], ids=["connects", "is connected"])
def test_a_reader_that_is_cancelled_does_not_go_on(
    valkey: Server, prefix: str, is_connected: bool
) -> None:
    async def cancelled_after(turns: int) -> bool:
        """Cancel a reader after some turns of the loop; return whether it was still reading."""
        presence = AsyncPresence(settings(valkey.url, prefix))
        if is_connected:
            await presence.count()
        reader = asyncio.create_task(presence.count())
        for _ in range(turns):
            await asyncio.sleep(0)
        is_reading = reader.cancel()
        await asyncio.wait([reader])
        assert reader.cancelled() is is_reading
        await presence.aclose()
        return is_reading

    turns = 0
    while asyncio.run(cancelled_after(turns)):
        turns += 1
    assert turns > 2


@pytest.fixture(params=["valkey", "redis_server", "redis62"])
def plain(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


def url_of_user(server: Server, prefix: str, *rules: str) -> str:
    """Return the URL of a server for a user with the given rights on the keys of a site."""
    name = f"user-{uuid.uuid4().hex}"
    given = ("on", f">{PASSWORD}", f"~{prefix}:*", f"~{prefix}-friends", *rules)
    server.client.execute_command("ACL", "SETUSER", name, *given)
    server.client.sadd(f"{prefix}-friends", "ann")
    return f"unix://{name}:{PASSWORD}@{server.socket}"


def does_everything(url: str, prefix: str, store: str) -> bool:
    """Whether a site may do at this address all that is to be done."""
    site = settings(url, f"{prefix}:{store}", store)
    presence = Presence(site)
    of_ann: list[Callable[[str], object]] = [presence.is_online, presence.last_seen]
    of_ann += [presence.touch, presence.forget, presence.leave]
    try:
        if not records(site):
            return False
        presence.counts()
        if store != "hyperloglog":
            presence.online()
            presence.online_friends(f"{prefix}-friends")
            for do in of_ann:
                do("ann")
    except PresenceUnavailable:
        return False
    return True


def rights(*wanted: str) -> list[str]:
    return [f"+{name}" for want in wanted for name in RIGHTS[want].split()]


def test_a_user_needs_few_rights(plain: Server, patience: str, prefix: str, store: str) -> None:
    # Bots are in a HyperLogLog by default, whatever the store of the others.
    for given in (rights("everything", store, "hyperloglog"), SHORT.split()):
        assert does_everything(url_of_user(plain, prefix, *given) + patience, prefix, store)


def test_without_a_name_client_is_not_needed(valkey: Server, patience: str, prefix: str) -> None:
    """As behind some proxies."""
    url = url_of_user(valkey, prefix, "+@all", "-client") + patience
    assert not does_everything(url, prefix, "sorted-set")
    assert does_everything(f"{url}&client_name=", prefix, "sorted-set")


# PING is asked of connections only that were idle for 15 seconds.
@pytest.mark.parametrize("right", sorted({*" ".join(RIGHTS.values()).split()} - {"ping"}))
def test_a_user_needs_each_of_these_rights(
    valkey: Server, patience: str, prefix: str, right: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = url_of_user(valkey, prefix, *rights(*RIGHTS), f"-{right}") + patience
    valkey.client.script_flush()
    does_everything_asked = all(does_everything(url, prefix, store) for store in STORES)
    assert not does_everything_asked or "stale entries" in caplog.text


@pytest.mark.parametrize("ask", QUESTIONS)
def test_the_error_about_a_renamed_command_names_it_and_no_arguments(
    ask: str, valkey: Server, tmp_path: Path, stack: ExitStack
) -> None:
    server = Server(valkey.binary, tmp_path, "--rename-command", "ZCOUNT", "")
    stack.callback(server.stop)
    with pytest.raises(PresenceUnavailable, match=r"^Redis refused: unknown command 'ZCOUNT'$"):
        QUESTIONS[ask](settings(server.url, "presence"))


# Sentinels, and servers that are away.


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=list(QUESTIONS))
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://nowhere.invalid", r"connecting to nowhere\.invalid:6379"),
        ("redis://a..b/0", "label empty"),
        ("redis+cluster://ann:canary@127.0.0.1:1,127.0.0.1:2", "cannot be connected"),
        (
            "redis+sentinel://127.0.0.1:1,127.0.0.1:2/site"
            "?sentinel_password=canary%20%3E)%3E)%3E)%3E%20-%20of%26the%0ASentinels",
            "No master found for 'site': .*ConnectionError",
        ),
    ],
)
def test_the_error_of_a_server_that_is_away_gives_a_reason_and_no_secret(
    prefix: str, url: str, said: str, ask: Callable[[Settings], object]
) -> None:
    settings = Settings.from_env({}, redis_url=url, prefix=prefix)
    with Stopwatch() as watch, pytest.raises(PresenceUnavailable, match=said) as raised:
        ask(settings)
    assert watch.seconds < 2
    # Some versions of redis-py show the password there, others hide it.
    for shown in (repr(settings), str(raised.value), "".join(format_exception(raised.value))):
        assert "canary" not in shown
    assert "password" not in str(raised.value)


@pytest.mark.parametrize("url", ["redis://localhost:6379/0", "redis://localhost:6379/1"])
def test_an_error_names_the_variable_of_the_url(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr(redis.Connection, "_connect", Mock(side_effect=ConnectionRefusedError))
    with pytest.raises(PresenceUnavailable) as raised:
        Presence(Settings.from_env({}, redis_url=url)).count()
    remedy = "If your server is not there, set PRESENCE_REDIS_URL"
    assert (remedy in str(raised.value)) == (url == str(Settings().redis_url))


def test_options_of_the_url_reach_the_primary_and_the_sentinels(prefix: str) -> None:
    url = "valkey+sentinel://ann:a%3Ab@[::1],host:1/site/3?sentinel_password=c&socket_timeout=0.25"
    settings = Settings.from_env({}, redis_url=url, prefix=prefix)
    assert "a%3Ab" not in repr(settings)
    client = client_of(settings.redis_url)
    manager = client.connection_pool.sentinel_manager
    asked = [each.connection_pool.connection_kwargs for each in manager.sentinels]
    assert [(each["host"], each["port"]) for each in asked] == [("::1", 26379), ("host", 1)]
    assert {each["password"] for each in asked} == {"c"}
    given = client.connection_pool.connection_kwargs
    assert (given["username"], given["password"], given["db"]) == ("ann", "a:b", 3)
    assert given["socket_timeout"] == 0.25


# A password that changes while the site runs.


class Tokens:
    """A provider as sites write it, and the server that accepts its newest token only."""

    def __init__(self, admin: Any) -> None:
        self.admin, self.number = admin, 0
        self.rotate()

    def rotate(self) -> None:
        """Let the server accept another token, and end all connections of the site."""
        self.number += 1
        rights = ("on", f">token{self.number}", "~*", "&*", "+@all")
        self.admin.execute_command("ACL", "SETUSER", "iam", "reset", *rights)
        self.admin.client_kill_filter(_type="normal", skipme=True)

    def get_credentials(self) -> tuple[str, str]:
        return "iam", f"token{self.number}"


@pytest.fixture
def tokens(own: Server, client: Any, monkeypatch: pytest.MonkeyPatch) -> Tokens:
    tokens = Tokens(client)
    module: Any = ModuleType("iam_of_the_site")
    module.provider, module.url = tokens, own.url
    module.make = lambda: tokens
    method = {"get_credentials": lambda _: tokens.get_credentials()}
    module.Provider = type("Provider", (redis.CredentialProvider,), method)
    monkeypatch.setitem(sys.modules, "iam_of_the_site", module)
    return tokens


def site(provider: str, **settings: str) -> Settings:
    url = f"{sys.modules['iam_of_the_site'].url}?credential_provider=iam_of_the_site:{provider}"
    return Settings.from_env({}, redis_url=url, identity="user=auth", **settings)


@pytest.mark.parametrize("provider", ["provider", "make", "Provider"])
def test_each_new_connection_asks_for_fresh_credentials(tokens: Tokens, provider: str) -> None:
    settings = site(provider)
    recorder = Recorder(settings, background=False)
    presence = Presence(settings)

    async def counts(reader: AsyncPresence) -> list[int]:
        found = []
        for _ in range(2):
            found.append(await reader.count())
            await reader.aclose()
            tokens.rotate()
        return found

    presence.touch("ann")
    for number in (2, 3):
        tokens.rotate()
        presence.touch(f"user{number}")
        recorder.run_once()
        assert not recorder.health.is_outage
        assert presence.count() == number
    assert awaited(settings, counts) == [3, 3]


@pytest.mark.parametrize("provider", ["provider", "Provider"])
def test_a_coroutine_asks_for_credentials_in_a_thread(
    tokens: Tokens, provider: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, here = list[int](), threading.get_ident
    on_call(monkeypatch, tokens, "get_credentials", lambda: threads.append(here()))
    assert awaited(site(provider), AsyncPresence.count) == 0
    assert threads
    assert here() not in threads
    assert not caplog.messages


def test_a_provider_that_fails_is_an_outage_with_its_name_and_no_token(tokens: Tokens) -> None:
    fails = Mock(side_effect=RuntimeError(f"token{tokens.number}"))
    tokens.get_credentials = fails  # type: ignore[method-assign]
    for ask in QUESTIONS.values():
        with pytest.raises(PresenceUnavailable) as error:
            ask(site("provider"))
        said = "credential_provider=iam_of_the_site:provider of PRESENCE_REDIS_URL raised RuntimeE"
        assert said in str(error.value)
        assert "token" not in str(error.value)
    with pytest.raises(PresenceUnavailable, match="raised AttributeError"):
        Presence(site("missing")).count()


def test_threads_that_begin_share_memory(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    presence = Presence(Settings.from_env({}, redis_url=f"memory://{prefix}"))
    others = ["bob"]

    class Slow(fakeredis.FakeServer):
        """While its database is made, another thread comes."""

        def __init__(self) -> None:
            super().__init__()
            databases: Any = self.dbs
            self.make, databases.default_factory = databases.default_factory, self.make_slowly

        def make_slowly(self) -> Any:
            while others:
                with in_thread(partial(presence.touch, others.pop())):
                    pass
            return self.make()

    monkeypatch.setattr(fakeredis, "FakeServer", Slow)
    presence.touch("ann")
    assert presence.is_online("ann")
    assert presence.is_online("bob")
