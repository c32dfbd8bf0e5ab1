"""`PRESENCE_IDENTITY`: a chain of `kind=source[:argument][:raw|:hashed]`, parsed and checked."""

import re
from dataclasses import dataclass

from ..errors import QueryError
from ..parsers import items
from .bots import COUNT, OFF
from .bots import KIND as BOT
from .reading import token
from .sources import CREDENTIAL_HEADERS, FUNCTION, SOURCES, SourceType

FORM = (
    "a chain of kind=source[:argument][:raw|:hashed], such as user=auth, guest=visitor; sources: "
    + ", ".join(source.written(name) for name, source in SOURCES.items())
    + ", package.module:callable"
)
KIND = re.compile(r"[a-z][a-z0-9_]*")
_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True)
class Rule:
    """One rule of the chain: which kind it finds, and how."""

    kind: str
    source: str
    argument: str
    hashed: bool

    @property
    def type(self) -> SourceType:
        return SOURCES.get(self.source, FUNCTION)

    def __str__(self) -> str:
        argument = f":{self.argument}" if self.argument else ""
        return f"{self.kind}={self.source}{argument}:{'hashed' if self.hashed else 'raw'}"


Chain = tuple[Rule, ...]


def parse_chain(value: object) -> Chain:
    """Return the rules of a chain. Raises `ValueError` with the accepted form and what is wrong."""
    if isinstance(value, tuple):
        value = ", ".join(map(str, value))
    chain, problems = [], []
    for item in items(str(value)):
        try:
            chain.append(_rule(item))
        except ValueError as error:
            problems.append(str(error))
    if problems or not chain:
        raise ValueError(f"{FORM} ({'; '.join(problems) or 'it is empty'})")
    return tuple(chain)


def kinds(chain: Chain, bots: str = OFF) -> tuple[str, ...]:
    """The kinds of a chain, each once, in order; bots last, where they are counted."""
    counted = (BOT,) if bots == COUNT else ()
    return tuple(dict.fromkeys((*(rule.kind for rule in chain), *counted)))


def known_kind(kind: str, known: tuple[str, ...]) -> str:
    """The kind, if the site has it. Raises `QueryError` with those that it has."""
    if kind not in known:
        raise QueryError(f"no kind {kind!r} here: PRESENCE_IDENTITY has {', '.join(known)}")
    return kind


def _rule(item: str) -> Rule:
    kind, mark, source = map(str.strip, item.partition("="))
    if not mark or not KIND.fullmatch(kind):
        raise ValueError(f"{item!r} does not begin with kind=")
    spec, form = _form(source)
    name, _, argument = spec.partition(":")
    if name in SOURCES:
        return _known(kind, name, argument, form)
    if (meant := name.replace("_", "-")) in SOURCES:
        raise ValueError(f"{name} is no source; {meant} is")
    if _CALLABLE.fullmatch(spec):
        return Rule(kind, spec, "", form == "hashed")
    raise ValueError(f"{spec!r} is no source")


def _form(source: str) -> tuple[str, str]:
    """A source without its `:raw` or `:hashed`, and that word."""
    spec, _, form = source.rpartition(":")
    return (spec, form) if spec and form in {"raw", "hashed"} else (source, "")


def _known(kind: str, name: str, argument: str, form: str) -> Rule:
    source = SOURCES[name]
    if bool(argument) != bool(source.argument) and not source.argument.startswith("["):
        raise ValueError(f"{name} takes {source.argument or 'no argument'}")
    hashed = form == "hashed" or (source.hashed and form != "raw")
    is_credential = name == "django-session" or _header_name(name, argument) in CREDENTIAL_HEADERS
    if is_credential and not hashed:
        raise ValueError(f"{source.written(name)} is a credential: it must be hashed")
    _check_name(source.argument, argument)
    return Rule(kind, name, argument, hashed)


def _check_name(form: str, argument: str) -> None:
    """Refuses the name of a header or cookie that can be none."""
    if "@" in form:
        _, at, name = argument.partition("@")
        if at:
            token(name)
    elif argument and form in {"NAME", "[COOKIE]"}:
        token(argument)


def _header_name(source: str, argument: str) -> str:
    """The header that a source reads, also by its name in the environ."""
    name = argument.lower()
    if source == "environ":
        return name.removeprefix("http_").replace("_", "-") if name.startswith("http_") else ""
    return name if source == "header" else ""
