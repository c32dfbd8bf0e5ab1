"""Users and sessions as Django and Channels leave them in a scope."""

import asyncio
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from django.utils.functional import SimpleLazyObject

from presence_middleware import Identity, Settings
from presence_middleware.asgi import ASGIApplication, PresenceMiddleware, Scope
from presence_middleware.django import Account, IdentifyWebSocketUser
from tests.support.template_sites import configure_django
from tests.unit.test_asgi import Gateway, silent

ANN = SimpleNamespace(pk=7, is_authenticated=True)
NOBODY = SimpleNamespace(pk=None, is_authenticated=False)
DELETED = SimpleNamespace(pk=None, is_authenticated=True)
KEY = "_auth_user_id"


def loaded(value: object) -> SimpleLazyObject:
    """As Channels has users and sessions in the scope."""
    lazy = SimpleLazyObject(lambda: value)
    lazy._setup()
    return lazy


def session(**values: str) -> SimpleLazyObject:
    return loaded(SimpleNamespace(_session_cache=values))


def identities(app: ASGIApplication, added: Scope, settings: Settings) -> list[Identity | None]:
    """Who is found on a WebSocket before the app runs and after, given what layers add."""
    found = []

    async def inner(scope: Scope, receive: Any, send: Any) -> None:
        found.append(scope["presence_middleware.visit"].identity)
        await app(scope, receive, send)
        found.append(scope["presence_middleware.visit"].identity)

    async def layer(scope: Scope, receive: Any, send: Any) -> None:
        await IdentifyWebSocketUser(inner)({**scope, **added}, receive, send)

    gateway = Gateway("websocket", user=None)
    asyncio.run(gateway.ask(PresenceMiddleware(layer, settings=settings)))
    return found


def kept(prefix: str, source: str = "auth") -> Settings:
    """Settings with which nothing is recorded, but everybody recognised."""
    return Settings.from_env(
        {}, redis_url=f"memory://{prefix}", enabled=0, identity=f"user={source}, guest=ip:raw"
    )


GUEST, USER = Identity("guest", "1.2.3.4"), Identity("user", "7")
NAMED = SimpleNamespace(pk=7, is_authenticated=True, username="ann")
IN, OUT = {KEY: "7"}, dict[str, str]()
Socket = tuple[object, dict[str, str] | None, dict[str, str], list[Identity]]
# The user, the session before and after the consumer, and who is found before and after.
SOCKETS: dict[str, Socket] = {
    "a user": (ANN, None, OUT, [USER, USER]),
    "a lazy one": (loaded(ANN), None, OUT, [USER, USER]),
    "refused": (loaded(NOBODY), IN, IN, [GUEST, GUEST]),
    "nobody": (loaded(NOBODY), OUT, OUT, [GUEST, GUEST]),
    "deleted": (DELETED, None, OUT, [GUEST, GUEST]),
    "none": (None, None, OUT, [GUEST, GUEST]),
    "a login": (loaded(NOBODY), OUT, IN, [GUEST, USER]),
    "a logout": (loaded(ANN), IN, OUT, [USER, GUEST]),
    "another user": (loaded(ANN), IN, {KEY: "8"}, [USER, Identity("user", "8")]),
    "a cart": (loaded(ANN), IN, {**IN, "cart": "1"}, [USER, USER]),
}
NAME = Identity("user", "ann")
OF_NAMES: dict[str, Socket] = {
    "a name": (NAMED, OUT, OUT, [NAME, NAME]),
    "no name": (ANN, OUT, OUT, [GUEST, GUEST]),
    "no user": (NOBODY, OUT, OUT, [GUEST, GUEST]),
    "a login without a name": (NOBODY, OUT, IN, [GUEST, GUEST]),
}


@pytest.mark.parametrize(
    ("source", "name"),
    [*(("auth", name) for name in SOCKETS), *(("auth:username", name) for name in OF_NAMES)],
)
def test_the_user_of_a_socket_is_that_of_its_scope_and_then_of_its_session(
    source: str, name: str, prefix: str
) -> None:
    user, before, after, expected = {**SOCKETS, **OF_NAMES}[name]

    async def consumer(scope: Scope, *_: object) -> None:
        own = {**scope, "user": "as login() and logout() leave it"}
        if before is not None:
            own["session"]._session_cache = after

    added = {"user": user} | ({} if before is None else {"session": session(**before)})
    assert identities(consumer, added, kept(prefix, source)) == expected


def test_identifying_a_loaded_account_makes_no_database_query() -> None:
    configure_django()
    from django.contrib.auth.models import User

    account = Account(User.from_db("default", ["id", "username"], [7, "ann"]))
    unread = ("email", "groups", "get_full_name", "nothing")
    assert [account.identity, account.pk, account.username] == ["7", 7, "ann"]
    assert [getattr(account, name) for name in unread] == [None] * 4


def test_identifying_loads_neither_user_nor_session(prefix: str) -> None:
    def load() -> NoReturn:
        raise AssertionError("it was loaded")

    added = {"user": SimpleLazyObject(load), "session": SimpleLazyObject(load)}
    assert identities(silent, added, kept(prefix)) == [GUEST, GUEST]


def test_a_socket_that_is_not_wrapped_reaches_its_app() -> None:
    async def app(*call: object) -> str:
        return "returned" if call == (scope, receive, send) else "changed"

    gateway = Gateway("websocket", user=ANN)
    scope, receive, send = gateway.scope, gateway.receive, gateway.send
    assert asyncio.run(IdentifyWebSocketUser(app)(scope, receive, send)) == "returned"
