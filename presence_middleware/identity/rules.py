"""`PRESENCE_IDENTITY`, parsed and checked.

It is a chain of `kind=source[:argument][:raw|:hashed][:checked]`.
"""

import re
from dataclasses import dataclass

from ..errors import QueryError
from ..parsers import InvalidValue, is_public_key, items
from ..request import token
from .bots import BOT, COUNT, OFF
from .ids import MOST_PARTS, Secrets, quoted
from .sources import ACCEPTED, CREDENTIAL_HEADERS, FUNCTION, SOURCES, SourceType, nearest_source

CHAIN_FORM = (
    "A chain is kind=source[:argument][:raw|:hashed][:checked], separated by commas, such as "
    "user=auth, guest=visitor"
)
_RULE = re.compile(r"([a-z][a-z0-9_]*)\s*=\s*(.+?|)(?::(raw|hashed))?(:checked)?", re.DOTALL)
ALWAYS = "visitor"
"""The name of the source that finds an id in every request."""
_LISTS = {"headers": "header:NAME", "client": "ip"}
"""Keys of every ASGI scope that hold no id, and what reads them."""
_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True)
class Rule:
    """A rule of the chain: a source, and the kind of the ids that it finds."""

    kind: str
    source: str
    argument: str
    hashed: bool
    checked: bool = False
    """True if its ids count only where the response accepts the login."""

    @property
    def type(self) -> SourceType:
        return SOURCES.get(self.source, FUNCTION)

    @property
    def function(self) -> str:
        """The function of the site that it calls, `package.module:callable`; empty if none."""
        named = self.argument if self.type.reads_nothing else ""
        return self.source if self.type is FUNCTION else named

    @property
    def cookie(self) -> str:
        """The cookie that its argument names; empty if it names none."""
        if self.source == "cookie" or self.type.argument == "[COOKIE]":
            return self.argument
        cookie = self.argument.partition("@")[2] if "@" in self.type.argument else ""
        return cookie.partition(":")[0] if self.source == "signed" else cookie

    @property
    def header(self) -> str:
        """The header that decides what it finds, with the client's address; empty if others may."""
        if self.source == "bearer":
            return "cookie" if self.cookie else "authorization"
        return self.front_header if self.source == "header" else self.type.header

    @property
    def front_header(self) -> str:
        """The header that `header:NAME` or `environ:HTTP_NAME` reads, in lower case; or empty."""
        name = self.argument.lower()
        if self.source == "environ" and name.startswith("http_"):
            return name.removeprefix("http_").replace("_", "-")
        return name if self.source == "header" else ""

    @property
    def is_credential(self) -> bool:
        """True if it reads a credential that clients send, and that only the site verifies."""
        header = self.front_header.replace("_", "-")  # which are the same under WSGI
        return self.source == "django-session" or header in CREDENTIAL_HEADERS

    def secrets_among(self, secrets: Secrets) -> Secrets:
        """Return the session secrets that may have signed what it reads.

        A public key verifies tokens alone: as a shared secret, it would let anybody sign a cookie.
        """
        is_token = self.source == "bearer"
        return tuple(each for each in secrets if is_token or not is_public_key(each))

    def hides(self, other: "Rule") -> bool:
        """Return whether `other` never matches after this rule."""
        is_same = (self.source, self.argument) == (other.source, other.argument)
        return self.source == ALWAYS or (is_same and (other.checked or not self.checked))

    @property
    def short(self) -> str:
        """The rule without what is the default of its source."""
        rule, type = str(self), self.type
        if self.checked and type.checked:
            rule = rule.removesuffix(":checked")
        return rule.removesuffix(":hashed" if type.client_supplied else ":raw")

    def __str__(self) -> str:
        argument = f":{self.argument}" if self.argument else ""
        form = "hashed" if self.hashed else "raw"
        return f"{self.kind}={self.source}{argument}:{form}{':checked' if self.checked else ''}"


Chain = tuple[Rule, ...]


def parse_chain(value: object) -> Chain:
    """Return the rules of a chain. Raises `InvalidValue` with all problems of the chain.

    One of them is a rule that can never match, because of the rule that matches before it.
    """
    chain: list[Rule] = []
    problems = []
    for item in items(value):
        try:
            chain.append(_rule(item))
        except ValueError as error:
            problems.append(str(error))
    for place, rule in enumerate(chain):
        before = next((each for each in chain[:place] if each.hides(rule)), None)
        if before and not rule.type.reads_nothing:  # `Visit.identify` needs no match
            does = "matches every request" if before.source == ALWAYS else "reads the same"
            problems.append(f"{rule} never matches, because {before} {does} before it")
    if problems or not chain:
        raise InvalidValue(f"{'; '.join(problems) or 'it is empty'}. {CHAIN_FORM}")
    return tuple(chain)


def kinds(chain: Chain, bots: str = OFF) -> tuple[str, ...]:
    """Return the kinds of a chain, each once, in order; bots last, if they are counted."""
    counted = (BOT,) if bots == COUNT else ()
    return tuple(dict.fromkeys((*(rule.kind for rule in chain), *counted)))


def login_kinds(chain: Chain) -> set[str]:
    """Return the kinds whose ids no client can choose."""
    return {rule.kind for rule in chain if not rule.type.client_supplied}


def user_kinds(chain: Chain) -> set[str]:
    """Return the kinds of users. If clients supply all ids, these are all kinds but the last."""
    named = {rule.kind for rule in chain if rule.type.reads_nothing}
    readers = tuple(rule for rule in chain if not rule.type.reads_nothing)
    guests = {rule.kind for rule in readers[-1:]}
    return named | (login_kinds(readers) or set(kinds(readers)) - guests)


def known_kind(kind: str, known: tuple[str, ...]) -> str:
    """Return `kind` if the site has it. Raises `QueryError` with the site's kinds otherwise."""
    if not isinstance(kind, str) or kind not in known:
        raise QueryError(f"unknown kind {quoted(kind)}: PRESENCE_IDENTITY has {', '.join(known)}")
    return kind


def _rule(item: str) -> Rule:
    match = _RULE.fullmatch(item)
    if not match:
        raise ValueError(f"{item!r} does not begin with a kind and =, such as user=")
    kind, spec, form, checked = match.groups()
    if (after := re.search(r"[\s;]([a-z]\w*\s*=\s*([\w-]+).*)", spec)) and after[2] in SOURCES:
        raise ValueError(f"a comma is missing before {after[1]}")
    name, _, argument = spec.partition(":")
    if name not in SOURCES:
        if _CALLABLE.fullmatch(spec) and name.replace("_", "-") not in SOURCES:
            return Rule(kind, spec, "", form == "hashed", bool(checked))
        if near := nearest_source(name):
            raise ValueError(f"there is no source {name!r}; the nearest is {near}")
        raise ValueError(f"there is no source {spec!r}; {ACCEPTED}")
    source = SOURCES[name]
    hashed = form == "hashed" or (source.client_supplied and form != "raw")
    rule = Rule(kind, name, argument, hashed, bool(checked) or source.checked)
    if source.reads_nothing and (form == "hashed" or checked):
        raise ValueError(
            f"{name} takes neither :hashed nor :checked, because Visit.identify stores the id as "
            "it is given, whatever the response"
        )
    if rule.is_credential and not hashed:
        raise ValueError(f"{spec} is a credential: it must be hashed, so write {spec}:hashed")
    _check_argument(rule)
    return rule


def _check_argument(rule: Rule) -> None:
    """Raise `ValueError` for an argument with which the source can never find an id."""
    name, argument, form = rule.source, rule.argument, rule.type.argument
    key, at, cookie = argument.partition("@") if "@" in form else (argument, "", "")
    is_complete = bool(rule.cookie) if name == "signed" else bool(key and cookie) or not at
    if argument and not form:
        raise ValueError(f"{name} takes no argument, not {argument!r}")
    if not is_complete or (rule.type.example and not argument):
        what = "a name" if form == "NAME" else form
        raise ValueError(f"{name} needs {what}, such as {name}:{rule.type.example}")
    if rule.type.reads_nothing and argument and not _CALLABLE.fullmatch(argument):
        raise ValueError(
            f"{name}:{argument} names no function; write package.module:callable after {name}:"
        )
    named = argument if name == "header" else rule.cookie
    if named:
        token(named)
    if key != named and key.count(".") >= MOST_PARTS:
        raise ValueError(f"{name}:{key[:60]} has more than {MOST_PARTS} parts between dots")
    if name == "auth" and key.startswith("_"):
        raise ValueError(f"{name}:{key} is private; name a public attribute, such as auth:username")
    good = key.upper().replace("-", "_")
    if name == "environ" and rule.front_header and key not in {good, "http_version"}:
        raise ValueError(f"environ:{key} never exists; that header is in environ:{good}")
    if name == "scope" and (remedy := _LISTS.get(key)):
        raise ValueError(f"scope:{key} is a list, not an id; use {remedy}")
