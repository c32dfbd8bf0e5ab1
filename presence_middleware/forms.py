"""The forms of the settings that are not simply a duration, a number or a switch. Pure parsers.

Each raises `ValueError` with the accepted form as its text.
"""

import ast
import re
import secrets
from typing import Any, NamedTuple

from . import values
from .identity import BOT, BOT_MODES
from .stores import STORES

NO_VISITS = (
    *("/favicon.ico", "/robots.txt", "/health", "/healthz", "/livez", "/readyz", "/ping"),
    *("/metrics", "/__heartbeat__", "/__lbheartbeat__"),
)
"""Paths that browsers and monitors ask for by themselves."""
SHORTEST_SECRET = 16  # characters
MOST_SHARDS = 1024
_SESSION_SECRETS = "secrets with commas between, or whole public keys (PEM), no private"
_PATH = re.compile(r"(/(?!\.{1,2}(/|$))[\w.~-]{1,64})*", re.ASCII)
_TOKEN = re.compile(f"[!-~]{{{SHORTEST_SECRET},}}")
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_APPLICATION = (
    "package.module (its `application`), package.module:app or package.module:create_app(), "
    "with literals as arguments if any"
)
_KEY_WITHOUT_LINES = re.compile(r"MI[A-Za-z0-9+/]{70}|ssh-|ecdsa-|\{")


def prefix(value: object) -> str:
    """What keys may begin with: no braces, which would name a slot of a Cluster."""
    text = str(value)
    if not re.fullmatch(r"[\w.:/-]{1,64}", text, re.ASCII):
        raise ValueError("1 to 64 letters, digits and . : / _ -")
    return text


def store(value: object) -> tuple[tuple[str, str], ...]:
    """Pairs of kind and store; the pair of kind `*` is for all others, bots apart."""
    if isinstance(value, tuple):
        value = ", ".join(f"{kind}={store}" for kind, store in value)
    names = ", ".join(STORES)
    parts = [part.rpartition("=")[::2] for part in values.items(str(value))]
    stores = {(kind.strip() or "*"): store.strip() for kind, store in parts}
    if not parts or len(stores) < len(parts) or not set(stores.values()) <= set(STORES):
        raise ValueError(f"{names}; or by kind: user=sorted-set, guest=hyperloglog")
    return tuple(({"*": "sorted-set", BOT: "hyperloglog"} | stores).items())


def secret(value: object) -> str:
    """A key for hashes that nobody guesses; or none."""
    text = str(value).strip()
    if text and len(text) < SHORTEST_SECRET:
        raise ValueError(f"at least {SHORTEST_SECRET} characters, such as {fresh_secret()}")
    return text


def session_secret(value: object) -> tuple[str, ...]:
    """All that it may mean: a secret with commas in it, or several.

    Several are as long as secrets are: a short piece of one could be guessed.
    """
    if isinstance(value, (tuple, list)):
        return tuple(map(_as_text, value))
    text = _as_text(value).strip()
    if "-----BEGIN" in text:
        text = text.replace("\\n", "\n")  # as an environment file writes the lines of a key
        if "-----END" not in text or "PRIVATE KEY" in text:
            raise ValueError(_SESSION_SECRETS)
    if _KEY_WITHOUT_LINES.match(text):  # which everybody has, and which would be taken as a secret
        raise ValueError(_SESSION_SECRETS)
    several = values.items(text)
    if min(map(len, several), default=0) < SHORTEST_SECRET:
        several = []
    return tuple(dict.fromkeys(filter(None, (text, *several))))


def _as_text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def exclude(value: object) -> tuple[str, ...]:
    """Parse the paths that are no visit. Those that begin with `+` come after the usual ones."""
    text = ", ".join(value) if isinstance(value, (tuple, list)) else str(value)
    given = values.items(text)
    added = [path[1:].lstrip() for path in given if path.startswith("+")]
    if not added:
        return values.paths(text)
    if len(added) < len(given) or not all(path.startswith(("/", "*")) for path in added):
        raise ValueError("paths such as /healthz, /static/*; +/poll only where all begin with +")
    return tuple(dict.fromkeys((*NO_VISITS, *added)))


def bots(value: object) -> str:
    """What is done with crawlers."""
    text = str(value).strip().lower()
    if text not in BOT_MODES:
        raise ValueError(", ".join(BOT_MODES))
    return text


def shards(value: object) -> int:
    """Over how many keys a kind is spread."""
    number = values.whole(value)
    if number > MOST_SHARDS:
        raise ValueError(f"a whole number from 1 to {MOST_SHARDS}")
    return number


def board_path(value: object) -> str:
    """Where the board is, below where the app is mounted; or nowhere."""
    text = str(value).strip().rstrip("/")
    if not _PATH.fullmatch(text) or (str(value).strip() and not text):
        raise ValueError("a path such as /presence")
    return text


def board_token(value: object) -> str:
    """What browsers and `curl` send unchanged; or none."""
    text = str(value).strip()
    if text and not _TOKEN.fullmatch(text):
        raise ValueError(
            f"at least {SHORTEST_SECRET} letters, digits or marks, such as "
            f"{fresh_secret('PRESENCE_BOARD_TOKEN')}"
        )
    return text


class AppReference(NamedTuple):
    """Where an app is, or the function that makes it."""

    module: str
    name: str
    """With dots if the app is an attribute of something in the module."""
    is_call: bool
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    """Keyword arguments."""


def app_reference(text: str) -> AppReference:
    """Parse `module`, `module:app` or `module:create_app('prod', debug=False)`, as gunicorn does.

    A module alone stands for its `application`. Arguments are literals: nothing is evaluated.

    Raises `ValueError` for anything else.
    """
    module, colon, rest = text.partition(":")
    try:
        expression = ast.parse(rest.strip() if colon else "application", mode="eval").body
        is_call = isinstance(expression, ast.Call)
        call = expression if isinstance(expression, ast.Call) else ast.Call(expression, [], [])
        arguments = tuple(ast.literal_eval(value) for value in call.args)
        options = {item.arg or "": ast.literal_eval(item.value) for item in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ValueError(_APPLICATION) from error
    name = ast.unparse(call.func)
    if not _DOTTED.fullmatch(module) or not _DOTTED.fullmatch(name) or "" in options:  # from `**`
        raise ValueError(_APPLICATION)
    return AppReference(module, name, is_call, arguments, options)


def application(value: object) -> str:
    """Check where an app is, as `app_reference` parses it, or nothing."""
    text = str(value).strip()
    if text:
        app_reference(text)
    return text


def fresh_secret(variable: str = "PRESENCE_SECRET") -> str:
    """A line with a secret that a site may take as its own."""
    return f"{variable}={secrets.token_urlsafe(32)}"
