"""The settings of a site: their variables, parsers and defaults."""

import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import InitVar, dataclass, field, fields
from functools import cached_property
from hashlib import blake2b
from importlib.util import find_spec
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import logs, parsers
from .connections.url import DEFAULT_URL, RedisURL, hide_credentials, parse_url
from .errors import SettingsError
from .identity.addresses import Bits, Proxies, parse_prefix, parse_proxies
from .identity.bots import BOT, parse_mode
from .identity.rules import Rule, kinds, login_kinds, parse_chain
from .identity.sessions import TOKEN_SECRET_BYTES
from .stores import STORES

PREFIX = "PRESENCE_"
REFRESH_SECONDS = 60.0
LAG_SECONDS = 3.0
MOST_BY_MINUTE = 366 * parsers.DAY  # a server cannot count more minutes before its timeout

T = TypeVar("T")
if TYPE_CHECKING:

    class Setting(Generic[T]):
        """A setting, which is given as text or as its value."""

        def __get__(self, settings: object, owner: object) -> T: ...
        def __set__(self, settings: object, value: T | str) -> None: ...
else:
    Setting = T | str


def _setting(parse: Callable[[object], Any], default: str = "", *, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"parse": parse})


def _stores(value: object) -> tuple[tuple[str, str], ...]:
    """Return the store of each kind that is named, and of `*`, which is every other kind."""
    parts = [part.rpartition("=")[::2] for part in parsers.items(value)]
    given = {(kind.strip() or "*"): store.strip() for kind, store in parts}
    if not parts or len(given) < len(parts) or not set(given.values()) <= STORES.keys():
        raise ValueError(
            f"one of {', '.join(STORES)}; or by kind: user=sorted-set, guest=hyperloglog"
        )
    return tuple({"*": "sorted-set", BOT: "hyperloglog", **given}.items())


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a site, immutable. Equal settings share a recorder in a process.

    Every setting is a keyword argument: text as in the environment, or the parsed value. Durations
    are seconds. `names` maps settings to their names in error messages, by default their variables.

    Raises `SettingsError` with all invalid settings.
    """

    redis_url: Setting[RedisURL] = _setting(parse_url, DEFAULT_URL)
    """URL of Redis or Valkey."""
    identity: Setting[tuple[Rule, ...]] = _setting(parse_chain, "user=auth, guest=visitor")
    """How visitors are identified: `kind=source`, …"""
    session_secret: Setting[tuple[str, ...]] = _setting(parsers.session_secret, secret=True)
    """Secret of the framework's sessions or tokens, or public key of tokens; several of at least
    16 characters may be separated by commas.
    """
    window: Setting[float] = _setting(parsers.duration, "10m")
    """How long a user is online after their last request."""
    trusted_proxies: Setting[Proxies] = _setting(parse_proxies)
    """Proxies in front: how many (`1`), or networks: `10.0.0.0/8, unix`."""
    enabled: Setting[bool] = _setting(parsers.switch, "1")
    """`0` records no visits; readers still answer."""
    prefix: Setting[str] = _setting(parsers.prefix, "presence")
    """Prefix of every key; sites that share a Redis need one each."""
    store: Setting[tuple[tuple[str, str], ...]] = _setting(_stores, "sorted-set")
    """`sorted-set`, `minute-sets` or `hyperloglog`, or by kind: `user=sorted-set,
    guest=hyperloglog`.
    """
    retention: Setting[float] = _setting(parsers.duration, "30d")
    """How long after that the last-seen time is kept (not of guests)."""
    secret: Setting[str] = _setting(parsers.secret, secret=True)
    """Key for hashing ids, at least 16 characters."""
    bots: Setting[str] = _setting(parse_mode, "count")
    """`count` crawlers as a kind of their own, `skip` them, or `off`: count them as guests."""
    exclude: Setting[tuple[str, ...]] = _setting(
        parsers.exclude, ", ".join(parsers.DEFAULT_EXCLUDE)
    )
    """Paths that are not visits, such as those a page polls; `*` matches anything, `+/poll`
    adds to the default, `*, !/app/*` excludes all but `/app/*`, `none` excludes no path.
    """
    logout: Setting[tuple[str, ...]] = _setting(parsers.paths)
    """Paths that log out, such as `/logout, /accounts/logout`: their user is offline once they
    answer with a status below 400; `*` matches anything.
    """
    ip_prefix: Setting[Bits] = _setting(parse_prefix, "/32, /128")
    """Bits of an IPv4, IPv6 address that are used: `/24, /56`."""
    flush_interval: Setting[float] = _setting(parsers.duration, "1s")
    """How often a busy process writes; at most a third of the window."""
    max_pending: Setting[int] = _setting(parsers.whole, "100000")
    """How many identities a process holds until it writes them, such as while Redis is down."""
    max_members: Setting[int] = _setting(parsers.whole, "1000000")
    """How many ids of a kind Redis holds; more are refused."""
    shards: Setting[int] = _setting(parsers.shards, "1")
    """How many keys each kind is spread over, on a Cluster or for millions."""
    history: Setting[float] = _setting(parsers.duration, "7d")
    """How long the number online in each minute is kept."""
    rooms: Setting[tuple[str, ...]] = _setting(parsers.rooms)
    """Paths that are rooms, such as `/t/{topic}/*, /docs/*`: `{name}` is a segment and part of
    the room's name, `*` at the end is anything below; `named` for only those that the site
    names with `enter`; empty for no rooms.
    """
    pulse_path: Setting[str] = _setting(parsers.path)
    """Path of the pulse, such as `/pulse`: pages with the script `/pulse.js` keep their reader
    online; empty for no pulse.
    """
    events: Setting[tuple[str, ...]] = _setting(parsers.names)
    """Kinds that announce who comes online and who goes offline, such as `user`, for
    `presence.events()`; empty for none.
    """
    board_path: Setting[str] = _setting(parsers.path)
    """Path of the board, such as `/presence`; empty for no board."""
    board_token: Setting[str] = _setting(parsers.board_token, secret=True)
    """Token that the board requires before it lists people, at least 16 characters."""
    app: Setting[str] = _setting(parsers.application)
    """`module:app` or `module:create_app()` for `presence_middleware.wsgi_app:application`,
    `.asgi_app:…`.
    """
    names: InitVar[Mapping[str, str] | None] = None

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        ini: Mapping[str, str] | None = None,
        where: str = "ini",
        /,
        **overrides: Any,
    ) -> "Settings":
        """Return settings from overrides, then `PRESENCE_*` variables, then a Paste ini file.

        `environ` is by default the environment of the process; an empty variable counts as unset.
        `ini` has settings without the prefix, such as `{"window": "15m"}`, and `where` is the file
        and section for error messages. `overrides` are settings as keyword arguments.

        Raises `SettingsError` with all invalid settings and all unknown names of `ini` and
        `overrides`. An unknown `PRESENCE_*` variable is only logged.
        """
        environ = os.environ if environ is None else environ
        if not isinstance(environ, Mapping):
            raise SettingsError("pass settings by their names: Settings.from_env(redis_url=…)")
        ini = ini or {}
        known = {setting.name: variable(setting.name) for setting in fields(cls)}
        for name in environ:
            if name.startswith(PREFIX) and name not in known.values():
                hint = _hint(name.removeprefix(PREFIX).lower(), variable)
                logs.warn("unknown variable %s%s", name, hint)
        problems = [
            f"{place}{name}: unknown setting{_hint(name)}"
            for place, names in (("", overrides), (f"{where} ", ini))
            for name in names
            if name not in known
        ]
        given = {name: value for name, key in known.items() if (value := environ.get(key))}
        values = {**ini, **given, **overrides}
        try:
            settings = cls(
                **{name: values[name] for name in known if name in values},
                names={name: f"{where} {name}" for name in ini.keys() - {**given, **overrides}},
            )
        except SettingsError as error:
            problems += error.problems
        if problems:
            raise SettingsError(problems)
        return settings

    def __post_init__(self, names: Mapping[str, str] | None) -> None:
        called = {each.name: variable(each.name) for each in fields(self)} | dict(names or {})
        problems = []
        for setting in fields(self):
            value = getattr(self, setting.name)
            try:
                object.__setattr__(self, setting.name, setting.metadata["parse"](value))
            except ValueError as error:
                form = error if isinstance(error, parsers.InvalidValue) else f"expected {error}"
                shown = repr(value) if setting.repr else "***"
                if setting.name == "redis_url":
                    shown = hide_credentials(str(value))
                problems.append(f"{called[setting.name]}={shown}: {form}")
        if problems := problems or list(_contradictions(self, called)):
            raise SettingsError(problems)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of this site. The first is the default of every query."""
        return kinds(self.identity, self.bots)

    @property
    def public_kinds(self) -> tuple[str, ...]:
        """The kinds whose numbers the board shows without a token.

        They are the first kind and those that a rule other than `identify` fills.
        """
        filled = {rule.kind for rule in self.identity if not rule.type.reads_nothing}
        return tuple(kind for kind in self.kinds if kind in {self.kinds[0], BOT, *filled})

    def store_of(self, kind: str) -> str:
        """Return the name of the store of `kind`, such as `sorted-set`."""
        stores = dict(self.store)
        return stores.get(kind, stores["*"])

    def keep_seconds(self, kind: str) -> float:
        """Return for how many seconds after its last sighting an id of `kind` is stored.

        Crawlers, and kinds with ids that clients choose, are stored for the window alone: their
        last-seen times are of no use.
        """
        is_kept = kind != BOT and kind in login_kinds(self.identity)
        is_kept = is_kept and self.store_of(kind) == "sorted-set"
        return self.window + self.retention if is_kept else self.window

    @property
    def refresh_seconds(self) -> float:
        """How often an open connection or page says that its user is still there."""
        return min(REFRESH_SECONDS, self.window / 3)

    @property
    def grace_seconds(self) -> float:
        """For how long a user stays online after a goodbye: until another page has said so."""
        return 1.25 * self.refresh_seconds

    def is_swept(self, kind: str) -> bool:
        """Return whether the ids of `kind` may be in rooms, say goodbye, or are announced."""
        is_on = bool(self.rooms or self.pulse_path) or kind in self.events
        return is_on and self.store_of(kind) == "sorted-set"

    def lag_seconds(self, kind: str) -> float | None:
        """Return how long after its window an id of `kind` is announced to have gone.

        Until then, a late write may show that it is still there. None if it is not announced.
        """
        return 2 * self.flush_interval + LAG_SECONDS if kind in self.events else None

    @cached_property
    def kinds_with_rooms(self) -> tuple[str, ...]:
        """The kinds whose ids may be in rooms."""
        return tuple(kind for kind in self.kinds if self.rooms and self.is_swept(kind))

    def shared(self) -> dict[str, str]:
        """Return the settings that must be equal in all processes of a site, without secrets."""
        # An empty value is published, too: a process without it must differ from one with it.
        fingerprint = blake2b(self.secret.encode(), digest_size=4).hexdigest()
        return {
            "PRESENCE_WINDOW": parsers.format_duration(self.window),
            "PRESENCE_RETENTION": parsers.format_duration(self.retention),
            "PRESENCE_SECRET": f"#{fingerprint}" if self.secret else "",
            "PRESENCE_EVENTS": ", ".join(sorted(self.events)),
            "PRESENCE_ROOMS": ", ".join(self.rooms),
            "PRESENCE_PULSE_PATH": self.pulse_path,
            "the list of kinds (PRESENCE_IDENTITY, PRESENCE_BOTS)": ", ".join(sorted(self.kinds)),
            **{f"PRESENCE_STORE {kind}": self.store_of(kind) for kind in self.kinds},
        }


def _contradictions(settings: Settings, called: Mapping[str, str]) -> Iterator[str]:
    """Yield a problem for each setting that is at odds with another."""
    if settings.flush_interval > settings.window / 3:
        interval = parsers.format_duration(settings.flush_interval)
        # Rounded down, so that it is accepted.
        longest = parsers.format_duration(settings.window * 1000 // 3 / 1000)
        yield (
            f"{called['flush_interval']}={interval}: expected at most a third of "
            f"{called['window']} ({longest}), or users flicker between two writes"
        )
    by_minute = [kind for kind in settings.kinds if settings.store_of(kind) != "sorted-set"]
    if by_minute and settings.window > MOST_BY_MINUTE:
        yield (
            f"{called['window']}={parsers.format_duration(settings.window)}: expected at most "
            f"{parsers.format_duration(MOST_BY_MINUTE)} for a store with a key for each minute; or "
            f"set {called['store']} to {', '.join(f'{kind}=sorted-set' for kind in by_minute)}"
        )
    if settings.pulse_path and settings.pulse_path == settings.board_path:
        yield (
            f"{called['pulse_path']}={settings.pulse_path}: that is the path of "
            f"{called['board_path']}; choose another, such as /pulse"
        )
    named = [("store", kind) for kind, _ in settings.store if kind not in ("*", BOT)]
    for name, kind in [*named, *(("events", kind) for kind in settings.events)]:
        if kind not in settings.kinds:
            yield (
                f"{called[name]}: unknown kind {kind!r}; the kinds of "
                f"{called['identity']} are {', '.join(settings.kinds)}"
            )
        elif name == "events" and (store := settings.store_of(kind)) != "sorted-set":
            yield (
                f"{called['events']}: kind {kind!r} has the store {store}, but "
                f"events need sorted-set: set it in {called['store']}, or leave the kind out"
            )
    if settings.rooms and not settings.kinds_with_rooms:
        yield (
            f"{called['rooms']}: rooms need the store sorted-set, which no kind has; see "
            f"{called['store']}"
        )
    secret_name, secrets = called["session_secret"], settings.session_secret
    length = max((len(secret.encode()) for secret in secrets), default=TOKEN_SECRET_BYTES)
    for rule in settings.identity:
        source, subject = rule.type, f"{called['identity']}: {rule}"
        if rule.hashed and not source.shared_key and not settings.secret:
            yield f"{subject} is hashed and needs a secret: PRESENCE_SECRET={token_urlsafe(32)}"
        if source.signed and not rule.secrets_among(secrets):
            yield (
                f"{subject} needs {secret_name}: set it to the secret with which the framework "
                "signs"
            )
        if source.signed and find_spec(source.signed) is None:
            yield f"{subject} needs pip install 'presence_middleware[{source.extra}]'"
        if rule.source == "bearer" and length < TOKEN_SECRET_BYTES:
            yield (
                f"{subject} needs a {secret_name} of at least {TOKEN_SECRET_BYTES} bytes, not "
                f"{length}: sign tokens with a longer secret, such as that of "
                "`python -c 'import secrets; print(secrets.token_urlsafe(32))'`, or set the "
                "public key (PEM) if they are signed with a private key"
            )


def settings_or_env(settings: Settings | None) -> Settings:
    """Return `settings`, or those of the environment if they are None.

    Raises `SettingsError` if `settings` is something else, such as a URL.
    """
    if settings is None:
        return Settings.from_env()
    if not isinstance(settings, Settings):
        raise SettingsError(
            f"settings is a {type(settings).__name__}: pass Settings.from_env(redis_url=…), or "
            "nothing for the settings of the environment"
        )
    return settings


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + name.upper()


def _hint(name: str, show: Callable[[str], str] = str) -> str:
    """Return a question whether the setting with the nearest name was meant, if there is one."""
    near = difflib.get_close_matches(name, [setting.name for setting in fields(Settings)], 1)
    return f"; did you mean {show(near[0])}?" if near else ""
