"""Secrets of a request leave no trace: tests send secrets and search for them afterwards.

In Redis, in the log, in what objects show of themselves, in errors, and in the memory of what
stays: the recorder, the middleware, the package's modules.
"""

import base64
import functools
import gc
import logging
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
import redis

from presence_middleware import Identity, Presence, PresenceUnavailable, Settings, asgi, wsgi
from presence_middleware.recorder import Visit, recorder_for
from presence_middleware.recorder.recorder import live_recorders
from presence_middleware.request import WsgiRequest
from presence_middleware.wsgi import WsgiVisit
from tests.security.signed import SCHEMES
from tests.support.asking import Inner, Request, State, ask_asgi, ask_wsgi
from tests.support.backends import Server, content_of, matrix
from tests.support.memory import drop_leftovers
from tests.support.statuses import Call, basic, over_wsgi

Ask = Callable[[Settings, Request, Inner], Identity | None]
Site = Callable[..., Settings]
SECRET = "the secret of the site, which hashes"
SESSION_SECRET = "the key of the framework which signs"
ADDRESS, ADDRESS_6, PROXY = "198.51.100.77", "2001:db8:ca:4a:12::77", "10.0.0.1"
NAMES = (
    *("cookie", "cookie-name", "header", "agent", "crawler", "query", "login", "csrf", "basic"),
    *("environ", "referer", "django", "path", "proxy-user"),
)


def secret_of(name: str) -> str:
    return f"canary-{name}-7f3a91"


SECRETS = (*map(secret_of, NAMES), ADDRESS, ADDRESS_6)

# ---- What is looked for, and where.


def disguises(secret: str) -> Iterator[str]:
    """A secret as itself, and as encoded on the way."""
    raw = secret.encode()
    yield secret.lower()
    yield raw.hex()
    yield "".join(f"%{byte:02x}" for byte in raw)
    yield quote(secret, safe="").lower()
    for shift in range(3):  # wherever it begins within base64, whose ends depend on what is around
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            text = encode(b"\0" * shift + raw).decode().rstrip("=")
            yield text[4 if shift else 0 : -2].lower()


PATTERNS = [(secret, disguise) for secret in SECRETS for disguise in set(disguises(secret))]


def found(texts: Iterable[str | bytes]) -> set[str]:
    known = {text.decode("latin-1") if isinstance(text, bytes) else text for text in texts}
    heap = "\n".join(text.lower() for text in known)
    return {secret for secret, disguise in PATTERNS if disguise in heap}


# Loggers lead to handlers of the test's own, these to all that pytest holds.
OURS = ("presence_middleware", "tests")
NOT_OURS = (int, float, logging.Logger, logging.Handler)


def reachable(*roots: object) -> Iterator[object]:
    """All objects that `roots` lead to, but for code, types, and the globals of functions."""
    seen: set[int] = set()
    waiting: list[Any] = list(roots)
    keep: list[object] = []  # so that no id is given twice
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        keep.append(thing)
        yield thing
        waiting += _next(thing)


def _next(thing: Any) -> Iterable[object]:
    if isinstance(thing, (str, bytes, ModuleType, type, CodeType, FrameType, *NOT_OURS)):
        return ()
    # A proxy of Flask has nothing outside of a request. A library's own cache we only call:
    # urlsplit's has what a server split.
    if type(thing).__module__ == "werkzeug.local" or (
        hasattr(thing, "cache_info") and not thing.__module__.startswith(OURS)
    ):
        return ()
    if isinstance(thing, dict):  # whose keys Python's collector passes over where all are text
        return [*dict.keys(thing), *dict.values(thing), *gc.get_referents(thing)]
    if isinstance(thing, FunctionType):
        inside = (thing.__closure__, thing.__defaults__, thing.__kwdefaults__, thing.__dict__)
        return [part for part in inside if part]
    if isinstance(thing, BuiltinFunctionType):
        return [thing.__self__]
    own = getattr(thing, "__dict__", None)
    return [*gc.get_referents(thing), *([own] if isinstance(own, dict) else [])]


def texts_of(*roots: object) -> Iterator[str | bytes]:
    for thing in reachable(*roots):
        if isinstance(thing, (str, bytes)):
            yield thing
        elif isinstance(thing, (bytearray, memoryview)):
            yield bytes(thing)


def buffers_of_this_process(*roots: object) -> list[object]:
    """What stays between two requests: `roots`, and the modules of the package."""
    gc.collect()
    own = [each for name, each in sys.modules.items() if name.startswith("presence_middleware")]
    return [*roots, *map(vars, own)]


def shown(*roots: object) -> Iterator[str]:
    """What the package's objects that `roots` lead to show of themselves."""
    for thing in reachable(*roots):
        if type(thing).__module__.startswith("presence_middleware"):
            yield f"{thing!r} {thing!s} {thing}"


def dumped(url: str, prefix: str) -> list[str | bytes]:
    """The names of all keys of the server, and all that the keys of one site hold."""
    texts: list[str | bytes] = []
    with redis.Redis.from_url(url) as client:
        for key in client.scan_iter(count=10_000):
            texts.append(key)
            if key.startswith(prefix.encode()):
                texts += texts_of(content_of(client, key))
    return texts


# ---- The traffic, in which everything is a secret.


SIGNED = {  # sources by their cookies, and how their values are signed
    **{"flask-session:who@flask": "flask", "starlette-session:who@starlette": "starlette"},
    **{"pyramid-session:who@pyramid": "pyramid", "auth-tkt": "ticket", "bearer:who": "jwt"},
    **{"bearer:who@token": "jwt in a cookie", "signed:who@shop:of a plugin": "signed"},
}


def signed(name: str, key: str) -> str:
    return SCHEMES[name].make(key, {"who": secret_of("login"), "csrf": secret_of("csrf")})


def traffic(logged_in: bool = True, key: str = SESSION_SECRET) -> Iterator[Request]:
    """Requests from all sides, made anew each time."""
    values = {"sid": secret_of("cookie"), "sessionid": secret_of("django")}
    values |= {secret_of("cookie-name"): "1", "auth_tkt": signed("ticket", key)}
    for source, name in SIGNED.items():
        if "@" in source:
            values[source.split("@")[1].split(":")[0]] = signed(name, key)
    for authorization in (basic(f"ann:{secret_of('basic')}"), f"Bearer {signed('jwt', key)}"):
        for peer, via in ((ADDRESS, ""), (ADDRESS_6, ""), (PROXY, ADDRESS), (PROXY, ADDRESS_6)):
            for agent in (secret_of("agent"), f"Spider {secret_of('crawler')} spider.com"):
                headers = {
                    "Cookie": "; ".join(f"{name}={value}" for name, value in values.items()),
                    "Authorization": authorization,
                    "User-Agent": agent,
                    "X-Canary": secret_of("header"),
                    "Referer": f"https://site.example/?{secret_of('referer')}",
                    "Proxy-Authorization": f"Basic {secret_of('proxy-user')}",
                    **({"X-Forwarded-For": via} if via else {}),
                }
                query, path = f"token={secret_of('query')}", f"/{secret_of('path')}"
                state: dict[str, object] = {
                    **{"QUERY_STRING": query, "query_string": query.encode()},
                    **{"PATH_INFO": path, "path": path, "canary.user": secret_of("environ")},
                    "canary.account": {"name": secret_of("environ")},
                }
                yield Request(
                    [(name, value.encode()) for name, value in headers.items()],
                    peer=peer,
                    user=secret_of("login") if logged_in else None,
                    session={"who": secret_of("login"), "csrf": secret_of("csrf")},
                    state=state,
                )


def of_view(view: WsgiRequest) -> str:
    return f"{view.header('cookie')} {view.user_agent} {view.address} {view.path}"


SOURCES = [
    *("header:X-Canary", "header:Authorization", "cookie:sid", "django-session", "ip", "visitor"),
    *("user-agent", "session:who", "environ:canary.user", "scope:canary.user", "auth"),
    *("environ:canary.account.name", "tests.security.test_canary:of_view", *SIGNED),
]


@pytest.fixture
def site(unwritten: Site, caplog: pytest.LogCaptureFixture) -> Iterator[Site]:
    secrets = {"secret": SECRET, "session_secret": SESSION_SECRET}
    given = {"trusted_proxies": "10.0.0.0/8", **secrets}
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "presence_middleware")
    drop_leftovers()  # of other tests, passwords among them: they would be found with ours
    yield lambda identity, **others: unwritten(identity=identity, **{**given, **others})
    drop_leftovers()


class Left:
    """What is left of some traffic, in which place."""

    def __init__(self, ask: Ask, settings: Settings, requests: Iterable[Request]) -> None:
        self.settings = settings
        self._shown: list[str] = []
        self.recorder = recorder_for(settings)
        self.recorder.background = False  # its thread sleeps: all waits until we have looked
        for other in set(live_recorders) - {self.recorder}:
            other.reset()  # drop the sightings of other tests
        self.identities = [ask(settings, request, self._inside) for request in requests]
        self.waiting = found(texts_of(*buffers_of_this_process(self.recorder)))
        """In memory, before anything is written."""
        assert self.recorder.flush(), self.recorder.stats()
        self.kept = found(texts_of(*buffers_of_this_process(self.recorder)))
        """In memory, afterwards."""

    def _inside(self, state: State) -> None:
        """What a handler could print, in the middle of a request."""
        visit, reader = state["presence_middleware.visit"], state["presence_middleware.presence"]
        self._shown += [f"{thing!r} {thing!s}" for thing in (visit, reader, visit.recorder)]

    @property
    def shown(self) -> set[str]:
        """In the texts of objects."""
        presence = Presence(self.settings)
        wrapped: Any = [
            module.PresenceMiddleware(lambda *_: None, settings=self.settings)
            for module in (wsgi, asgi)
        ]
        chain = self.settings.identity
        objects = [self.settings, self.recorder, self.recorder.stats(), presence, wrapped, chain]
        texts = [f"{thing!r} {thing!s}" for thing in objects]
        return found([*self._shown, *texts, *shown(*objects)])

    @property
    def in_redis(self) -> set[str]:
        url = self.settings.redis_url
        return found(dumped(f"{url.scheme}://{url.target}", self.settings.prefix))


# ---- It finds nothing, but for ids that a site has chosen to keep as they are.


class Kept(NamedTuple):
    """Settings, requests, and which of their secrets stay."""

    identity: str
    kinds: set[str | None]
    kept: tuple[str, ...] = ()
    settings: dict[str, Any] = {}  # noqa: RUF012
    requests: Callable[[], Iterable[Request]] = traffic


FORGED = functools.partial(traffic, key="a key that is not the site's own, and long enough")
ANONYMOUS = functools.partial(traffic, logged_in=False)


def hashed(source: str) -> Kept:
    """Guests come last; nobody is left for them behind a visitor."""
    chain = f"user={source}:hashed"
    return Kept(chain if source == "visitor" else f"{chain}, guest=visitor", {"user"})


def many_visitors() -> Iterator[Request]:
    for number in range(150):
        yield Request([("Cookie", f"sid={secret_of('cookie')}{number}".encode())], peer=ADDRESS)


ROWS = {
    **{f"hashed {source}": hashed(source) for source in SOURCES},
    **{
        f"session of {source}": Kept(f"user={source}, guest=visitor", {"user"}, ("login",))
        for source in SIGNED
    },
    # Before it reaches Redis, this chain has no secret for hashing.
    "default": Kept("user=auth, guest=visitor", {None, "bot"}, (), {"secret": ""}, ANONYMOUS),
    "raw": Kept(
        "user=user-agent:raw, guest=visitor", {"user"}, ("agent", "crawler"), {"bots": "off"}
    ),
    "forged sessions": Kept(
        ", ".join([*(f"user={source}" for source in SIGNED), "guest=visitor"]),
        {"guest", "bot"},
        (),
        {},
        FORGED,
    ),
    "beyond the limit": Kept(
        "user=cookie:sid", {"user"}, (), {"max_members": 1, "bots": "off"}, many_visitors
    ),
}
USUAL = ["hashed cookie:sid", "hashed visitor", "hashed header:Authorization", "hashed ip"]
USUAL += ["session of auth-tkt", "default", "raw", "forged sessions", "beyond the limit"]


@pytest.mark.parametrize("name", [*USUAL, *matrix(*(name for name in ROWS if name not in USUAL))])
def test_only_ids_stay_of_requests(name: str, site: Site, caplog: pytest.LogCaptureFixture) -> None:
    row = ROWS[name]
    settings, kept = site(row.identity, **row.settings), {secret_of(each) for each in row.kept}
    left = Left(ask_wsgi, settings, row.requests())
    kinds = {identity and identity.kind for identity in left.identities}
    assert kinds >= row.kinds if "user" in row.kinds else kinds == row.kinds
    assert left.in_redis == left.waiting == left.kept == kept
    assert left.shown == found([caplog.text]) == set()


PASSWORDS = [
    *(("basic", path, status) for path, status in (("/", 401), ("/logout", 200), ("/", 200))),
    ("basic:hashed", "/", 401),
]


@pytest.mark.parametrize(("source", "path", "status"), PASSWORDS)
def test_a_password_leaves_no_trace(
    source: str, path: str, status: int, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """The password may be right or wrong, and the visit may be read before it is checked."""

    def ask(settings: Settings, asked: Request, inside: Inner) -> Identity | None:
        visits: list[Visit] = []

        def look(state: State) -> None:
            inside(state)
            visits.append(state["presence_middleware.visit"])
            visits[0].recorder.flush()

        headers = {name: value.decode() for name, value in asked.headers}
        over_wsgi(settings, Call(headers, path, statuses=(status,), before=look, after=inside))
        assert found(texts_of(visits[0])) - found(texts_of(visits[0].recorder)) == set()
        return visits[0].identity

    settings = site(f"user={source}, guest=visitor", logout="/logout")
    left = Left(ask, settings, traffic(logged_in=False))
    is_user = Identity("user", "ann") in left.identities
    assert is_user is (source == "basic" and (path, status) == ("/", 200))
    assert left.in_redis == left.waiting == left.kept == left.shown == set()
    assert found([caplog.text]) == set()


@pytest.mark.parametrize("ask", [ask_wsgi, ask_asgi])
@pytest.mark.parametrize("source", ["cookie:sid", "visitor", "header:Authorization"])
@pytest.mark.parametrize("enabled", [True, False])
def test_a_finished_visit_holds_no_secret(ask: Ask, source: str, enabled: bool, site: Site) -> None:
    """The site may keep a reference to the visit."""

    def keep(state: State) -> None:
        kept.append(state["presence_middleware.visit"])
        assert found(texts_of(*kept)) >= {secret_of("cookie"), secret_of("agent"), ADDRESS}

    kept: list[Visit] = []
    ask(site(hashed(source).identity, enabled=enabled), next(traffic()), keep)
    assert kept[0].is_over
    assert kept[0] not in kept[0].recorder.open_visits
    assert found(texts_of(*kept)) == set()


# ---- Errors, and outages.

PASSWORD = secret_of("basic")


@pytest.mark.parametrize(
    "url",
    [
        *(f"redis://ann:{PASSWORD}@{host}/0" for host in ("localhost:1", "no.such.host.invalid")),
        f"rediss://:{PASSWORD}@localhost:1/0",
        f"redis://localhost:1/0?username=ann&password={PASSWORD}",
        f"rediss://localhost:1/0?ssl_ca_data={PASSWORD}",
        f"unix:///no/such/socket?password={PASSWORD}",
        "{valkey}?password=" + PASSWORD,
        "{valkey}?username=ann&password=" + PASSWORD,
    ],
)
def test_an_outage_reveals_no_password_and_no_id(
    url: str, valkey: Server, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    url = url.replace("{valkey}", valkey.url)
    chain = "user=user-agent:raw, guest=ip:raw"
    settings = site(chain, redis_url=url, bots="off", trusted_proxies="")
    for ask in (ask_wsgi, ask_asgi):
        for request in traffic():
            ask(settings, request)
    recorder = recorder_for(settings)
    assert not recorder.flush()
    assert recorder.stats().pending
    assert recorder.stats().last_error
    with pytest.raises(PresenceUnavailable) as caught:
        Presence(settings).online()
    recorder.close()
    told = ["".join(traceback.format_exception(caught.value)), caplog.text]
    objects = [settings, recorder, recorder.stats(), caught.value, Presence(settings)]
    told += [f"{thing!r} {thing!s}" for thing in objects]
    assert "cannot record who is online" in caplog.text
    assert "shutting down with" in caplog.text
    assert found([*told, *shown(*objects)]) == set()


def test_a_redis_key_of_another_type_reveals_no_id(
    valkey: Server, prefix: str, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    valkey.client.set(f"{prefix}:user:seen", "a site's own", ex=600)
    recorder = recorder_for(site("user=user-agent:raw", bots="off"))
    for request in traffic():
        ask_wsgi(recorder.settings, request)
    assert not recorder.flush()
    valkey.client.delete(*valkey.client.keys(f"{prefix}:*"))
    assert "WRONGTYPE" in caplog.text
    assert prefix not in f"{caplog.text}{recorder.stats()}"  # nor any other word of the command
    assert found([caplog.text, str(recorder.stats())]) == set()


class Quoting(dict[str, Any]):
    """An environ that is none, and says what it has."""

    def get(self, key: str, default: Any = None) -> Any:
        if key == "PATH_INFO":
            raise LookupError(secret_of("path"))
        return super().get(key, default)


@pytest.mark.parametrize(
    "environ",
    [
        Quoting(),
        {"PATH_INFO": secret_of("path").encode()},
        {"HTTP_SEC_PURPOSE": [secret_of("header")]},
        {"HTTP_COOKIE": {secret_of("cookie"): 1}},
        {"HTTP_X_FORWARDED_FOR": (ADDRESS,), "REMOTE_ADDR": PROXY},
    ],
)
def test_a_request_that_cannot_be_read_is_not_quoted(
    environ: dict[str, Any], site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    WsgiVisit(recorder_for(site("user=cookie:sid, guest=visitor")), environ).end()
    assert "a request could not be read" in caplog.text
    assert found([caplog.text]) == set()
