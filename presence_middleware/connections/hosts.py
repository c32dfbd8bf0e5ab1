"""Addresses of several hosts, as those of Sentinels and Clusters are: where, and with what."""

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

_URL = re.compile(
    r"(?:(?P<user>[^/?@]*)@)?(?P<hosts>[^/?@]+)(?P<path>/[^?@]*)?(?:\?(?P<options>[^@]*))?"
)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:,]+)(?::(\d{1,5}))?")


@dataclass(frozen=True)
class Hosts:
    """What is behind `://`. Its passwords are not shown."""

    addresses: tuple[tuple[str, int], ...]
    path: str
    """What is behind the hosts, without the first slash."""
    options: dict[str, str | None] = field(repr=False)
    """`username`, `password` and those of the query, as text."""


def parse(rest: str, port: int) -> Hosts:
    """The hosts of `[user:password@]h1[:port],h2…[/path][?options]`. Raises `ValueError`."""
    match = _URL.fullmatch(rest)
    if not match:
        raise ValueError
    options: dict[str, str | None] = dict(parse_qsl(match["options"] or "", keep_blank_values=True))
    if match["user"]:
        username, _, password = match["user"].partition(":")
        options |= {"username": unquote(username) or None, "password": unquote(password) or None}
    addresses = tuple(_address(host.strip(), port) for host in match["hosts"].split(","))
    return Hosts(addresses, (match["path"] or "/")[1:], options)


def _address(text: str, port: int) -> tuple[str, int]:
    match = _HOST.fullmatch(text)
    if not match or not 0 < int(match[2] or port) < 65536:
        raise ValueError
    return match[1].strip("[]"), int(match[2] or port)


def typed(options: dict[str, str | None]) -> dict[str, Any]:
    """Options of a query as the library wants them: numbers, switches, text."""
    from redis import connection

    parsers: dict[str, Any] = connection.URL_QUERY_ARGUMENT_PARSERS
    return {name: parsers.get(name, _same)(value) for name, value in options.items()}


def _same(value: Any) -> Any:
    return value
