"""The forms of the settings that are not simply a duration, a number or a switch. Pure parsers.

Each raises `ValueError` with the accepted form as its text.
"""

import re
import secrets

from . import values
from .identity import BOT, BOT_MODES
from .stores import STORES

SHORTEST_SECRET = 16  # characters
MOST_SHARDS = 1024
_SESSION_SECRETS = "secrets with commas between, or whole public keys (PEM), no private"
_PATH = re.compile(r"(/(?!\.{1,2}(/|$))[\w.~-]{1,64})*", re.ASCII)
_TOKEN = re.compile(f"[!-~]{{{SHORTEST_SECRET},}}")
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


def application(value: object) -> str:
    """Where an app, or a function that makes it, is; or nothing."""
    text = str(value).strip()
    if text and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*(\(\))?", text):
        raise ValueError("package.module:app or package.module:create_app()")
    return text


def fresh_secret(variable: str = "PRESENCE_SECRET") -> str:
    """A line with a secret that a site may take as its own."""
    return f"{variable}={secrets.token_urlsafe(32)}"
