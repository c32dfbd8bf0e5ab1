"""Every setting: its variable, form, default and help. Read once, strict, all errors at once."""

import difflib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from hashlib import blake2b
from importlib.util import find_spec
from typing import Any

from . import forms, values
from .connections.url import RedisURL, hide_credentials, parse_url
from .errors import SettingsError
from .identity import (
    BOT,
    Bits,
    Proxies,
    Rule,
    kinds,
    parse_chain,
    parse_prefix,
    parse_proxies,
)
from .identity.sessions import TOKEN_SECRET_BYTES, can_verify_tokens

log = logging.getLogger("presence_middleware")

PREFIX = "PRESENCE_"

Parse = Callable[[object], Any]


def _setting(default: str, parse: Parse, help: str, *, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"parse": parse, "help": help})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a site. Equal settings share one recorder in a process."""

    enabled: bool = _setting("1", values.switch, "`0` records nothing; readers stay in place")
    redis_url: RedisURL = _setting(
        "redis://localhost:6379/0", parse_url, "where Redis or Valkey is"
    )
    prefix: str = _setting("presence", forms.prefix, "what every key begins with")
    store: tuple[tuple[str, str], ...] = _setting(
        "sorted-set",
        forms.store,
        "`sorted-set`, `minute-sets` or `hyperloglog`, or by kind: `user=sorted-set, "
        "guest=hyperloglog`",
    )
    window: float = _setting("10m", values.duration, "how long after a request one is online")
    retention: float = _setting(
        "30d", values.duration, "how long after that a last-seen time is kept (not of guests)"
    )
    identity: tuple[Rule, ...] = _setting(
        "user=auth, guest=visitor", parse_chain, "who is asking: a chain of `kind=source`"
    )
    secret: str = _setting(
        "", forms.secret, "the key of hashed ids, 16 characters or more", secret=True
    )
    session_secret: tuple[str, ...] = _setting(
        "",
        forms.session_secret,
        "with what the site's framework signs sessions or tokens; also several of 16 characters "
        "or more, with commas between",
        secret=True,
    )
    bots: str = _setting(
        "count",
        forms.bots,
        "`count` crawlers as a kind of their own, `skip` them, or `off`: as guests",
    )
    exclude: tuple[str, ...] = _setting(
        ", ".join(forms.NO_VISITS),
        forms.exclude,
        "paths that keep nobody online, such as those a page polls; `*` is anything, `+/poll` "
        "adds to these, `none` is no path",
    )
    logout: tuple[str, ...] = _setting(
        "",
        values.paths,
        "paths that log out, such as `/logout, /accounts/logout`: whoever asks for one is offline "
        "once it is answered with a status below 400; `*` is anything",
    )
    trusted_proxies: Proxies = _setting(
        "", parse_proxies, "the proxies in front: how many (`1`), or networks: `10.0.0.0/8, unix`"
    )
    ip_prefix: Bits = _setting(
        "/32, /128", parse_prefix, "how much of an IPv4, IPv6 address is looked at: `/24, /56`"
    )
    flush_interval: float = _setting(
        "1s", values.duration, "how often a busy process writes; a third of the window at most"
    )
    max_pending: int = _setting(
        "100000", values.whole, "how many identities a process holds while Redis is away"
    )
    max_members: int = _setting(
        "1000000", values.whole, "how many ids of a kind Redis holds; new ones past it are refused"
    )
    shards: int = _setting(
        "1", forms.shards, "over how many keys a kind is spread, on a Cluster or for many millions"
    )
    history: float = _setting(
        "7d", values.duration, "how long the number online is kept for each minute"
    )
    board_path: str = _setting(
        "", forms.board_path, "where the board is, such as `/presence`; empty is nowhere"
    )
    board_token: str = _setting(
        "",
        forms.board_token,
        "what the board asks for before it names anybody, 16 characters or more",
        secret=True,
    )
    app: str = _setting(
        "",
        forms.application,
        "`module:app` or `module:create_app()` for `presence_middleware.wsgi_app:application`, "
        "`.asgi_app:…`",
    )

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        ini: Mapping[str, str] | None = None,
        /,
        **overrides: Any,
    ) -> "Settings":
        """Settings from overrides, then `PRESENCE_*` in `environ` (the process's), then `ini`.

        Raises `SettingsError` with everything that is wrong.
        """
        environ = os.environ if environ is None else environ
        _warn_of_unknown(environ)
        if unknown := [*_unknown("argument", overrides), *_unknown("ini setting", ini or {})]:
            raise SettingsError(unknown)
        variables = {setting.name: environ.get(variable(setting.name)) for setting in fields(cls)}
        given = {name: value for name, value in variables.items() if value}  # empty is unset
        return cls(**{**(ini or {}), **given, **overrides})

    def __post_init__(self) -> None:
        """Parses what was given as text, and refuses all that is wrong at once."""
        problems = [problem for setting in fields(self) for problem in self._parse(setting)]
        if problems := problems or list(self._contradictions()):
            raise SettingsError(problems)

    def _parse(self, setting: Field[Any]) -> Iterator[str]:
        value = getattr(self, setting.name)
        try:
            object.__setattr__(self, setting.name, setting.metadata["parse"](value))
        except values.InvalidValue as error:
            yield f"{variable(setting.name)}={_shown(setting, value)}: {error}"
        except ValueError as error:
            yield f"{variable(setting.name)}={_shown(setting, value)}: wants {error}"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of this site; the first is the one that questions are about."""
        return kinds(self.identity, self.bots)

    def store_of(self, kind: str) -> str:
        """The name of the store that keeps a kind."""
        stores = dict(self.store)
        return stores.get(kind, stores["*"])

    def keep(self, kind: str) -> float:
        """Return for how many seconds after its last sighting a kind can be asked for.

        Nobody asks when a guest was last seen: a kind of which clients make up the ids is kept for
        the window alone, and so are crawlers.
        """
        types = [rule.type for rule in self.identity if rule.kind == kind]
        is_passing = kind == BOT or all(type.client_supplied for type in types)
        if is_passing or self.store_of(kind) != "sorted-set":
            return self.window
        return self.window + self.retention

    def shared(self) -> dict[str, str]:
        """Return the settings that all processes of a site must have alike, without secrets."""
        stores = {f"PRESENCE_STORE {kind}": self.store_of(kind) for kind in self.kinds}
        fingerprint = blake2b(self.secret.encode(), digest_size=4).hexdigest()
        return {
            "PRESENCE_WINDOW": values.format_duration(self.window),
            "PRESENCE_RETENTION": values.format_duration(self.retention),
            "PRESENCE_SECRET": f"#{fingerprint}" if self.secret else "",
            **stores,
        }

    def _contradictions(self) -> Iterator[str]:
        if self.flush_interval > self.window / 3:
            interval = values.format_duration(self.flush_interval)
            longest = values.format_duration(self.window / 3)
            yield (
                f"PRESENCE_FLUSH_INTERVAL={interval}: at most a third of "
                f"PRESENCE_WINDOW ({longest}), or people flicker between two writes"
            )
        for kind, _ in self.store:
            if kind not in ("*", BOT, *self.kinds):
                chain = ", ".join(self.kinds)
                yield f"PRESENCE_STORE: no kind {kind!r} in PRESENCE_IDENTITY ({chain})"
        for rule in self.identity:
            for problem in self._needs_of(rule):
                yield f"PRESENCE_IDENTITY: {rule} {problem}"

    def _needs_of(self, rule: Rule) -> Iterator[str]:
        source = rule.type
        if rule.hashed and not source.shared_key and not self.secret:
            yield f"is hashed and needs a secret: {forms.fresh_secret()}"
        if source.signed and not self.session_secret:
            yield "needs PRESENCE_SESSION_SECRET: the secret with which the framework signs"
        if source.module and find_spec(source.module) is None:
            yield f"needs pip install 'presence_middleware[{source.extra}]'"
        if rule.source == "bearer" and self.session_secret:
            yield from self._short_token_secret()

    def _short_token_secret(self) -> Iterator[str]:
        if not any(map(can_verify_tokens, self.session_secret)):
            longest = max(len(secret.encode()) for secret in self.session_secret)
            yield (
                f"needs a PRESENCE_SESSION_SECRET of at least {TOKEN_SECRET_BYTES} bytes, not "
                f"{longest}: sign tokens with a longer one, such as that of "
                "`python -c 'import secrets; print(secrets.token_urlsafe(32))'`, or set the "
                "public key (PEM) if they are signed with a private key"
            )


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def _shown(setting: Field[Any], value: object) -> str:
    if not setting.repr:
        return "***"
    return hide_credentials(str(value)) if setting.name == "redis_url" else repr(value)


def _unknown(what: str, given: Mapping[str, Any]) -> Iterator[str]:
    known = [setting.name for setting in fields(Settings)]
    for name in given:
        if name not in known:
            yield f"no {what} {name!r}{_nearest(name, known)}"


def _warn_of_unknown(environ: Mapping[str, str]) -> None:
    known = [variable(setting.name) for setting in fields(Settings)]
    for name in environ:
        if name.startswith(PREFIX) and name not in known:
            log.warning("no setting is called %s%s", name, _nearest(name, known))


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1, 0)
    return f"; the nearest is {near[0]}" if near else ""
