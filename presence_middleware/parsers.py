"""Parsers for the values of settings: durations, switches, lists, secrets, app references.

Every parser takes text or a value that is already parsed, and returns the parsed value. For
anything else it raises `ValueError` with the accepted form, worded to follow "must be". This module
imports nothing of the package, so that every other module may use it.
"""

import ast
import math
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from secrets import token_urlsafe
from typing import Any

DEFAULT_EXCLUDE = (
    *("/favicon.ico", "/robots.txt", "/health", "/healthz", "/livez", "/readyz", "/ping"),
    *("/metrics", "/__heartbeat__", "/__lbheartbeat__"),
)
"""Paths that browsers and monitors request by themselves."""
MIN_SECRET_LENGTH = 16  # characters
MAX_SHARDS = 1024
DAY = 24 * 3600  # seconds
MAX_SECONDS = 10 * 366 * DAY

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": DAY}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)\s*")
_DURATION = re.compile(r"\d+(\.\d+)?|(\d+(\.\d+)?\s*[smhd]\s*)+")
_YES = {"1", "true", "yes", "on"}
_NO = {"0", "false", "no", "off"}
_SESSION_SECRETS = (
    "secrets with commas between, or whole public keys (PEM), no private key; in UTF-8"
)
NAMED_ROOMS = "named"
"""The value of `PRESENCE_ROOMS` for rooms that no path shows."""
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_APPLICATION = (
    "package.module (its `application`), package.module:app or package.module:create_app(), "
    "with literals as arguments if any"
)
# In base64: RSA and P-521, and shorter keys, by their first bytes: 30 . 30 . 06. Lines may end
# with `\n`, or with the blank of a YAML that folds them.
_KEY_WITHOUT_LINES = r"MI[A-Za-z0-9+/\s\\]{70}|M..w(?:BQYD|E[Aw]YH)|---- BEGIN|ssh-|ecdsa-|\{"
_NO_TEXT = r"[\ud800-\udfff]"  # bytes of the environment that are no UTF-8
_NO_PUBLIC_KEY = r"-----BEGIN(?! (?:\w+ )?PUBLIC KEY-----.*-----END)"
_NO_SECRET = re.compile(
    rf"\s*(?:{_KEY_WITHOUT_LINES}|$)|.*(?:{_NO_TEXT}|{_NO_PUBLIC_KEY})", re.DOTALL
).match


class InvalidValue(ValueError):
    """A value that a setting refuses. Its text contains the problem and the remedy.

    The text of any other `ValueError` of a parser is only the accepted form.
    """


def duration(value: object) -> float:
    """Return a duration in seconds.

    `value` is text such as `"90s"`, `"10m"`, `"1h 30m"` or `"30d"`, a number of seconds, or a
    timedelta. Zero, negative durations and those above ten years are refused.
    """
    number = value.total_seconds() if isinstance(value, timedelta) else value
    text = str(number).strip().lower()
    parts = _PART.findall(text) if _DURATION.fullmatch(text) else []
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not 0 < seconds <= MAX_SECONDS:
        raise ValueError("a duration above zero and below ten years, such as 90s, 10m, 24h or 30d")
    return seconds


def format_duration(seconds: float) -> str:
    """Return a duration in seconds as text that `duration` parses: 600 is `10m`, 3660 `1h 1m`."""
    parts = []
    for unit in ("d", "h", "m"):
        count, seconds = divmod(seconds, _UNITS[unit])
        parts += [f"{count:g}{unit}"] if count else []
    return " ".join([*parts, f"{seconds:g}s"] if seconds or not parts else parts)


def switch(value: object) -> bool:
    """Return True for `1`, `true`, `yes` and `on`, False for `0`, `false`, `no` and `off`."""
    word = str(value).strip().lower()
    if word not in _YES | _NO:
        raise ValueError("1 or 0 (also true, yes, on; false, no, off)")
    return word in _YES


def _number(value: object, most: float, form: str) -> int:
    """Return a whole number from 1 to `most`; `_` may group its digits."""
    digits = str(value).strip().replace("_", "")
    if not (digits.isascii() and digits.isdigit() and 1 <= int(digits) <= most):
        raise ValueError(form)
    return int(digits)


whole = partial(_number, most=math.inf, form="a whole number of at least 1, such as 100000")
shards = partial(_number, most=MAX_SHARDS, form=f"a whole number from 1 to {MAX_SHARDS}")


def text_of(value: Any) -> str:
    """Return text from which a parser makes an equal value. That of most values is their `str`."""
    if type(value) in (tuple, list):
        return ", ".join("=".join(x) if isinstance(x, tuple) else str(x) for x in value)
    return str(int(value) if isinstance(value, bool) else value)


def items(value: object) -> list[str]:
    """Return the items of a comma-separated list, without blanks around them or empty items."""
    return [part for part in map(str.strip, text_of(value).split(",")) if part]


def matching(pattern: str, form: str) -> Callable[[object], str]:
    """Return a parser of the group that `pattern` has. In `form`, braces stand for a secret."""
    match = re.compile(pattern, re.ASCII | re.DOTALL).fullmatch

    def parse(value: object) -> str:
        # The `str` of these is another text, with which the secret of no other process agrees.
        found = None if isinstance(value, bytes | None) else match(str(value).strip())
        if not found:
            raise ValueError(form.format(token_urlsafe(32)))
        return found[1] or ""

    return parse


# It has no braces, which would choose a Cluster's slot.
prefix = matching(r"([\w.:/-]{1,64})", "1 to 64 letters, digits and . : / _ -")
path = matching(r"((?:/(?!\.{1,2}(?:/|$))[\w.~-]{1,64})+)/*|", "a path such as /pulse, /presence")
secret = matching(
    rf"(?!.*{_NO_TEXT})(.{{{MIN_SECRET_LENGTH},}})?",
    f"at least {MIN_SECRET_LENGTH} characters, such as PRESENCE_SECRET={{}}",
)
# Browsers and `curl` send it unchanged.
board_token = matching(
    rf"([!-~]{{{MIN_SECRET_LENGTH},}})?",
    f"at least {MIN_SECRET_LENGTH} letters, digits or marks, such as PRESENCE_BOARD_TOKEN={{}}",
)


def listed(
    pattern: str, form: str, **words: tuple[str, ...]
) -> Callable[[object], tuple[str, ...]]:
    """Return a parser of a list of what matches `pattern`; one of `words` alone has its value."""
    match = re.compile(pattern, re.DOTALL).fullmatch

    def parse(value: object) -> tuple[str, ...]:
        given = items(value)
        if (known := words.get(", ".join(given))) is not None:
            return known
        if not all(map(match, given)):
            raise ValueError(form)
        return tuple(given)

    return parse


rooms = listed(
    # Not the <topic> or :topic of a framework, which no request would match.
    r"(?:/(?:(?!:)[^/{}<>*,\s]+|\{[a-z_]+\}))+(?:/\*?)?|/\*?",
    "paths such as /t/{topic}/*, /docs/*: {name} is a segment, * at the end; or named",
    named=(NAMED_ROOMS,),
)
# Nor the {topic} of rooms. A blank before a slash is a comma that is missing.
_PATH = r"[/*](?:(?!\s[\s+!]*[/*])[^{}<>])*"
paths = listed(_PATH, "paths such as /healthz, /static/*, /logout, or none", none=())
_EXCLUDE = (
    "paths such as /healthz, /static/*, with + before all of them or none; !/app/* after them "
    "admits what they exclude; or none"
)
_excluded = listed(rf"(!\s*)?{_PATH}", _EXCLUDE, none=())
_added = listed(rf"[+!]\s*{_PATH}", _EXCLUDE)
_names = listed(r"(?a:[A-Za-z][\w-]*)", "kinds such as user, or user, guest")


def names(value: object) -> tuple[str, ...]:
    """Return the names of kinds, each once."""
    return tuple(dict.fromkeys(_names(value)))


def exclude(value: object) -> tuple[str, ...]:
    """Return paths as `paths` does. Those that begin with `+` are added to `DEFAULT_EXCLUDE`.

    One that begins with `!` admits what those before it exclude.
    """
    adds = any(path.startswith("+") for path in items(value))
    given = _added(value) if adds else _excluded(value)
    if not adds and given and given[0].startswith("!"):
        raise ValueError(
            f"a path before {given[0]}, because ! admits only what a path before it excludes: "
            f"*, {given[0]} records no other paths"
        )
    excluded = [re.sub(r"^\+?(!?)\s*", r"\1", path) for path in given]
    return tuple(dict.fromkeys((*DEFAULT_EXCLUDE, *excluded)) if adds else excluded)


def session_secret(value: object) -> tuple[str, ...]:
    """Return every secret that the text may mean: one with commas in it, or several.

    The text is split only if all parts are as long as secrets are: a short part could be guessed.
    A public key (PEM) may have `\\n` for its line ends, as in an environment file.
    """
    if isinstance(value, (tuple, list)):
        texts = [_as_text(each) for each in value]
    else:
        text = _as_text(value).strip()
        several = items(text)
        if min(map(len, several), default=0) < MIN_SECRET_LENGTH:
            several = []
        texts = list(dict.fromkeys((text, *several))) if text else []
    # A public key in another format is no secret, and would be used as a shared secret.
    if any(map(_NO_SECRET, texts)):
        raise ValueError(_SESSION_SECRETS)
    return tuple(texts)


def is_public_key(secret: str) -> bool:
    """Return whether a session secret is a public key, which anybody may know."""
    return "-----BEGIN" in secret


def _as_text(value: object) -> str:
    if isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
        return text.replace("\\n", "\n") if is_public_key(text) else text
    raise ValueError(_SESSION_SECRETS)  # anybody could guess the text of None


def app_reference(text: str) -> tuple[str, str, bool, list[Any], dict[str, Any]]:
    """Parse `module`, `module:app` or `module:create_app('prod', debug=False)`, as gunicorn does.

    A module alone stands for its `application`. Arguments are literals: nothing is evaluated.
    Return the module, the name of the app in it (with dots if it is an attribute of something),
    whether it is called, and the arguments and keyword arguments of the call.
    """
    module, colon, rest = text.partition(":")
    try:
        expression = ast.parse(rest.strip() if colon else "application", mode="eval").body
        call = expression if isinstance(expression, ast.Call) else ast.Call(expression, [], [])
        arguments = list(map(ast.literal_eval, call.args))
        options = {item.arg or "": ast.literal_eval(item.value) for item in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ValueError(_APPLICATION) from error
    name = ast.unparse(call.func)
    # A `**` among the arguments is an option without a name.
    if not _DOTTED.fullmatch(module) or not _DOTTED.fullmatch(name) or "" in options:
        raise ValueError(_APPLICATION)
    return module, name, call is expression, arguments, options


def application(value: object) -> str:
    """Return the text of an app reference that `app_reference` accepts, or `""`."""
    text = str(value).strip()
    if text:
        app_reference(text)
    return text
