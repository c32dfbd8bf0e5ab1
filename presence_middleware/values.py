"""The forms in which a site writes values: durations, switches, lists. Pure parsers.

Each raises `ValueError` with the accepted form as its text.
"""

import re
from datetime import timedelta

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)\s*")
_DURATION = re.compile(r"\d+(\.\d+)?|(\d+(\.\d+)?\s*[smhd]\s*)+")
_YES = {"1", "true", "yes", "on"}
_NO = {"0", "false", "no", "off"}
_LONGEST = 10 * 366 * 86400


class InvalidValue(ValueError):
    """A value that a setting refuses. Its text says what is wrong with it and what to do.

    The text of any other `ValueError` of a parser is only the accepted form.
    """


def duration(value: object) -> float:
    """A duration in seconds, from `"90s"`, `"10m"`, `"1h 30m"`, `"30d"`, seconds or a timedelta."""
    seconds = _seconds(value)
    if not 0 < seconds <= _LONGEST:
        raise ValueError("a duration above zero, such as 90s, 10m, 24h or 30d")
    return seconds


def _seconds(value: object) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    text = value.strip().lower() if isinstance(value, str) else ""
    parts = _PART.findall(text) if _DURATION.fullmatch(text) else []
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def format_duration(seconds: float) -> str:
    """Return a duration as a site would write it: 600 is `10m`, 3660 is `1h 1m`."""
    parts = []
    for unit in ("d", "h", "m"):
        count, seconds = divmod(seconds, _UNITS[unit])
        parts += [f"{count:g}{unit}"] if count else []
    return " ".join([*parts, f"{seconds:g}s"] if seconds or not parts else parts)


def switch(value: object) -> bool:
    """True or False, from `1`, `true`, `yes`, `on` and their opposites."""
    word = str(value).strip().lower()
    if word not in _YES | _NO:
        raise ValueError("1 or 0 (also true, yes, on; false, no, off)")
    return word in _YES


def whole(value: object) -> int:
    """A whole number of at least 1."""
    digits = str(value).strip().replace("_", "")
    if isinstance(value, bool) or not (digits.isascii() and digits.isdigit()) or int(digits) < 1:
        raise ValueError("a whole number of at least 1, such as 100000")
    return int(digits)


def items(value: str) -> list[str]:
    """The parts of a comma-separated list, without blanks."""
    return [part for part in map(str.strip, value.split(",")) if part]


def paths(value: object) -> tuple[str, ...]:
    """Paths of a site, in which `*` stands for anything; none for the word `none`."""
    found = tuple(value) if isinstance(value, (tuple, list)) else tuple(items(str(value)))
    if found == ("none",):
        return ()
    if not all(path.startswith(("/", "*")) for path in found):
        raise ValueError("paths such as /healthz, /static/*, or none")
    return found
