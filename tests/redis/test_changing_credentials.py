"""A server whose password changes while the site runs: `?credential_provider=module:object`."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import redis

from presence_middleware import (
    AsyncPresence,
    Presence,
    PresenceUnavailable,
    Settings,
    SettingsError,
)
from presence_middleware.recorder import Recorder
from tests.support.backends import Server


class Tokens:
    """A provider as sites write it, and the server that accepts its newest token only."""

    def __init__(self, server: Server) -> None:
        self.admin: Any = redis.Redis.from_url(server.url)
        self.number = 0
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
def tokens(tmp_path: Path, valkey: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tokens]:
    server = Server(valkey.binary, tmp_path)
    tokens = Tokens(server)
    module: Any = ModuleType("iam_of_the_site")
    module.provider, module.url = tokens, server.url
    module.make = lambda: tokens
    method = {"get_credentials": lambda _: tokens.get_credentials()}
    module.Provider = type("Provider", (redis.CredentialProvider,), method)
    monkeypatch.setitem(sys.modules, "iam_of_the_site", module)
    yield tokens
    tokens.admin.close()
    server.stop()


def site(provider: str, **settings: str) -> Settings:
    url = f"{sys.modules['iam_of_the_site'].url}?credential_provider=iam_of_the_site:{provider}"
    return Settings.from_env({}, redis_url=url, identity="user=auth", **settings)


@pytest.mark.parametrize("provider", ["provider", "make", "Provider"])
def test_each_new_connection_asks_for_the_credentials_of_the_moment(
    tokens: Tokens, provider: str
) -> None:
    settings = site(provider)
    recorder = Recorder(settings, background=False)
    presence = Presence(settings)

    async def counts() -> list[int]:
        reader = AsyncPresence(settings)
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
    assert asyncio.run(counts()) == [3, 3]


def test_a_provider_that_fails_is_an_outage_that_names_it_and_shows_no_token(
    tokens: Tokens,
) -> None:
    def fail() -> None:
        raise RuntimeError(f"token{tokens.number}")

    settings = site("provider")
    presence = Presence(settings)
    tokens.get_credentials = fail  # type: ignore[method-assign, assignment]
    asks: list[Callable[[], int]] = [
        presence.count,
        lambda: asyncio.run(AsyncPresence(settings).count()),
    ]
    for ask in asks:
        with pytest.raises(PresenceUnavailable) as error:
            ask()
        said = "credential_provider=iam_of_the_site:provider of PRESENCE_REDIS_URL raised RuntimeE"
        assert said in str(error.value)
        assert "token" not in str(error.value)
    with pytest.raises(PresenceUnavailable, match="raised AttributeError"):
        Presence(site("missing")).count()


@pytest.mark.parametrize(
    "url",
    [
        "redis://host?credential_provider=iam",
        "redis://host?credential_provider=",
        "redis://user:secret@host?credential_provider=shop.iam:provider",
        "redis+cluster://:secret@host?credential_provider=shop.iam:provider",
    ],
)
def test_a_wrong_provider_is_reported_at_the_start(url: str) -> None:
    with pytest.raises(SettingsError, match="takes the place of user and password") as error:
        Settings.from_env({}, redis_url=url)
    assert "secret" not in str(error.value)
