"""Users and sessions as Django and Channels leave them in a scope."""

import asyncio
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from django.utils.functional import LazyObject, SimpleLazyObject

from presence_middleware import Identity, Settings
from presence_middleware.asgi import ASGIApplication, PresenceMiddleware, Scope
from presence_middleware.django import Account, IdentifyWebSocketUser
from tests.unit.test_asgi import Gateway, silent

ANN = SimpleNamespace(pk=7, is_authenticated=True)
NOBODY = SimpleNamespace(pk=None, is_authenticated=False)
DELETED = SimpleNamespace(pk=None, is_authenticated=True)
KEY = "_auth_user_id"


class Loaded(LazyObject):  # type: ignore[misc]  # Django has no types
    """As Channels has users and sessions in the scope."""

    def __init__(self, value: object) -> None:
        self.__dict__["_wrapped"] = value

    def _setup(self) -> NoReturn:
        raise AssertionError("never")


def session(**values: str) -> Loaded:
    return Loaded(SimpleNamespace(_session_cache=values))


def identities(app: ASGIApplication, added: Scope, settings: Settings) -> list[Identity | None]:
    """Who is found on a WebSocket before the app runs and after, given what layers add."""
    found = []

    async def inner(scope: Scope, receive: Any, send: Any) -> None:
        found.append(scope["presence_middleware.visit"].identity)
        await app(scope, receive, send)
        found.append(scope["presence_middleware.visit"].identity)

    async def layer(scope: Scope, receive: Any, send: Any) -> None:
        await IdentifyWebSocketUser(inner)({**scope, **added}, receive, send)

    gateway = Gateway("websocket")
    del gateway.scope["user"]
    asyncio.run(gateway.ask(PresenceMiddleware(layer, settings=settings)))
    return found


def kept(prefix: str) -> Settings:
    """Settings with which nothing is recorded, but everybody recognised."""
    return Settings.from_env(
        {}, redis_url=f"memory://{prefix}", enabled=0, identity="user=auth, guest=ip:raw"
    )


GUEST, USER = Identity("guest", "1.2.3.4"), Identity("user", "7")


@pytest.mark.parametrize(
    ("added", "identity"),
    [
        ({"user": ANN}, USER),
        ({"user": Loaded(ANN)}, USER),
        ({"user": Loaded(ANN), "session": session(**{KEY: "7"})}, USER),
        ({"user": Loaded(NOBODY), "session": session(**{KEY: "7"})}, GUEST),
        ({"user": Loaded(NOBODY), "session": session()}, GUEST),
        ({"user": DELETED}, GUEST),
        ({"user": None}, GUEST),
        ({}, GUEST),
    ],
    ids=["a user", "a lazy one", "and a session", "refused", "nobody", "deleted", "none", "empty"],
)
def test_a_user_set_in_a_copied_scope_is_the_user_of_the_socket(
    added: Scope, identity: Identity, prefix: str
) -> None:
    assert identities(silent, added, kept(prefix)) == [identity, identity]


@pytest.mark.parametrize(
    ("before", "user", "after", "expected"),
    [
        ({}, NOBODY, {KEY: "7"}, [GUEST, USER]),
        ({KEY: "7"}, ANN, {}, [USER, GUEST]),
        ({KEY: "7"}, ANN, {KEY: "8"}, [USER, Identity("user", "8")]),
        ({KEY: "7"}, ANN, {KEY: "7", "cart": "1"}, [USER, USER]),
    ],
    ids=["a login", "a logout", "another user", "a cart"],
)
def test_a_consumer_that_changes_the_session_changes_the_user(
    before: dict[str, str],
    user: object,
    after: dict[str, str],
    expected: list[Identity],
    prefix: str,
) -> None:
    async def consumer(scope: Scope, *_: object) -> None:
        own = {**scope, "user": "as login() and logout() leave it"}
        own["session"]._session_cache = after

    added = {"user": Loaded(user), "session": session(**before)}
    assert identities(consumer, added, kept(prefix)) == expected


@pytest.mark.parametrize(
    ("added", "after", "expected"),
    [
        ({"user": SimpleNamespace(pk=7, is_authenticated=True, username="ann")}, {}, "ann"),
        ({"user": ANN}, {}, None),
        ({"user": NOBODY}, {}, None),
        ({"user": NOBODY}, {KEY: "7"}, None),
    ],
    ids=["a username", "a user without", "nobody", "a login in the consumer"],
)
def test_a_socket_has_the_username_with_which_it_was_opened(
    added: Scope, after: dict[str, str], expected: str | None, prefix: str
) -> None:
    async def consumer(scope: Scope, *_: object) -> None:
        scope["session"]._session_cache = after

    chain = {"identity": "user=auth:username, guest=ip:raw", "enabled": 0}
    settings = Settings.from_env({}, redis_url=f"memory://{prefix}", **chain)
    found = identities(consumer, {**added, "session": session()}, settings)
    assert found[1] == (Identity("user", expected) if expected else GUEST)


class User:
    """A user model, with a field that is not loaded and would be read from the database."""

    is_authenticated = True

    def __init__(self) -> None:
        self.pk, self.username = 7, "ann"

    class Deferred:
        """As Django's `DeferredAttribute`, and what leads to another model."""

        def __get__(self, *_: object) -> NoReturn:
            raise AssertionError("a query")

    email = Deferred()

    @property
    def shown(self) -> str:
        return f"{self.username}!"

    def get_full_name(self) -> NoReturn:
        raise AssertionError("called")


def test_identifying_a_loaded_account_makes_no_database_query() -> None:
    account = Account(User())
    names = ("identity", "pk", "username", "shown", "email", "get_full_name", "nothing")
    found = [getattr(account, name) for name in names]
    assert found == ["7", 7, "ann", "ann!", None, None, None]


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


def test_a_scope_of_a_visit_that_is_over_reaches_its_app(prefix: str) -> None:
    async def again(scope: Scope, receive: Any, send: Any) -> None:
        scope["presence_middleware.visit"].end()
        await IdentifyWebSocketUser(silent)(scope, receive, send)

    app = PresenceMiddleware(again, settings=kept(prefix))
    asyncio.run(Gateway("websocket", user=ANN).ask(app))
